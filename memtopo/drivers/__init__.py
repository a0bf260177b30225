"""Drivers: the real one, the simulator, and the targets that open them."""
