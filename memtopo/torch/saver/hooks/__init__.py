"""Modes of torch_memory_saver, for programs that import from its package `hooks`."""
