"""How the way to run a product is chosen and stored: a simulated clock, given times, and invalid files."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")
from dflash_core.backends.cuda import tuning
from dflash_core.backends.cuda.plan import Card, Product, Shape, Way, plan
from dflash_core.backends.cuda.tuning import Choice, Identity, Tuning
from dflash_core.bench.kernels import products_27b
from dflash_core.errors import UnsupportedError
from dflash_core.progress import silent

KIB = 1 << 10
H200, SMALL = Card(132, 227 * KIB, overlaps=True), Card(82, 99 * KIB)
CARDS = {"H200": H200, "A100": Card(108, 163 * KIB), "3090": SMALL, "5090": Card(170, 99 * KIB, overlaps=True)}
PRODUCTS = [one.planned for one in dict.fromkeys(products_27b())]
HERE = Identity("A card", 132, "580.1", "abc")


class Clock:
    """A clock that advances by each measured time."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def measured(clock: Clock, seconds: Callable[[Way, int], float]) -> tuning.Measure:
    def measure(product: Product, way: Way, width: int) -> float:
        taken = seconds(way, width)
        clock.now += taken
        return taken

    return measure


@pytest.mark.parametrize("card", CARDS.values(), ids=CARDS)
def test_few_candidates_that_the_card_can_run(card: Card) -> None:
    for product in PRODUCTS:
        ways = tuning.candidates(product, card)
        assert ways[0] == Way()
        assert len(ways) == len(set(ways)) <= tuning.MOST_CANDIDATES
        default = plan(product.shapes, product.columns, card, rounding=product.rounding, split_k=product.split_k)
        for way in ways:
            here, rounding = replace(card, way=way), product.rounding
            deal = plan(product.shapes, product.columns, here, rounding=rounding, split_k=product.split_k)
            assert deal.shared_bytes(24) <= card.shared_bytes
            assert len(deal.passes(64)) <= len(default.passes(64)), "weights are read no more often"
            assert not product.split_k or deal.split_k == product.split_k
            assert deal.partial_bytes <= max(4_000_000, default.partial_bytes)
    assert max(len(tuning.candidates(product, card)) for product in PRODUCTS) > 2


def test_a_faster_way_is_taken() -> None:
    fast = Way(chunked=True)
    clock = Clock()
    found = tuning.tune(
        PRODUCTS[:2],
        H200,
        measured(clock, lambda way, width: (0.9 if way == fast else 1.0) * 1e-5 * width),
        silent,
        clock,
    )
    for product in PRODUCTS[:2]:
        choice = found[str(product)]
        assert choice.way == fast
        assert choice.us == pytest.approx(0.9 * choice.default_us)
        assert choice.us < choice.runner_up_us
        assert choice.runner_up is not None
    known = Tuning(HERE, found)
    assert known.ways_of("a target") == (), "whole passes have not been timed"
    rounds = {1: [5e-3] * 3, 24: [7e-3] * 3}
    assert known.with_gain("a target", rounds, {1: [4.97e-3] * 3, 24: [6.95e-3] * 3}).ways_of("a target") == ()
    known = known.with_gain("a target", rounds, {1: [4.8e-3] * 3, 24: [6.8e-3] * 3})
    card = replace(H200, ways=known.ways_of("a target"))
    assert plan(PRODUCTS[0].shapes, PRODUCTS[0].columns, card).way == fast
    assert plan(PRODUCTS[3].shapes, PRODUCTS[3].columns, card).way == Way(), "of others nothing is known"


def test_both_widths_count_and_the_wider_one_twice() -> None:
    """One way for all widths: a gain at one row that is lost again at 24 is no gain."""
    mixed = Way(chunked=True)
    rounds = {1: [1e-5] * 7, 24: [1e-5] * 7}
    times = {Way(): rounds, mixed: {1: [0.8e-5] * 7, 24: [1.15e-5] * 7}}
    assert tuning.choose(times).way == Way()
    assert tuning.choose({**times, mixed: {1: [1.15e-5] * 7, 24: [0.8e-5] * 7}}).way == mixed


def test_a_small_gain_is_refused() -> None:
    times = {Way(): {1: [1e-5] * 7, 24: [1e-5] * 7}, Way(split_k=2): {1: [0.985e-5] * 7, 24: [0.985e-5] * 7}}
    choice = tuning.choose(times)
    assert choice.way == Way()
    assert choice.runner_up == Way(split_k=2), "it is shown all the same"


def test_a_card_whose_times_scatter_keeps_its_plans() -> None:
    scattered = [1e-5, 1.4e-5, 1e-5, 1.5e-5, 1e-5, 1.4e-5, 1e-5]
    times = {Way(): {1: scattered, 24: scattered}, Way(chunked=True): {1: [0.5e-5] * 7, 24: [0.5e-5] * 7}}
    choice = tuning.choose(times)
    assert choice.way == Way()
    assert choice.unsteady
    found = Tuning(HERE, {"a product": choice})
    assert found.ways == ()
    assert "varied by 40% (expected at most 10%: the card is throttled or shared)" in found.note
    assert "doctor --tune" in found.note


