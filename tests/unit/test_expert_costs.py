"""What a pass through experts costs by its rows, where it was not measured, and what `auto` makes of it."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
from dflash_core.backends.cuda.footprint import Footprint
from dflash_core.bench.replay import GivenCosts
from dflash_core.bench.synthetic_models import SIZE_27B, SIZE_35B_A3B, Model
from dflash_core.knobs import Knobs
from dflash_core.policy.costs import H200, Shape
from dflash_core.policy.learned import LearnedPolicy
from dflash_core.policy.pair import PairState
from support.counting import CountingBackend
from support.deciding import decoded
from support.kernel_variants import CARDS, header


def footprint(model: Model) -> Footprint:
    spec = model.target()
    return Footprint(header(model.name, spec.tensors(), model.storage_types), spec, CARDS["sm_90a"])


def most_tokens(shape: Shape, chance: float) -> int:
    """The nodes of the chain that brings the most tokens per millisecond, each accepted with this chance behind the
    one before; 0 where plain decoding brings more."""
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


def test_auto_takes_them() -> None:
    """The same drafter, right three tokens at a time: where rows are dear there are no more of them than that."""
    taken = []
    for model in (SIZE_27B, SIZE_35B_A3B):
        costs = GivenCosts(H200.reading(footprint(model).more_bytes))
        policy = LearnedPolicy(CountingBackend().capabilities, PairState(), costs, pausing=False)
        steps = decoded(CountingBackend(right=3, block=16), Knobs(from_text=False), policy, 200)
        taken.append(max(len(step.tree.tokens) for step in steps[-40:]))
    dense, experts = taken
    assert experts <= 8 < dense
