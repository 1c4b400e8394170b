"""Folders of Hugging Face models: settings and tensors under the names that GGUF files have."""