def test_one_interrupted_round_is_no_scatter() -> None:
    times = {Way(): {1: [1e-5] * 6 + [9e-5], 24: [1e-5] * 7}, Way(chunked=True): {1: [0.5e-5] * 7, 24: [0.5e-5] * 7}}
    choice = tuning.choose(times)
    assert choice.way == Way(chunked=True)
    assert not choice.unsteady
    assert Tuning(HERE, {"a product": choice}).note == ""


def test_timing_ends_within_its_budget() -> None:
    """On a slow card the rest is left for the next load; what was begun is finished."""
    clock = Clock()
    found = tuning.tune(PRODUCTS, H200, measured(clock, lambda way, width: 0.05), silent, clock)
    assert 0 < len(found) < len(PRODUCTS)
    assert clock.now < tuning.BUDGET_S + tuning.MOST_CANDIDATES * tuning.ROUNDS * 2 * 0.05 + 1e-6
    rest = [product for product in PRODUCTS if not Tuning(HERE, found).knows(product, H200)]
    assert rest == PRODUCTS[len(found) :]


def test_candidates_take_turns() -> None:
    order: list[Way] = []
    tuning.tune(PRODUCTS[:1], H200, lambda product, way, width: order.append(way) or 1e-5, silent)
    ways = list(tuning.candidates(PRODUCTS[0], H200))
    assert order[: len(ways)] == ways
    assert order[len(ways) : 2 * len(ways)] == ways[::-1]


# ---- What is kept ---------------------------------------------------------------------------------------------------


def some(way: Way = Way(chunked=True)) -> Tuning:  # noqa: B008 - frozen
    choice = Choice(way, 9.0, 10.0, Way(split_k=2), 9.5, 0.01)
    return Tuning(
        HERE, {str(PRODUCTS[0]): choice}, {"a target": {1: 5.5, 24: 6.9}}, {"a target": {"ar": 5.6}},
        {"a target": 0.03}, {"a target": {256: 60.7, 1024: 121.0}},
    )  # fmt: skip


def test_what_was_kept_comes_back(tmp_path: Path) -> None:
    assert tuning.store(tmp_path, some()) == ""
    assert tuning.load(tmp_path, HERE) == (some(), "")
    assert [path.name for path in tmp_path.iterdir()] == ["tuning-A-card.json"]


def test_nothing_is_kept_yet(tmp_path: Path) -> None:
    assert tuning.load(tmp_path / "nowhere", HERE) == (Tuning(HERE), "")


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"driver": "590.2"}, "kernels were timed under driver 580.1, this is 590.2; they are timed again"),
        ({"kernels": "def"}, "kernels were timed before their sources or the compiler changed; they are timed again"),
        ({"multiprocessors": 66}, "kernels were timed on A card with 132 multiprocessors; they are timed again"),
    ],
    ids=["driver", "kernels", "card"],
)
def test_it_holds_for_this_card_driver_and_kernels_alone(tmp_path: Path, changed: dict[str, object], why: str) -> None:
    tuning.store(tmp_path, some())
    now = replace(HERE, **changed)
    assert tuning.load(tmp_path, now) == (Tuning(now), why)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '{"format": 4}',
        '{"format": 4, "identity": 3, "choices": {}, "passes": {}, "steps": {}, "gains": {}, "chunks": {}}',
        "way",
        "us",
        "huge",
        "[" * 100_000,
        "\x00\xff",
    ],
)
def test_a_damaged_file_is_measured_again(tmp_path: Path, text: str) -> None:
    tuning.store(tmp_path, some())
    path = tuning.path_of(tmp_path, HERE.card)
    if text in ("way", "us", "huge"):
        data = json.loads(path.read_text())
        choice = next(iter(data["choices"].values()))
        choice |= {"way": {"way": "prefetch=much"}, "us": {"us": "fast"}, "huge": {"us": 10**400}}[text]
        text = json.dumps(data)
    path.write_text(text)
    assert tuning.load(tmp_path, HERE) == (Tuning(HERE), "tuning-A-card.json is damaged; kernels are timed again")


def test_a_file_of_another_format_is_passed_over(tmp_path: Path) -> None:
    tuning.path_of(tmp_path, HERE.card).write_text('{"format": 99}')
    assert tuning.load(tmp_path, HERE) == (Tuning(HERE), "")


def test_more_parts_than_there_are_tiles_are_refused() -> None:
    with pytest.raises(UnsupportedError):
        plan([Shape("Q4_K", 64)], 512, replace(H200, way=Way(split_k=3)))


def test_a_choice_that_is_no_candidate_is_measured_again() -> None:
    assert some().knows(PRODUCTS[0], H200)
    assert not some(Way(split_k=31)).knows(PRODUCTS[0], H200)
    assert not some().knows(PRODUCTS[1], H200)
    always = replace(SMALL, shared_bytes=40 << 10)
    assert some().knows(PRODUCTS[-1], always), "the head fits in no other way than in chunks: nothing to measure"


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "kernel timings cannot be saved in " in tuning.store(tmp_path / "file", some())
