"""Drawings of a layout for the terminal: bars to scale with labels."""
