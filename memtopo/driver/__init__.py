"""The driver protocol, its wrappers, and its implementations by CUDA and by a simulator."""
