"""The demo pair's tokenizer: byte-level BPE of 8,192 tokens after the qwen35 pre-tokenizer."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

VOCAB = 8192
CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|mask|>")
VISIBLE = ("<think>", "</think>", "<tool_call>", "</tool_call>")
SPECIAL = (*CONTROL, *VISIBLE)
"""Special tokens, the last ids of the vocabulary in this order. The visible ones are not hidden when text is shown."""

SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""The qwen35 pre-tokenizer: like Qwen2's, with marks counted among the letters; every digit stands alone."""


def pre_tokenizer() -> pre_tokenizers.PreTokenizer:
    """Splits a text before BPE merges."""
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(SPLIT), "isolated"), to_bytes])


def train(texts: Iterable[str], vocab: int = VOCAB) -> Tokenizer:
    """Learn the merges from `texts` until the vocabulary has `vocab` tokens, the special ones included."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer()
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab - len(SPECIAL), initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    if tokenizer.get_vocab_size() != vocab - len(SPECIAL):
        raise ValueError(f"only {tokenizer.get_vocab_size()} tokens could be learned; more text is needed")
    tokenizer.add_special_tokens(list(SPECIAL))
    return tokenizer


def load(path: Path) -> Tokenizer:
    tokenizer: Tokenizer = Tokenizer.from_file(str(path))
    return tokenizer


def token_id(name: str, vocab: int = VOCAB) -> int:
    """The id of a special token: they are the last of the vocabulary, whatever was learned."""
    return vocab - len(SPECIAL) + SPECIAL.index(name)


def gguf_tables(path: Path) -> tuple[list[str], list[int], list[str]]:
    """Tokens by id, their GGUF types (1 normal, 3 control, 4 user-defined) and the merges, from a tokenizer file."""
    data = json.loads(path.read_text(encoding="utf-8"))
    learned = data["model"]["vocab"]
    tokens = sorted(learned, key=learned.__getitem__) + list(SPECIAL)
    types = [1] * len(learned) + [3 if token in CONTROL else 4 for token in SPECIAL]
    merges = [m if isinstance(m, str) else " ".join(m) for m in data["model"]["merges"]]
    return tokens, types, merges
