"""How much memory a vocabulary takes, predicted from a file's header."""

from __future__ import annotations

from collections.abc import Mapping

FIXED = 18 << 20
"""Bytes of the code for tokenizers and templates, and of what a first answer makes beside its tensors."""
PER_ENTRY = 250
"""Bytes for each token and each merge: as lists of strings, and in the tables of the library. Measured with the
vocabularies of Qwen3.6, Qwen3, SmolLM2 and the demo pair, 8,192 to 248,320 tokens: 5 MiB off at most."""
MERGES_PER_TOKEN = 2
"""Where merges follow from scores; Gemma 3 has 514,906 for 262,144 tokens."""


def vocabulary_bytes(metadata: Mapping[str, object]) -> int:
    """Bytes of main memory that the vocabulary of a GGUF file takes once its tokenizer is made."""
    tokens, merges = (_count(metadata.get(f"tokenizer.ggml.{name}")) for name in ("tokens", "merges"))
    return FIXED + PER_ENTRY * (tokens + (merges or MERGES_PER_TOKEN * tokens))


def _count(value: object) -> int:
    return len(value) if isinstance(value, (list, tuple)) else 0
