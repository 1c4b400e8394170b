"""Measuring: prompt sets, the order of runs, the statistics of their figures."""
