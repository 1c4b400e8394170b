"""Axes as they are typed, every combination, and what is refused with the range that is allowed."""

from __future__ import annotations

import pytest

from dflash_core.drafters.capabilities import Capabilities
from dflash_core.errors import KnobError
from dflash_core.knobs import Knobs
from dflash_core.lab.grid import MAX_SETTINGS, parse_axes, parse_axis, parse_pair, settings
from dflash_core.limits import Limits

PAIR = Limits(Capabilities("dflash", 16), context_length=4096)
ALONE = Limits(None, context_length=4096)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("budget=4,15,22", (4, 15, 22)),
        ("budget=22,4,22", (22, 4)),
        ("budget=4..63", (4, 12, 20, 28, 36, 44, 52, 60, 63)),
        ("budget=4..63:8", (4, 12, 20, 28, 36, 44, 52, 60, 63)),
        ("budget=4..12:4", (4, 8, 12)),
        ("budget=1..8", (1, 2, 3, 4, 5, 6, 7, 8)),
        ("budget=5..5", (5,)),
        ("budget=4,8..10", (4, 8, 9, 10)),
        ("p_min=0..0.5", (0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5)),
        ("p_min=0..0.3:0.1", (0, 0.1, 0.2, 0.3)),
        ("chain_seed=on,off", (True, False)),
        ("mode = chain, tree", ("chain", "tree")),
        ("temperature=0..5", (0, 0.5, 1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5, 5)),
    ],
)
def test_values(text: str, values: tuple[object, ...]) -> None:
    axis = parse_axis(text)
    assert axis.values == values
    assert [type(value) for value in axis.values] == [type(axis.spec.default)] * len(values)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("budget", "expected NAME=VALUES"),
        ("budget=", "expected NAME=VALUES"),
        ("=4", "expected NAME=VALUES"),
        ("bugdet=4", "did you mean budget"),
        ("budget=0,4", "expected 1 to 256"),
        ("budget=4..300", "expected 1 to 256"),
        ("budget=4..", "expected a whole number from 1 to 256"),
        ("budget=20..4", "runs backwards; write 4..20"),
        ("budget=4..20:0", "is not a whole number above 0"),
        ("budget=4..20:0.5", "is not a whole number above 0"),
        ("p_min=0..1:nan", "is not a number above 0"),
        ("p_min=0..1:1e-9", "at most 256"),
        ("p_min=0,1.5", "expected 0 to 1"),
        ("mode=chain..tree", "a range needs numbers"),
        ("mode=forest", "expected auto, tree, chain, plain"),
    ],
)
def test_refused_axes(text: str, message: str) -> None:
    with pytest.raises(KnobError, match=message):
        parse_axis(text)


def test_axes_in_words_and_pairs() -> None:
    assert parse_axes(["budget", "4..8:4", "p_min=0,0.1"]) == parse_axes(["budget=4..8:4", "p_min", "0,0.1"])
    for words in (["budget=4,", "8"], ["budget", "4,", "8"], ["budget", "4,8"]):
        assert parse_axes(words) == parse_axes(["budget=4,8"])
    for words, message in (
        ([], "expected one or two"),
        (["budget=1", "p_min=0", "top_k=1"], "expected one or two"),
        (["budget=4", "budget=5"], "is given twice"),
        (["budget"], "expected NAME=VALUES"),
    ):
        with pytest.raises(KnobError, match=message):
            parse_axes(words)


def test_every_combination_over_the_base() -> None:
    base = Knobs(temperature=0.7, max_tokens=30)
    grid = settings(parse_axes(["budget=4,15", "p_min=0,0.1"]), base, PAIR)
    assert [(s.knobs.budget, s.knobs.p_min) for s in grid] == [(4, 0), (4, 0.1), (15, 0), (15, 0.1)]
    assert {(s.knobs.temperature, s.knobs.max_tokens) for s in grid} == {(0.7, 30)}
    assert [s.label for s in grid][1] == "tree budget 4, p_min 0.1"


@pytest.mark.parametrize(
    ("words", "base", "limits", "message"),
    [
        (["budget=4,15"], Knobs(), ALONE, "no drafter is loaded"),
        (["mode=ar,tree"], Knobs(), ALONE, "expected plain or auto"),
        (["p_min=0,0.5"], Knobs(drafting="plain"), PAIR, "drafting is plain"),
        (["mode=ar,tree", "budget=4"], Knobs(), PAIR, "plain has no size; sweep sizes with mode=tree or mode=chain"),
        (["mode=auto,tree", "budget=4"], Knobs(), PAIR, "auto has no size"),
        (["policy=auto,fixed"], Knobs(), PAIR, "sweep whole settings: drafting=auto,tree=8"),
        (["tree_width=1,2"], Knobs(drafting="chain 22"), PAIR, "changes nothing in a chain"),
        (["budget=4,22"], Knobs(drafting="chain 22"), PAIR, "expected 1 to 15"),
        (["mode=chain,tree", "budget=15,22"], Knobs(), PAIR, "expected 1 to 15"),
        (["max_tokens=1,8"], Knobs(), PAIR, "expected 2 or more"),
        (["max_tokens=8,4096"], Knobs(), PAIR, "expected 1 to 4,095"),
        (["budget=1..64:1", "p_min=0..1:0.1"], Knobs(), PAIR, "704 combinations, at most 256"),
    ],
)
def test_impossible_combinations(words: list[str], base: Knobs, limits: Limits, message: str) -> None:
    with pytest.raises(KnobError, match=message):
        settings(parse_axes(words), base, limits)


def test_as_many_as_allowed() -> None:
    assert len(settings(parse_axes(["budget=1..256:1"]), Knobs(), PAIR)) == MAX_SETTINGS


@pytest.mark.parametrize("mode", ["plain", "chain", "tree", "auto"])
def test_what_a_plain_chain_can_sweep(mode: str) -> None:
    """A parameter that has nothing to do with drafts goes with every mode, with or without a drafter."""
    for limits in (PAIR, ALONE):
        assert len(settings(parse_axes(["temperature=0,1"]), Knobs().replace(mode=mode), limits)) == 2


def test_pairs() -> None:
    base = Knobs(max_tokens=50).fixed()
    a, b = parse_pair("", base, PAIR)
    assert (a.knobs.mode, b.knobs.mode) == ("chain", "tree")
    a, b = parse_pair("budget=40", base, PAIR)
    assert (a.knobs, b.knobs) == (base, base.replace(budget=40))
    assert (a.label, b.label) == ("drafting auto (now)", "budget=40")
    a, b = parse_pair("budget=40 | ", base, PAIR)
    assert (a.label, b.label) == ("budget=40", "now")
    a, b = parse_pair("temperature=0.5 seed=1 | temperature=0.5 seed=2", base, PAIR)
    assert (a.knobs.seed, b.knobs.seed) == (1, 2)
    for text, message in (
        ("seed=0", "both settings are the same"),
        ("budget", "expected NAME=VALUE"),
        ("budget=999 | budget=1", "expected 1 to 256"),
        ("mode=ar p_min=0.5", "changes nothing where drafting is plain"),
    ):
        with pytest.raises(KnobError, match=message):
            parse_pair(text, base, PAIR)
    with pytest.raises(KnobError, match="no drafter"):
        parse_pair("", base, ALONE)
