"""The small tokenizer of the golden models, as a GGUF file would describe it, and the published Qwen3.5 template."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from dflash_core.text.template import ChatTemplate
from dflash_core.text.tokenizer import Tokenizer

DATA = Path(__file__).parent / "data"
TOKENIZER_JSON = DATA / "tiny-tokenizer.json"
QWEN_TEMPLATE = (DATA / "Qwen3.5-4B.jinja").read_text(encoding="utf-8")
IM_START, IM_END, THINK, END_THINK = 763, 764, 766, 767


def metadata(**changes: Any) -> dict[str, object]:
    """GGUF keys; `changes` are named by the last part of a key, and None removes one."""
    file = json.loads(TOKENIZER_JSON.read_text(encoding="utf-8"))
    added = file["added_tokens"]
    vocabulary = file["model"]["vocab"]
    tokens = sorted(vocabulary, key=vocabulary.__getitem__) + [token["content"] for token in added]
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in file["model"]["merges"]]
    keys: dict[str, object] = {
        "model": "gpt2",
        "pre": "qwen35",
        "tokens": tokens,
        "token_type": [1] * len(vocabulary) + [3 if token["special"] else 4 for token in added],
        "merges": merges,
        "eos_token_id": IM_END,
        "padding_token_id": 762,
    }
    keys |= changes
    described = {f"tokenizer.ggml.{key}": value for key, value in keys.items() if value is not None}
    return described | {"tokenizer.chat_template": QWEN_TEMPLATE}


@cache
def tiny() -> Tokenizer:
    return Tokenizer.from_metadata(metadata())


@cache
def qwen() -> ChatTemplate:
    return ChatTemplate.for_tokenizer(tiny())
