"""Benchmarks: each prints its figures and the ratio from one run. No test depends on a time."""
