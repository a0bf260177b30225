"""Verification by bytes: what is written through one mapping of a chunk is read back through each of its mappings."""
