"""The estimated time of a pass through experts by its rows, and what `auto` chooses by it."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")
from tools.bench.replay import AlwaysDrafting, GivenCosts

from dflash_core.backends.cuda.machine import CudaMachine
from dflash_core.backends.cuda.memory_estimator import Footprint
from dflash_core.backends.cuda.timings import Timings
from dflash_core.bench.synthetic_models import SIZE_27B, SIZE_35B_A3B, Model, target_types
from dflash_core.knobs import Knobs
from dflash_core.policy.arm import Arm, PairState
from dflash_core.policy.costs import H200, CostTable
from support.counting import CountingBackend
from support.deciding import decoded
from support.kernel_variants import CARDS, header

BENCH = Path(__file__).parents[2] / "docs" / "bench"
TREES = ("tree 15", "tree 23", "tree 39", "tree 63")


def footprint(model: Model) -> Footprint:
    spec = model.target()
    return Footprint(header(model.name, spec.tensors(), target_types(spec, model)), spec, CARDS["sm_90a"])


def most_tokens(shape: CostTable, chance: float) -> int:
    """How many nodes the chain has that brings the most tokens per millisecond, if each node is accepted with this
    chance once the one before it is; 0 where plain decoding brings more."""
    curve, rates = shape.curve(), [1 / shape.plain]
    brought = 1.0
    for nodes in range(1, 16):
        brought += chance**nodes
        rates.append(brought / curve[nodes + 1])
    return max(range(16), key=rates.__getitem__)


def test_a_pass_reads_the_experts_that_its_rows_touch() -> None:
    experts = footprint(SIZE_35B_A3B)
    routed = 40 * 256 * 3 * 512 * 2048 * (2 * 4.5 + 5.5) / 3 / 8
    read = experts.target_bytes - routed
    for rows in (1, 8, 24, 64):
        touched = 1 - (1 - 8 / 256) ** rows
        expected = (read + routed * touched) / (read + routed * 8 / 256)
        assert experts.more_bytes(rows) == pytest.approx(expected, rel=1e-3)
    assert footprint(SIZE_27B).more_bytes(64) == 1


def test_chains_are_short_where_a_node_costs_its_own_experts() -> None:
    dense, experts = (H200.reading(footprint(model).more_bytes) for model in (SIZE_27B, SIZE_35B_A3B))
    assert dense == H200
    assert [most_tokens(dense, chance) for chance in (0.5, 0.8)] == [7, 15]
    assert [most_tokens(experts, chance) for chance in (0.5, 0.8)] == [0, 7]


def most_rows(shape: CostTable) -> int:
    """The most rows of a step that auto settles on, with a drafter that is right for five tokens at a time."""
    policy = AlwaysDrafting([Arm(CountingBackend().capabilities, PairState(), GivenCosts(shape))])
    steps = decoded(CountingBackend(right=5, block=16), Knobs(from_text=False), policy, 200)
    return max(len(step.tree.tokens) for step in steps[-40:])


def test_auto_takes_them() -> None:
    """With the same drafter: where rows are expensive, fewer of them are verified."""
    dense, experts = (most_rows(H200.reading(footprint(model).more_bytes)) for model in (SIZE_27B, SIZE_35B_A3B))
    assert experts <= 8 < dense


def recorded(name: str) -> dict[int, float]:
    """Milliseconds of a verify pass by its width on an H200, from docs/bench; that of 8 rows is interpolated, as the
    number of experts read grows with the rows."""
    cases = json.loads((BENCH / f"{name}-steps.json").read_text())["cases"]
    found = {case["nodes"]: case["stages"]["verify"] for case in cases if case["name"] in ("plain", *TREES)}
    found[8] = found[1] + (found[16] - found[1]) * 7 / 15
    return dict(sorted(found.items()))


def test_auto_takes_them_by_what_was_measured() -> None:
    """A first load times a pass of every width, with experts as with dense layers; `auto` gets these times."""
    taken = []
    for model, name in ((SIZE_27B, "h200"), (SIZE_35B_A3B, "h200-35b-a3b")):
        known = Timings("abc", {"it": recorded(name)})
        device = SimpleNamespace(runtime=SimpleNamespace(card=SimpleNamespace(name="A card")))
        machine = CudaMachine(device, footprint(model), SimpleNamespace(timings=known))  # type: ignore[arg-type]
        machine.recall("it")
        shape = machine.step_costs(SimpleNamespace(on_device=True))  # type: ignore[arg-type]
        assert shape is not None
        assert shape.steps == {rows: pytest.approx(ms + shape.draft) for rows, ms in machine.passes.items()}
        taken.append(most_rows(shape))
    dense, experts = taken
    assert experts <= 8 < dense
