"""A tokenizer.json with what belongs to it, as the settings of a GGUF file's tokenizer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dflash_core.errors import FormatError, UnsupportedError
from dflash_core.text.pre_tokenizers import PRE_TOKENIZERS
from dflash_core.text.vocabulary import BYTE, COMPOSES, CONTROL, ENDS, NORMAL, PREFIX, UNUSED, USER_DEFINED, WHOLE_WORDS

MAX_TOKENS = 1 << 21
_SPACES = ("\u2581", " ")


def tokenizer_settings(
    source: str, tokenizer: Mapping[str, Any], config: Mapping[str, Any], ends: Sequence[int], rows: int
) -> dict[str, Any]:
    """Settings by GGUF's names. `config`: tokenizer_config.json; `ends`: tokens that end an answer, by the model's
    other files; `rows`: of the embedding, as many tokens there are.

    Raises FormatError, and UnsupportedError for a kind of tokenizer that is unknown.
    """
    model = tokenizer.get("model")
    if not isinstance(model, dict):
        raise FormatError(f"{source} has no model, expected a tokenizer.json; download it again")
    if model.get("type", "BPE") != "BPE":
        raise UnsupportedError(f"{source} is a tokenizer of type {model.get('type')!r:.40}, expected BPE; use the GGUF")
    tokens, types = _tokens(source, tokenizer, model, rows)
    ids = {token: id for id, token in enumerate(tokens)}
    kind, pre = _kind(source, tokenizer, model)
    composes = _composes(source, tokenizer) if pre else False
    if kind != "gpt2":
        types = [BYTE if one == NORMAL and _is_byte(tokens[id]) else one for id, one in enumerate(types)]
    found: dict[str, Any] = {
        PREFIX + "model": kind,
        PREFIX + "tokens": tokens,
        PREFIX + "token_type": types,
        PREFIX + "merges": list(_merges(source, model)),
        PREFIX + "add_bos_token": _adds_bos(tokenizer, config),
    }
    if pre:
        found |= {PREFIX + "pre": pre, COMPOSES: composes, WHOLE_WORDS: model.get("ignore_merges") is True}
    named = {key: ids[text] for key in ("bos", "eos") if (text := _text(config.get(f"{key}_token"))) in ids}
    if "bos" in named:
        found[PREFIX + "bos_token_id"] = named["bos"]
    ending = [*([named["eos"]] if "eos" in named else []), *(id for id in ends if 0 <= id < len(tokens))]
    if ending:
        found[PREFIX + "eos_token_id"] = ending[0]
        found[ENDS] = list(dict.fromkeys(ending))
    if "<|mask|>" in ids:
        found[PREFIX + "mask_token_id"] = ids["<|mask|>"]
    return found


def _tokens(
    source: str, tokenizer: Mapping[str, Any], model: Mapping[str, Any], rows: int
) -> tuple[list[str], list[int]]:
    """The tokens by their ids with their types; ids that the file leaves out are padding."""
    vocabulary, added = model.get("vocab"), tokenizer.get("added_tokens", [])
    if not isinstance(vocabulary, dict) or not isinstance(added, list):
        raise FormatError(f"{source} has no vocabulary of tokens and ids; download it again")
    entries = [one for one in added if isinstance(one, dict)]
    named: list[tuple[Any, Any, Any]] = [(one.get("content"), one.get("id"), one.get("special")) for one in entries]
    ids = [*vocabulary.values(), *(id for _, id, _ in named)]
    if len(named) < len(added) or not all(type(id) is int and 0 <= id < MAX_TOKENS for id in ids):
        raise FormatError(f"{source} has tokens without an id of 0 to {MAX_TOKENS:,}; download it again")
    count = max(rows, max(ids, default=-1) + 1)
    tokens, types = [f"[PAD{id}]" for id in range(count)], [UNUSED] * count
    for token, id in vocabulary.items():
        tokens[id], types[id] = token, NORMAL
    for token, id, special in named:
        if not isinstance(token, str) or not isinstance(special, bool | None):
            raise FormatError(f"{source}: added token {id} has no content, expected text; download it again")
        tokens[id], types[id] = token, CONTROL if special else USER_DEFINED
    return tokens, types


def _kind(source: str, tokenizer: Mapping[str, Any], model: Mapping[str, Any]) -> tuple[str, str]:
    """The kind of tokenizer and, of byte-level BPE, the name of how it splits text."""
    steps = [*_steps(tokenizer.get("pre_tokenizer"), "pretokenizers")]
    if any(step.get("type") == "ByteLevel" for step in steps):
        return "gpt2", _splits(source, steps)
    normalizers = [*_steps(tokenizer.get("normalizer"), "normalizers")]
    patterns = [step.get("pattern") for step in steps]
    if (
        model.get("byte_fallback") is True
        and [one.get("type") for one in normalizers] == ["Replace"]
        and normalizers[0].get("content") == _SPACES[0]
        and all(pattern == {"String": _SPACES[1]} for pattern in patterns)
    ):
        return "spaced", ""
    raise UnsupportedError(
        f"{source}: this kind of tokenizer is unknown, expected byte-level BPE, or BPE with byte fallback whose spaces"
        " are marked; use the model's GGUF"
    )


def _steps(value: Any, inside: str) -> Iterator[Mapping[str, Any]]:
    """The steps of a normalizer or pre-tokenizer, those of sequences one by one."""
    if isinstance(value, dict) and value.get("type") == "Sequence":
        for one in value.get(inside) or ():
            yield from _steps(one, inside)
    elif isinstance(value, dict):
        yield value


def _splits(source: str, steps: Sequence[Mapping[str, Any]]) -> str:
    """The name of the pre-tokenizer with the same regular expressions."""
    found = []
    for step in steps:
        pattern = step.get("pattern")
        match step.get("type"):
            case "Split":
                found.append(str(pattern.get("Regex", pattern.get("String")) if isinstance(pattern, dict) else pattern))
            case "Digits" if step.get("individual_digits"):
                found.append(r"\p{N}")
            case "ByteLevel":
                if step.get("add_prefix_space"):
                    raise UnsupportedError(f"{source} puts a space before text, expected none; use the model's GGUF")
                if step.get("use_regex", True):
                    found.append(GPT2)
    for name, pre in PRE_TOKENIZERS.items():
        if pre.splits == tuple(one.replace("\r", r"\r").replace("\n", r"\n") for one in found):
            return name
    split = " then ".join(found)
    raise UnsupportedError(
        f"{source} splits text by {split[:120]!r}, expected one of {', '.join(PRE_TOKENIZERS)}; use the model's GGUF"
    )


def _composes(source: str, tokenizer: Mapping[str, Any]) -> bool:
    """Whether text is composed (NFC) before it is split."""
    steps = [one.get("type") for one in _steps(tokenizer.get("normalizer"), "normalizers")]
    if steps not in ([], ["NFC"]):
        raise UnsupportedError(
            f"{source} normalises text by {steps!r:.60}, expected NFC or nothing; use the model's GGUF"
        )
    return bool(steps)


GPT2 = PRE_TOKENIZERS["gpt-2"].splits[0]
"""The regular expression that ByteLevel has of its own."""


def _merges(source: str, model: Mapping[str, Any]) -> Iterator[str]:
    merges = model.get("merges")
    if not isinstance(merges, list):
        raise FormatError(f"{source} has no merges, expected a list; download it again")
    for merge in merges:
        pair = merge if isinstance(merge, list) else [merge]
        if not all(isinstance(one, str) for one in pair):
            raise FormatError(f"{source}: merge {str(merge)[:40]!r}, expected two tokens; download it again")
        yield " ".join(pair)


def _adds_bos(tokenizer: Mapping[str, Any], config: Mapping[str, Any]) -> bool:
    """Whether a prompt begins with the BOS token: by the tokenizer's template of a text, else by its config."""
    for step in _steps(tokenizer.get("post_processor"), "processors"):
        single = step.get("single")
        if step.get("type") == "TemplateProcessing" and isinstance(single, list) and single:
            return isinstance(single[0], dict) and "SpecialToken" in single[0]
    return config.get("add_bos_token") is True


def _text(token: Any) -> str | None:
    """The text of a token in tokenizer_config.json."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None


def _is_byte(token: str) -> bool:
    return len(token) == 6 and token.startswith("<0x") and token.endswith(">")
