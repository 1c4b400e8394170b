"""How byte-level BPE splits text before merging, by the name in `tokenizer.ggml.pre`.

The expressions are those of the models' own tokenizers, as llama.cpp names them; facts from its vocabulary code and the
published tokenizer.json files.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class PreTokenizer(NamedTuple):
    """composes: text is composed first (NFC). splits: regular expressions, each applied to the parts of the one before.
    whole_words: a part that is a token is not merged from smaller ones. bos: a prompt begins with the BOS token where
    the file does not say."""

    splits: tuple[str, ...]
    composes: bool = False
    whole_words: bool = False
    bos: bool = False


_CONTRACTIONS = "'s|'t|'re|'ve|'m|'ll|'d"
_ENDS = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_PUNCTUATION = r"| ?[^\s\p{L}\p{N}]+[\r\n]*"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_GPT2 = rf"{_CONTRACTIONS}| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|\s+(?!\S)|\s+"
_QWEN2 = rf"(?i:{_CONTRACTIONS})|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{_PUNCTUATION}{_ENDS}"
_LLAMA3 = rf"(?i:{_CONTRACTIONS})|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}{_PUNCTUATION}{_ENDS}"


def _cased(tail: str, digits: str) -> str:
    """Words in which lower case follows upper case. `tail`: what may end a word; `digits`: of a number."""
    start = r"[^\r\n\p{L}\p{N}]?"
    words = f"{start}{_UPPER}*{_LOWER}+{tail}|{start}{_UPPER}+{_LOWER}*{tail}"
    return rf"{words}|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*{_ENDS}"


PRE_TOKENIZERS: Mapping[str, PreTokenizer] = {
    "qwen35": PreTokenizer(
        (
            rf"(?i:{_CONTRACTIONS})|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
            rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*{_ENDS}",
        ),
        composes=True,
    ),
    "qwen2": PreTokenizer((_QWEN2,), composes=True),
    "deepseek-r1-qwen": PreTokenizer((_QWEN2,)),
    **dict.fromkeys(
        ("llama-bpe", "llama3", "llama-v3", "pixtral"), PreTokenizer((_LLAMA3,), whole_words=True, bos=True)
    ),
    **dict.fromkeys(("smaug-bpe", "dbrx", "glm4", "chatglm-bpe"), PreTokenizer((_LLAMA3,))),
    **dict.fromkeys(("smollm", "refact"), PreTokenizer((r"\p{N}", _GPT2))),
    **dict.fromkeys(("gpt-2", "granite-docling"), PreTokenizer((_GPT2,))),
    "gpt-4o": PreTokenizer((_cased(f"(?i:{_CONTRACTIONS})?", r"\p{N}{1,3}"),)),
    "tekken": PreTokenizer((_cased("", r"\p{N}"),), whole_words=True, bos=True),
    "seed-coder": PreTokenizer(
        (rf"(?i:{_CONTRACTIONS})|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1}}| ?[^\s\p{{L}}\p{{N}}\r\n]+{_ENDS}",)
    ),
    "laguna": PreTokenizer((r"[^\n]+|[\n]+", _QWEN2)),
}
