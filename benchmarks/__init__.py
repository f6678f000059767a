"""Benchmarks: `python -m benchmarks --help`, or `make bench`."""
