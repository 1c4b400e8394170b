"""Grammars over vocabularies of other kinds: what is drawn among the allowed tokens is the text that was asked for."""

from __future__ import annotations

import json
import threading
from typing import Any

import numpy as np
import pytest
from test_text_sentence_pieces import MERGED, SCORED
from text_data import metadata, tiny

from dflash_core.constraints import grammar as grammar_file
from dflash_core.constraints.grammar import MAX_LATE, Grammar, Grammars
from dflash_core.errors import GrammarError
from dflash_core.text.tokenizer import Detokenizer, Tokenizer
from support.masks import ids_of

pytest.importorskip("llguidance")

TOKENIZERS = {"bytes": tiny(), "sentence pieces": SCORED, "merged pieces": MERGED}
SCHEMA = {"type": "object", "properties": {"a b": {"enum": ["ä <é>", "\U0001f642", " x  y "]}, "n": {"const": -10}},
          "required": ["a b", "n"], "additionalProperties": False}  # fmt: skip


def drawn(tokenizer: Tokenizer, grammar: Grammar, seed: int) -> str:
    """A text of random allowed tokens."""
    rng = np.random.default_rng(seed)
    constraint = Grammars(tokenizer, tokenizer.vocab_size + 5).constraint(grammar)
    ids: list[int] = []
    while True:
        mask = constraint.allowed(())
        assert mask is not None
        allowed = ids_of(mask)
        assert allowed.max() < tokenizer.vocab_size, "ids without a token"
        assert all(constraint.admits((), int(id)) for id in allowed)
        token = int(rng.choice(allowed))
        if token in tokenizer.stop_ids:
            break
        assert token not in tokenizer.special.values()
        ids.append(token)
        constraint.add([token])
    detokenizer = Detokenizer(tokenizer)
    return detokenizer.push(ids) + detokenizer.finish()


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_the_text_conforms(kind: str) -> None:
    for seed in range(4):
        value = json.loads(drawn(TOKENIZERS[kind], Grammar.schema(SCHEMA), seed))
        assert value["a b"] in SCHEMA["properties"]["a b"]["enum"]  # type: ignore[index]
        assert value["n"] == -10
        assert drawn(TOKENIZERS[kind], Grammar.choice(["é <|im_end|> <eos>"]), seed) == "é <|im_end|> <eos>"


@pytest.mark.parametrize(("pattern", "text"), [("a/b", "a/b"), (r"a\/b", "a/b"), (r"a\\/b", "a\\/b"), ("^a$", "a")])
def test_slashes_and_anchors_of_a_regular_expression(pattern: str, text: str) -> None:
    assert drawn(SCORED, Grammar("regex", pattern), 1) == text


def test_a_vocabulary_without_an_end() -> None:
    endless = Tokenizer.from_metadata(metadata(eos_token_id=None, token_type=None))
    assert not endless.stop_ids
    with pytest.raises(GrammarError):
        Grammars(endless, endless.vocab_size).constraint(Grammar.choice(["a"]))


def test_what_takes_too_long_to_compile_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller goes on; where too many such go on too, nothing else is compiled until they end."""
    grammars = Grammars(SCORED, SCORED.vocab_size)
    grammars.constraint(Grammar.choice(["known"]))
    release, compiled = threading.Event(), Grammars._compile

    def slow(self: Grammars, grammar: Grammar, around: str) -> Any:
        assert release.wait(60)
        return compiled(self, grammar, around)

    with monkeypatch.context() as patch:
        patch.setattr(Grammars, "_compile", slow)
        patch.setattr(grammar_file, "COMPILE_S", 0.01)
        for at in range(MAX_LATE):
            with pytest.raises(GrammarError, match="takes more than"):
                grammars.constraint(Grammar.choice([f"slow {at}"]))
    with pytest.raises(GrammarError, match="still being compiled"):
        grammars.constraint(Grammar.choice(["next"]))
    grammars.constraint(Grammar.choice(["known"]))
    release.set()
    for late in grammars._late:
        late.join()
    grammars.constraint(Grammar.choice(["next"]))


@pytest.mark.parametrize(("grammar", "words"), [
    (Grammar("lark", "start: ("), "this grammar cannot be followed"),
    (Grammar("regex", "("), "this regex cannot be followed"),
])  # fmt: skip
def test_a_refusal_names_what_was_given(grammar: Grammar, words: str) -> None:
    with pytest.raises(GrammarError, match=words):
        Grammars(SCORED, SCORED.vocab_size).constraint(grammar)
