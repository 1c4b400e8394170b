"""Weights of Hugging Face folders: matrices of one or several tensors, read as rows of blocks."""
