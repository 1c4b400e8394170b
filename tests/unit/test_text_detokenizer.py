from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st
from text_data import END_THINK, IM_END, THINK, tiny

from dflash_core.text.tokenizer import Detokenizer

TINY = tiny()
BYTE_IDS = {TINY.token_bytes(id): id for id in range(TINY.vocab_size)}
# Any ids at all, and ids that are single bytes of real characters, so that whole and broken ones both occur.
BYTES = st.text(max_size=6).flatmap(
    lambda text: st.sampled_from([text.encode(), text.encode()[:-1], text.encode()[1:]])
)
IDS = st.lists(
    st.lists(st.integers(0, TINY.vocab_size + 3), max_size=3)
    | BYTES.map(lambda data: [BYTE_IDS[bytes([byte])] for byte in data]),
    max_size=8,
).map(lambda parts: list(itertools.chain(*parts)))


@settings(deadline=None, max_examples=400)
@given(IDS, st.data())
def test_any_split_gives_the_text_of_the_whole(ids: list[int], data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(ids)), max_size=6)))
    detokenizer = Detokenizer(TINY)
    pieces = [detokenizer.push(ids[start:end]) for start, end in zip([0, *cuts], [*cuts, len(ids)])]
    assert "".join(pieces) + detokenizer.finish() == TINY.decode(ids)


@settings(deadline=None, max_examples=200)
@given(st.text(max_size=30))
def test_valid_text_never_shows_half_a_character(text: str) -> None:
    detokenizer = Detokenizer(TINY)
    shown = ""
    for byte in text.encode():
        shown += detokenizer.push([BYTE_IDS[bytes([byte])]])
        assert text.startswith(shown)
    assert shown == text
    assert detokenizer.finish() == ""


def test_a_broken_character_shows_as_soon_as_it_is_certain() -> None:
    detokenizer = Detokenizer(TINY)
    euro = [BYTE_IDS[bytes([byte])] for byte in "€".encode()]
    assert detokenizer.push(euro[:2]) == ""
    assert detokenizer.push(TINY.encode("a")) == "\ufffda"
    assert detokenizer.push(euro[:1]) == ""
    assert detokenizer.finish() == "\ufffd"


def test_think_tags_pass_and_control_tokens_do_not() -> None:
    detokenizer = Detokenizer(TINY)
    assert detokenizer.push([THINK, *TINY.encode("a"), END_THINK, *TINY.encode("b"), IM_END]) == "<think>a</think>b"
