"""The vocabulary of a GGUF file: its tokens with their types, and the settings of its tokenizer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec

from dflash_core.errors import FormatError

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
"""Types of tokens in `tokenizer.ggml.token_type`."""
PREFIX = "tokenizer.ggml."
ENDS = "tokenizer.ggml.eos_token_ids"
"""All tokens that end an answer, where a folder names more than one."""
NO_ID = (-1, (1 << 32) - 1)
"""What converters write for a token that there is none of."""
COMPOSES, WHOLE_WORDS = "tokenizer.ggml.composes", "tokenizer.ggml.ignore_merges"
"""What a tokenizer.json states and the name of a pre-tokenizer implies."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What a file says about its tokenizer.

    model: its kind, as "gpt2". scores: of each token, () where the file has none. ids: of tokens that have a purpose
    ("bos", "eos", "eot", "mask"), None for those that the file does not name. ends: further tokens that end
    an answer. add_bos, space_prefix: whether a prompt begins with the BOS token, and text with a space; composes,
    whole_words: as in `pre_tokenizers.PreTokenizer`; None where the file does not say.
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

        def read(name: str, kind: Any, optional: bool = True, words: str = "") -> Any:
            key = name if name.startswith("tokenizer.") else PREFIX + name
            value: Any = metadata.get(key)
            value = value.tolist() if hasattr(value, "tolist") else value  # files give lists and numbers of numpy too
            try:
                # Some converters write flags as numbers.
                return None if value is None and optional else msgspec.convert(value, kind, strict=kind is not bool)
            except (msgspec.ValidationError, UnicodeEncodeError):  # the latter: half a surrogate pair
                raise FormatError(f"{key} is {_shown(value)}, expected {words or WORDS[kind]}") from None

        def per_token(name: str, kind: Any, optional: bool) -> list[Any]:
            found = read(name, kind, optional)
            if found is not None and len(found) != len(tokens):
                raise FormatError(f"{PREFIX}{name} has {len(found)} entries, expected {len(tokens)}, one a token")
            return found or []

        model, tokens = read("model", str, False), read("tokens", list[str], False)
        scored = model == "llama"  # the only kind that merges by scores
        id, below = Annotated[int, msgspec.Meta(ge=0, lt=len(tokens))], f"an id below {len(tokens)}"
        return cls(
            model=model,
            pre="" if model != "gpt2" else read("pre", str, False),
            tokens=tokens,
            types=per_token("token_type", list[int], True) or [NORMAL] * len(tokens),
            merges=[] if scored else read("merges", list[str], False),
            scores=per_token("scores", list[float], False) if scored else [],
            ids={
                name: None
                if metadata.get(f"{PREFIX}{name}_token_id") in NO_ID
                else read(f"{name}_token_id", id, words=below)
                for name in ("eos", "eot", "bos", "mask")
            },
            ends=tuple(read(ENDS, list[int]) or ()),
            add_bos=read("add_bos_token", bool),
            space_prefix=read("add_space_prefix", bool),
            chat_template=read("tokenizer.chat_template", str),
            composes=read(COMPOSES, bool),
            whole_words=read(WHOLE_WORDS, bool),
        )

    def of_type(self, *types: int) -> dict[int, int]:
        """The tokens of these types: id -> type."""
        return {id: kind for id, kind in enumerate(self.types) if kind in types}


WORDS: Mapping[Any, str] = {
    str: "a string",
    bool: "true or false",
    list[str]: "a list of str",
    list[int]: "a list of int",
    list[float]: "a list of float",
}
"""What a setting may be, in words."""


def _shown(value: object) -> str:
    if value is None:
        return "missing"
    if isinstance(value, (list, tuple)):
        odd = next((type(item).__name__ for item in value), "nothing")
        return f"a list that begins with {odd}"
    return f"{value!r:.40}"


FIXED = 18 << 20
"""Bytes of the code for tokenizers and templates, and of what a first answer makes beside its tensors."""
PER_ENTRY = 250
"""Bytes for each token and each merge: as lists of strings, and in the tables of the library. Measured with the
vocabularies of Qwen3.6, Qwen3, SmolLM2 and the demo pair, 8,192 to 248,320 tokens: 5 MiB off at most."""
MERGES_PER_TOKEN = 2
"""Where merges follow from scores; Gemma 3 has 514,906 for 262,144 tokens."""


def vocabulary_bytes(metadata: Mapping[str, object]) -> int:
    """Bytes of main memory that the vocabulary of a GGUF file takes once its tokenizer is made."""
    tokens, merges = (_count(metadata.get(PREFIX + name)) for name in ("tokens", "merges"))
    return FIXED + PER_ENTRY * (tokens + (merges or MERGES_PER_TOKEN * tokens))


def _count(value: object) -> int:
    return len(value) if isinstance(value, (list, tuple)) else 0
