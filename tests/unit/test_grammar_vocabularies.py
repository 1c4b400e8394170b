"""Grammars over vocabularies of other kinds: what is drawn among the allowed tokens is the text that was asked for."""

from __future__ import annotations

import json

import numpy as np
import pytest
from test_text_sentence_pieces import MERGED, SCORED
from text_data import metadata, tiny

from dflash_core.constraints.grammar import Grammar, Grammars
from dflash_core.errors import GrammarError
from dflash_core.text.detokenizer import Detokenizer
from dflash_core.text.tokenizer import Tokenizer

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
        assert not (mask[tokenizer.vocab_size :] == 0).any(), "ids without a token"
        allowed = np.flatnonzero(mask == 0)
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


def test_a_vocabulary_without_an_end() -> None:
    endless = Tokenizer.from_metadata(metadata(eos_token_id=None, token_type=None))
    assert not endless.stop_ids
    with pytest.raises(GrammarError):
        Grammars(endless, endless.vocab_size).constraint(Grammar.choice(["a"]))
