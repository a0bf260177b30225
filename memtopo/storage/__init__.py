"""Bytes in files: direct I/O by several threads, and folders in which the bytes of a layout are saved."""
