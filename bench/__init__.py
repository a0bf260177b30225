"""Benchmarks: each prints times and ratios of one run. No test depends on a time."""
