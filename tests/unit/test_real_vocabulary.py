"""The vocabularies of Qwen3.6 and Qwen3 against tiktoken, and what the memory plan says about them."""

from __future__ import annotations

import random
import sys
import unicodedata
from functools import cache
from pathlib import Path

import pytest

from dflash_core.text import vocabulary
from dflash_core.text.tokenizer import Tokenizer
from support import real_vocabulary
from support.processes import run_python

pytestmark = [
    pytest.mark.vocabulary,
    pytest.mark.skipif(bool(real_vocabulary.missing()), reason=real_vocabulary.missing() or "there"),
]
PRES = sorted(real_vocabulary.FILES)
ROOT = Path(__file__).parents[2]
COUNT = 4_000
# fmt: off
RANGES = (
    (0x20, 0x7F), (0xA0, 0x250), (0x300, 0x370), (0x400, 0x460), (0x900, 0x980), (0x1100, 0x1200), (0x4E00, 0x9FA6),
    (0xAC00, 0xD7A4), (0x1F300, 0x1F650),
)
PARTS = (
    " ", "  ", "\n", "\r\n", "\t", "'s", "'LL", "don't", "1234", "def f(x):", "...", "//", "\u3000", "\u200d", "한국어",
)
# fmt: on


@cache
def ours(pre: str) -> Tokenizer:
    return Tokenizer.from_metadata(real_vocabulary.metadata(pre))


def _string(rng: random.Random) -> str:
    low, high = rng.choice(RANGES)
    letters = [chr(rng.randrange(low, high)) for _ in range(rng.randrange(1, 12))]
    return "".join(rng.choice([rng.choice(PARTS), rng.choice(letters)]) for _ in range(rng.randrange(1, 16)))


@pytest.mark.parametrize("pre", PRES)
def test_ids_are_those_of_tiktoken(pre: str) -> None:
    """Over every page of the docs, lines of code, and random strings of many scripts."""
    rng, oracle, tokenizer = random.Random(7), real_vocabulary.oracle(pre), ours(pre)
    texts = [_string(rng) for _ in range(COUNT)]
    texts += [page.read_text() for page in sorted((ROOT / "docs").glob("*.md"))]
    for text in texts:
        composed = unicodedata.normalize("NFC", text)
        assert tokenizer.encode(text, special=False) == oracle.encode_ordinary(composed), text[:80]
        assert tokenizer.decode(oracle.encode_ordinary(composed)) == composed


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc and returns memory to Linux")
def test_the_memory_plan_knows_what_it_takes(tmp_path: Path) -> None:
    """Code and first answers have a fixed share of it; no answer is given here."""
    path = tmp_path / "vocabulary.gguf"
    keys = real_vocabulary.metadata("qwen35")
    real_vocabulary.write(path, keys)
    code = f"""
from dflash_core import memory
from dflash_core.formats.gguf import open_gguf
from dflash_core.text.template import ChatTemplate
from dflash_core.text.tokenizer import Tokenizer
before = memory.host_memory().process
file = open_gguf({str(path)!r})
tokenizer = Tokenizer.from_metadata(file.metadata)
memory.give_back()
print(memory.host_memory().process - before)
"""
    taken, fixed = int(run_python(code)), vocabulary.FIXED
    assert taken == pytest.approx(vocabulary.vocabulary_bytes(keys) - fixed, abs=12 << 20)
    assert vocabulary.vocabulary_bytes({}) == fixed


@pytest.mark.parametrize("pre", PRES)
def test_text_of_a_mac_costs_no_more_tokens(pre: str) -> None:
    korean = "한국어로 짧은 편지를 써 주세요"
    apart = unicodedata.normalize("NFD", korean)
    assert len(apart) > 2 * len(korean)
    assert ours(pre).encode(apart) == ours(pre).encode(korean)
