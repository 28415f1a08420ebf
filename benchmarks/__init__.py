"""Benchmarks: every figure is a ratio to a bare ceiling measured in the same run."""
