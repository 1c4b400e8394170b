"""What models are made of: layer kinds and whole models as plain data, and a file for each family of architectures."""
