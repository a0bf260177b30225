"""Utilities for all rooms: errors, text, sizes and durations."""
