"""Differential test: random sequences of driver calls, recorded on GPUs and replayed on the simulator."""
