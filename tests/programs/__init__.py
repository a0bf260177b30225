"""Programs that call the driver's C functions, recorded on GPUs and made again on the simulator."""
