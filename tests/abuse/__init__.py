"""Abuse of the whole program, reproducible from a seed: a short slice in every test run, `make abuse` for a long one.

Each part is a module with `run(seed, ..., folder) -> Report`: `monkey` (the app), `soak` (the engine), `mutants` (files
that are wrong) and `kills` (kill -9 in a terminal). `python -m abuse` runs them one after another, each in a process of
its own.
"""
