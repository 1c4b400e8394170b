"""The vocabulary of a GGUF file: its tokens with their types, and the settings of its tokenizer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from dflash_core.errors import FormatError

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
"""Types of tokens in `tokenizer.ggml.token_type`."""
ENDS = "tokenizer.ggml.eos_token_ids"
"""All tokens that end an answer, where a folder names more than one."""
COMPOSES, WHOLE_WORDS = "tokenizer.ggml.composes", "tokenizer.ggml.ignore_merges"
"""What a tokenizer.json states and the name of a pre-tokenizer implies."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What a file says about its tokenizer.

    model: its kind, as "gpt2". scores: of each token, () where the file has none. ids: of tokens that have a purpose
    ("bos", "eos", "eot", "padding", "mask"), None for those that the file does not name. ends: further tokens that end
    an answer. add_bos, space_prefix: whether
    a prompt begins with the BOS token, and text with a space; composes, whole_words: as in
    `pre_tokenizers.PreTokenizer`; None where the file does not say.
    """

    model: str
    pre: str
    tokens: list[str]
    types: list[int]
    merges: list[str] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    ids: Mapping[str, int | None] = field(default_factory=dict)
    ends: tuple[int, ...] = ()
    add_bos: bool | None = None
    space_prefix: bool | None = None
    chat_template: str | None = None
    composes: bool | None = None
    whole_words: bool | None = None

    @classmethod
    def of(cls, metadata: Mapping[str, object]) -> Vocabulary:
        """The vocabulary that a GGUF file describes. Raises FormatError for missing or malformed keys."""
        model = _string(metadata, "tokenizer.ggml.model")
        tokens = cast(list[str], _list(metadata, "tokenizer.ggml.tokens", str))
        types = [NORMAL] * len(tokens)
        if "tokenizer.ggml.token_type" in metadata:
            types = cast(list[int], _list(metadata, "tokenizer.ggml.token_type", int))
        if len(types) != len(tokens):
            raise FormatError(
                f"tokenizer.ggml.token_type has {len(types)} entries, expected {len(tokens)}, one a token"
            )
        scored = model == "llama"  # the only kind that merges by scores
        template = metadata.get("tokenizer.chat_template")
        if template is not None and not isinstance(template, str):
            raise FormatError(f"tokenizer.chat_template is a {type(template).__name__}, expected a string")
        return cls(
            model=model,
            pre="" if model != "gpt2" else _string(metadata, "tokenizer.ggml.pre"),
            tokens=tokens,
            types=types,
            merges=[] if scored else cast(list[str], _list(metadata, "tokenizer.ggml.merges", str)),
            scores=_scores(metadata, len(tokens)) if scored else [],
            ids={
                name: _token_id(metadata, f"tokenizer.ggml.{name}_token_id", len(tokens))
                for name in ("eos", "eot", "bos", "padding", "mask")
            },
            ends=tuple(cast(list[int], _list(metadata, ENDS, int))) if ENDS in metadata else (),
            add_bos=_flag(metadata, "tokenizer.ggml.add_bos_token"),
            space_prefix=_flag(metadata, "tokenizer.ggml.add_space_prefix"),
            chat_template=template,
            composes=_flag(metadata, COMPOSES),
            whole_words=_flag(metadata, WHOLE_WORDS),
        )

    def of_type(self, *types: int) -> dict[int, int]:
        """The tokens of these types: id -> type."""
        return {id: kind for id, kind in enumerate(self.types) if kind in types}


def _string(metadata: Mapping[str, object], key: str) -> str:
    value = metadata.get(key)
    if not isinstance(value, str):
        raise FormatError(f"{key} is {_describe(value)}, expected a string")
    return value


def _plain(value: Any) -> Any:
    """A value as Python has it: files give lists and numbers of numpy too."""
    return value.tolist() if hasattr(value, "tolist") else value


def _list(metadata: Mapping[str, object], key: str, *kinds: type) -> list[object]:
    value = _plain(metadata.get(key))
    if not isinstance(value, (list, tuple)) or not all(type(item) in kinds for item in value):
        raise FormatError(f"{key} is {_describe(value)}, expected a list of {kinds[0].__name__}")
    return list(value)


def _scores(metadata: Mapping[str, object], count: int) -> list[float]:
    scores = cast(list[float], _list(metadata, "tokenizer.ggml.scores", float, int))
    if len(scores) != count:
        raise FormatError(f"tokenizer.ggml.scores has {len(scores)} entries, expected {count}, one a token")
    return scores


def _flag(metadata: Mapping[str, object], key: str) -> bool | None:
    value = _plain(metadata.get(key))
    if value is not None and not isinstance(value, bool):
        raise FormatError(f"{key} is {_describe(value)}, expected true or false")
    return value


def _token_id(metadata: Mapping[str, object], key: str, vocab_size: int) -> int | None:
    value = _plain(metadata.get(key))
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < vocab_size:
        raise FormatError(f"{key} is {value!r:.40}, expected an id below {vocab_size}")
    return value


def _describe(value: object) -> str:
    if value is None:
        return "missing"
    if isinstance(value, (list, tuple)):
        odd = next((type(item).__name__ for item in value), "nothing")
        return f"a list that begins with {odd}"
    return f"a {type(value).__name__}"


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
