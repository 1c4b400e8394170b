"""The decoder on one NVIDIA GPU. Importing this package needs no GPU and no CUDA packages; using it needs both."""
