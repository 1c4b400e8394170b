"""SentencePiece vocabularies, and Gemma 4's: against their definition written out here."""

from __future__ import annotations

import itertools
import re
from functools import cache
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dflash_core.errors import FormatError
from dflash_core.formats.gguf import open_gguf
from dflash_core.text.prompt import Prompting
from dflash_core.text.template import ChatTemplate
from dflash_core.text.tokenizer import Tokenizer
from support.golden import target_path

SPACE = "\u2581"
TEXT = st.text(st.sampled_from("  the and of ing\n\tEÄ🙂1"), max_size=40) | st.text(max_size=20)
TURNS = (
    "{{ bos_token }}{% for message in messages %}"
    "<start_of_turn>{{ 'model' if message.role == 'assistant' else message.role }}\n"
    "{{ message.content | trim }}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)


@cache
def metadata(name: str) -> dict[str, Any]:
    return {key: value for key, value in open_gguf(target_path(name)).metadata.items() if key.startswith("tokenizer.")}


def keys(name: str, **changes: Any) -> dict[str, Any]:
    """Settings of a golden file's tokenizer, some of them changed or, with None, left out."""
    named = {f"tokenizer.ggml.{key}": value for key, value in changes.items()}
    return {key: value for key, value in {**metadata(name), **named}.items() if value is not None}


GEMMA3, GEMMA4 = "gemma3-Q8_0.gguf", "gemma4-e-F16.gguf"
SCORED, MERGED = Tokenizer.from_metadata(keys(GEMMA3)), Tokenizer.from_metadata(keys(GEMMA4))


def by_bytes(piece: str, ids: dict[str, int]) -> list[int]:
    return [ids[piece]] if piece in ids else [ids[f"<0x{byte:02X}>"] for byte in piece.encode()]


def joined(pieces: list[str], rank: dict[str, float]) -> list[str]:
    """The adjacent pair whose piece has the best rank is joined, the first of equals, until there is none."""
    while pairs := [(rank[a + b], at) for at, (a, b) in enumerate(itertools.pairwise(pieces)) if a + b in rank]:
        at = min(pairs)[1]
        pieces[at : at + 2] = [pieces[at] + pieces[at + 1]]
    return pieces


def plain(text: str) -> str:
    return text.encode(errors="replace").decode().replace(" ", SPACE)


def scored(text: str) -> list[int]:
    tokens, types, scores = (metadata(GEMMA3)[f"tokenizer.ggml.{key}"] for key in ("tokens", "token_type", "scores"))
    ids = {token: id for id, token in enumerate(tokens) if types[id] in (1, 6)}
    rank = {tokens[id]: -scores[id] for id in range(len(tokens)) if types[id] == 1}
    return [id for piece in joined(list(plain(text)), rank) for id in by_bytes(piece, ids)]


def merged(text: str) -> list[int]:
    """Gemma 4's: the file's own order of merges, in runs of line breaks and of what is none."""
    tokens, merges = metadata(GEMMA4)["tokenizer.ggml.tokens"], metadata(GEMMA4)["tokenizer.ggml.merges"]
    ids = {token: id for id, token in enumerate(tokens)}
    rank = {merge.replace(" ", ""): float(at) for at, merge in enumerate(merges)}
    runs = re.findall(r"[^\n]+|\n+", plain(text))
    return [id for run in runs for piece in joined(list(run), rank) for id in by_bytes(piece, ids)]


@settings(deadline=None, max_examples=300)
@given(TEXT)
@example("the  theand\n\n of")
def test_pieces_are_those_of_the_definition(text: str) -> None:
    assert SCORED.encode(text, special=False) == scored(text)
    assert MERGED.encode(text, special=False) == merged(text)


@settings(deadline=None, max_examples=200)
@given(TEXT)
def test_nothing_is_lost(text: str) -> None:
    for tokenizer in (SCORED, MERGED):
        ids = tokenizer.encode(text, special=False)
        assert tokenizer.decode(ids).replace(SPACE, " ") == plain(text).replace(SPACE, " ")
        assert tokenizer.min_tokens(text) <= len(ids)


def with_user_defined(*names: str, template: str | None = None) -> Tokenizer:
    plain = metadata(GEMMA3)
    tokens, types, scores = (plain[f"tokenizer.ggml.{key}"] for key in ("tokens", "token_type", "scores"))
    more = keys(
        GEMMA3, tokens=[*tokens, *names], token_type=[*types, *[4] * len(names)], scores=[*scores, *[0.0] * len(names)]
    )
    return Tokenizer.from_metadata(more | ({"tokenizer.chat_template": template} if template else {}))


def test_user_defined_tokens_are_cut_out_of_all_text() -> None:
    """The longest one first, of what a user types too; control tokens only where they are allowed."""
    of = with_user_defined("\n\n", "\n\n\n", "  ", "<b>")
    first = len(metadata(GEMMA3)["tokenizer.ggml.tokens"])
    assert of.encode("\n\n\n\n\n", special=False) == [first + 1, first]
    assert of.encode("a<b>  e", special=False) == [*scored("a"), first + 3, first + 2, *scored("e")]
    assert of.decode([first, first + 2, first + 3]) == "\n\n  <b>"
    assert "<b>" not in of.special
    assert of.encode("<eos>", special=False) == scored("<eos>")
    assert of.encode("<eos>") == [1]


def test_a_token_that_the_template_writes_is_guarded() -> None:
    of = with_user_defined("<turn>", "<b>", template="<turn>{{ messages[0].content }}")
    first = len(metadata(GEMMA3)["tokenizer.ggml.tokens"])
    assert of.special["<turn>"] == first
    prompt = Prompting(of, ChatTemplate.for_tokenizer(of), False).render([{"role": "user", "content": "<turn><b>"}])
    assert prompt.ids == (2, first, *scored("<turn>"), first + 1)


def test_a_prompt_begins_with_bos_once() -> None:
    """Whether or not the template writes it; where the file says so, or its kind of tokenizer does."""
    for template, used in ((TURNS, True), (TURNS.removeprefix("{{ bos_token }}"), True)):
        of = Tokenizer.from_metadata(keys(GEMMA3) | {"tokenizer.chat_template": template})
        asked = [{"role": "user", "content": "the"}]
        prompt = Prompting(of, ChatTemplate.for_tokenizer(of), False).render(asked)
        assert (prompt.ids[0], prompt.ids.count(2)) == (2, 1 if used else 0)
        assert prompt.ids[1] == of.special["<start_of_turn>"]
        assert of.special["<end_of_turn>"] in of.stop_ids
    assert Tokenizer.from_metadata(keys(GEMMA3, add_bos_token=None)).adds_bos
    silent = Tokenizer.from_metadata(keys(GEMMA3, add_bos_token=False))
    assert silent.begun([5, 6]) == [5, 6]
    assert MERGED.begun([5]) == [2, 5]


def test_a_space_stands_before_text_where_the_file_says_so() -> None:
    for told in (None, True):
        of = Tokenizer.from_metadata(keys(GEMMA3, add_space_prefix=told))
        assert of.encode("the", special=False) == scored(" the")
    assert SCORED.encode("the", special=False) == scored("the")


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        (GEMMA3, {"scores": None}, "tokenizer.ggml.scores is missing"),
        (GEMMA3, {"scores": [0.0]}, "scores has 1 entries, expected 384"),
        (GEMMA3, {"scores": ["x"] * 384}, "expected a list of float"),
        (GEMMA3, {"tokens": ["a"] * 384}, "no token <0x00>"),
        (GEMMA3, {"add_bos_token": 3}, "add_bos_token is 3, expected true or false"),
        (GEMMA4, {"merges": None}, "merges is missing"),
        (GEMMA4, {"merges": ["a b c"]}, "merge 0 is 'a b c', expected two tokens"),
        (GEMMA4, {"merges": ["zq qz"]}, "do not fit the vocabulary"),
    ],
)
def test_malformed_vocabularies(name: str, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(FormatError) as caught:
        Tokenizer.from_metadata(keys(name, **changes))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
