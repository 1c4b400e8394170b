"""The decoder on one NVIDIA GPU. Importing this package needs neither a GPU nor the CUDA packages; using it does."""
