"""What models are made of: layer kinds and whole models as plain data, and one file for each family of GGUF architectures."""
