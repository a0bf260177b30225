"""The driver boundary: one protocol, and wrappers that hold for every driver behind it."""
