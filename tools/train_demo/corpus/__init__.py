"""Generators of the training conversations, one family per file; `build` mixes them."""
