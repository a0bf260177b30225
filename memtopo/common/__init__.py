"""Utilities for all rooms: errors, text, sizes, durations, and control of the garbage collector."""
