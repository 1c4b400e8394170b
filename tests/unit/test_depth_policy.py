"""How many tokens an MTP head drafts under auto: by its accept rates and the time of its passes on this machine."""

from __future__ import annotations

import numpy as np
import pytest
from tools.bench.replay import GivenCosts

from dflash_core import Knobs
from dflash_core.drafters.capabilities import Capabilities
from dflash_core.policy.arm import FIRST_STEPS, Arm, Depths, PairState
from dflash_core.policy.auto import AutoPolicy
from dflash_core.policy.base import Decision
from dflash_core.policy.costs import CPU, H200
from dflash_core.policy.queued import QueuedPolicy
from support.drafted import proven


def driven(chance: float, pass_ms: float, rate: float, steps: int = 400) -> list[int]:
    """The depths chosen where every token is right with probability `chance`."""
    rng, depths, taken = np.random.default_rng(2), Depths(), list[int]()
    for _ in range(steps):
        drafted = depths.best(rate)
        taken.append(drafted)
        right = rng.random(drafted) < chance
        depths.add(drafted, drafted if right.all() else int(right.argmin()), drafted * pass_ms)
    return taken


@pytest.mark.parametrize(("chance", "pass_ms", "best"), [(0.9, 0.35, 8), (0.7, 0.35, 4), (0.7, 1.0, 1), (0.3, 0.35, 1)])
def test_as_deep_as_the_next_token_pays(chance: float, pass_ms: float, best: int) -> None:
    """At half a token per millisecond a pass of 0.35 ms costs 0.18 tokens: 0.7 to the 4th is 0.24, to the 5th 0.17."""
    taken = driven(chance, pass_ms, rate=0.5)
    assert taken[:FIRST_STEPS] == [3] * FIRST_STEPS
    assert abs(np.median(taken[100:]) - best) <= 1
    if best < 8:
        assert max(taken[100:]) > np.median(taken[100:]), "a token more is tried now and then"


def test_a_drafter_that_becomes_better_is_followed() -> None:
    depths = Depths()
    for _ in range(60):
        depths.add(depths.best(0.5), 0, depths.best(0.5) * 0.35)
    assert depths.best(0.5) <= 2
    for _ in range(800):
        drafted = depths.best(0.5)
        depths.add(drafted, drafted, drafted * 0.35)
    assert depths.best(0.5) >= 6


@pytest.mark.parametrize("kind", ["mtp", "dflash"])
def test_only_a_head_of_one_token_at_a_time_and_only_where_nobody_set_it(kind: str) -> None:
    drafter = Capabilities(kind, 9, on_device=True)
    late, lock_step = (Arm(drafter, PairState(), GivenCosts(shape)) for shape in (H200, CPU))
    for policy in (proven(QueuedPolicy(late)), AutoPolicy([lock_step])):
        policy.begin([1, 2], frozenset())
        assert policy.next(Knobs()).depth == (3 if kind == "mtp" else 0)
        assert policy.next(Knobs(mtp_depth=5)).depth == 0
        assert policy.next(Knobs(drafting="tree 22")).depth == 0
        assert policy.next(Knobs(drafting="auto up to 22", mtp_depth=2)).depth == (2 if kind == "mtp" else 0)
    assert Decision("tree", 3, "", depth=6).drafting(Knobs()).mtp_depth == 6
    assert Decision("tree", 3, "").drafting(Knobs()) == Knobs()
