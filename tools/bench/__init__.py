"""Measurements for developers, each run with `python -m tools.bench.NAME` from the checkout."""
