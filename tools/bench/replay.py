"""Replays policies on recorded answers: exact tokens per step and projected speeds, without a model.

    python -m tools.bench.replay FOLDER

reads every set in the folder (`tools/train_demo/record_drafts.py` records them) and prints a table per cost curve.
Speeds are projections: tokens over the sum of what the steps cost by the curve.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dflash_core.drafters.capabilities import Capabilities
from dflash_core.events import StageTimes, StepDrafts, StepEvent, StepTree
from dflash_core.knobs import Knobs
from dflash_core.policy.arm import Arm, PairState
from dflash_core.policy.auto import AutoPolicy
from dflash_core.policy.base import LATELY, Policy
from dflash_core.policy.best_first import DEEPEST
from dflash_core.policy.choosing import Picked
from dflash_core.policy.costs import CPU, H200, WIDTHS, CostTable, StepCosts
from dflash_core.tree import NO_CANDIDATES, Candidates, build
from tools.bench.recorded import Recorded, load
from tools.bench.tool import run_tool

CONSUMER = CostTable(
    {1: 29.5, 8: 30.0, 16: 30.8, 24: 32.0, 32: 33.5, 40: 40.0, 48: 46.0, 64: 58.0}, plain=26.5, draft=3.0,
    widths=WIDTHS,
)  # fmt: skip
"""A 27B pair on a consumer card: plain decoding measured, the rest assumed."""
CURVES = {"h200": H200, "consumer": CONSUMER, "cpu": CPU}
RECORDED = Capabilities("recorded", 16)
UNDERSTATED = 2.2
"""The factor by which a 27B's drafter understated the probability of siblings."""
BUDGETS = range(2, 64)


class GivenCosts(StepCosts):
    """A curve that is known beforehand."""

    def add(self, step: StepEvent, drafted: bool) -> float:
        """Nothing is measured."""
        return self.cost(len(step.tree.tokens), drafted=drafted)

    def knows(self, rows: int) -> bool:
        return True

    @property
    def knows_plain(self) -> bool:
        return True

    def cost(self, rows: int, *, drafted: bool) -> float:
        """Milliseconds of a step."""
        return (self.curve() if drafted else self.copying(rows))[rows]


@dataclass(slots=True)
class Ran:
    """The result of a policy on a set: steps, tokens after the first of each answer, milliseconds, rows, and each step
    as (text, position, nodes, tokens)."""

    steps: int = 0
    tokens: int = 0
    ms: float = 0.0
    rows: int = 0
    log: list[tuple[int, int, int, int]] | None = None

    @property
    def length(self) -> float:
        return self.tokens / max(self.steps, 1)

    @property
    def tok_s(self) -> float:
        return self.tokens / self.ms * 1e3 if self.ms else 0.0


@dataclass(frozen=True, slots=True)
class Stepped:
    """One step of a known answer: its position, rows, tokens and milliseconds."""

    at: int
    rows: int
    tokens: int
    ms: float


class AlwaysDrafting(AutoPolicy):
    """The policy where every step drafts, with its first drafter."""

    def asks_certain(self, knobs: Knobs) -> bool:
        return False

    def _rate(self, arm: Arm) -> float:
        return arm.rate

    def _pick(self, arms: Sequence[Arm], home: Arm, rate: float, none: float) -> Picked:
        return Picked(0) if arms else Picked(None)


def learned(
    texts: Sequence[Recorded],
    shape: CostTable,
    stops: frozenset[int],
    *,
    pausing: bool = False,
    state: PairState | None = None,
    knobs: Knobs | None = None,
    drafter: Capabilities = RECORDED,
) -> Ran:
    """The policy itself, learning from text to text; the same code that decodes. `pausing`: drafters may be switched
    off while they do not pay. `drafter`: whose recording it is."""
    costs, knobs = GivenCosts(shape), knobs or Knobs()
    policy = (AutoPolicy if pausing else AlwaysDrafting)([Arm(drafter, state or PairState(), costs)])
    ran = Ran(log=[])
    assert ran.log is not None
    for number, text in enumerate(texts):
        for step in _decode(text, policy, knobs, {"": text.drafts}, {"": costs}, "", stops):
            ran.log.append((number, step.at, step.rows - 1, step.tokens))
            ran.steps, ran.tokens = ran.steps + 1, ran.tokens + step.tokens
            ran.ms, ran.rows = ran.ms + step.ms, ran.rows + step.rows
    return ran


def decode_known(
    prompt: Sequence[int],
    answer: Sequence[int],
    drafts: Mapping[str, Sequence[Candidates]],
    policy: Policy,
    costs: Mapping[str, GivenCosts],
    kind: str,
    stops: frozenset[int] = frozenset(),
    certain: Sequence[float] = (),
) -> tuple[int, float]:
    """Tokens and milliseconds of a known answer. `drafts`: by kind of drafter, what it proposes after each token;
    `kind` drafts where the policy names none; `certain`: as of `Recorded`."""
    text = Recorded(tuple(prompt), tuple(answer), NO_CANDIDATES.tokens, NO_CANDIDATES.log_probs, tuple(certain))
    proposed = {one: found.__getitem__ for one, found in drafts.items()}
    steps = list(_decode(text, policy, Knobs(), proposed, costs, kind, stops))
    return sum(step.tokens for step in steps), sum(step.ms for step in steps)


def _decode(
    text: Recorded,
    policy: Policy,
    knobs: Knobs,
    drafts: Mapping[str, Callable[[int], Candidates]],
    costs: Mapping[str, GivenCosts],
    kind: str,
    stops: frozenset[int],
) -> Iterator[Stepped]:
    """The steps of a known answer. `drafts`: by kind of drafter, what it proposes after the token at a position; `kind`
    drafts where the policy names none."""
    answer, at = text.answer, 0
    policy.begin([*text.prompt, answer[0]], stops)
    while at < len(answer) - 1:
        decision = policy.next(knobs)
        drafter = decision.drafter or kind
        asked = decision.drafts and decision.mode != "plain"
        plan = policy.plan(knobs, answer[at], drafts[drafter](at) if asked else NO_CANDIDATES, DEEPEST)
        tree = plan.tree if plan is not None else build(answer[at], NO_CANDIDATES, 0)
        path = _walk(text, at, tree.parents, tree.tokens)
        tokens = answer[at + 1 : at + 1 + len(path)]
        ms = costs[drafter].cost(len(tree), drafted=asked)
        step = _step(tree.tokens, tree.parents, tree.depths, path, tokens, ms)
        policy.observe(step, _certain(text, at, len(tokens)))
        yield Stepped(at, len(tree), len(tokens), ms)
        at += len(tokens)
    policy.end()


def fixed(
    texts: Sequence[Recorded], shape: CostTable, budgets: Iterable[int] = (22,), *, chain_seed: bool = True
) -> dict[int, Ran]:
    """Best-first trees of fixed budgets by the drafter's own probabilities, today's or with a chain first."""
    costs, budgets = GivenCosts(shape), list(budgets)
    runs = {budget: Ran() for budget in budgets}
    for text in texts:
        last = len(text.answer) - 1
        known: dict[int, tuple[tuple[int, ...], int]] = {}
        for budget, ran in runs.items():
            at = 0
            while at < last:
                if at not in known:
                    tree = build(text.answer[at], text.drafts(at), max(budgets), chain_seed=chain_seed)
                    known[at] = _walk(text, at, tree.parents, tree.tokens)[1:], len(tree) - 1
                path, nodes = known[at]
                got = min(1 + sum(node <= budget for node in path), last - at)
                ran.steps, ran.tokens, at = ran.steps + 1, ran.tokens + got, at + got
                ran.ms += costs.cost(1 + min(budget, nodes), drafted=True)
                ran.rows += 1 + min(budget, nodes)
    return runs


def plain(texts: Sequence[Recorded], shape: CostTable) -> Ran:
    """Plain decoding."""
    tokens = sum(len(text.answer) - 1 for text in texts)
    return Ran(tokens, tokens, tokens * shape.plain, tokens)


def understated(texts: Sequence[Recorded], factor: float = UNDERSTATED) -> list[Recorded]:
    """The same drafts with the probability of siblings divided by `factor`."""
    out = []
    for text in texts:
        log_probs = text.log_probs.copy()
        log_probs[:, :, 1:] -= math.log(factor)
        out.append(replace(text, log_probs=log_probs))
    return out


def _walk(text: Recorded, at: int, parents: Sequence[int], tokens: Sequence[int]) -> tuple[int, ...]:
    """The nodes on the text's path, from the root on."""
    children = {pair: node for node, pair in enumerate(zip(parents, tokens))}
    path, answer = [0], text.answer
    while at + len(path) < len(answer):
        child = children.get((path[-1], answer[at + len(path)]))
        if child is None or at + len(path) + 1 >= len(answer):
            break
        path.append(child)
    return tuple(path)


def _certain(text: Recorded, at: int, said: int) -> Sequence[float]:
    """What a step that said so many tokens after `at` tells of how certain the target was."""
    return text.certain[at + 1 : at + 1 + said][-LATELY:]


def _step(
    tokens: Sequence[int],
    parents: Sequence[int],
    depths: Sequence[int],
    path: tuple[int, ...],
    said: Sequence[int],
    ms: float,
) -> StepEvent:
    ones = (1.0,) * len(tokens)
    tree = StepTree(tuple(tokens), tuple(parents), tuple(depths), ones, ones, path)
    return StepEvent(
        tuple(said), tree, max(depths), len(path) - 1, 0, StageTimes(verify=ms), "tree", "", drafts=StepDrafts()
    )  # fmt: skip


def geometric(ratios: Iterable[float]) -> float:
    """The geometric mean less 1, as a share."""
    logs = [math.log(ratio) for ratio in ratios]
    return math.exp(sum(logs) / max(len(logs), 1)) - 1


def table(sets: dict[str, list[Recorded]], stops: frozenset[int], say: Callable[[str], None]) -> None:
    """Every set under every policy, per cost curve."""
    for name, shape in CURVES.items():
        pausing = name == "cpu"
        say(f"\n{name}: tokens per step / projected tokens per second, with and without a stop")
        over22, overbest, disturbed = [], [], []
        for title, texts in sets.items():
            budgets = fixed(texts, shape, BUDGETS)
            alone, free = plain(texts, shape), fixed(texts, shape, chain_seed=False)[22]
            # Plain decoding is a budget too, and the best one where drafts do not pay.
            tree, best = budgets[22], max([(0, alone), *budgets.items()], key=lambda item: item[1].tok_s)
            auto = learned(texts, shape, stops, pausing=pausing)
            bent = learned(understated(texts), shape, stops, pausing=pausing)
            over22.append(auto.tok_s / tree.tok_s)
            overbest.append(auto.tok_s / best[1].tok_s)
            disturbed.append(bent.tok_s / tree.tok_s)
            say(
                f"{title:16} {len(texts):3} texts  AR {alone.tok_s:5.0f}"
                f"  tree 22 {tree.length:5.2f} / {tree.tok_s:5.0f}  no seed {free.length:5.2f} / {free.tok_s:5.0f}"
                f"  best fixed ({best[0]:2}) {best[1].tok_s:5.0f}"
                f"  auto {auto.length:5.2f} / {auto.tok_s:5.0f} ({auto.rows / auto.steps:4.1f} rows)"
                f"  {over22[-1] - 1:+6.1%} over 22  {overbest[-1] - 1:+6.1%} over best  bent {disturbed[-1] - 1:+6.1%}"
            )
        say(
            f"{name}: auto over tree 22 {geometric(over22):+.1%}, siblings understated {geometric(disturbed):+.1%}, "
            f"worst against its best fixed budget {min(overbest) - 1:+.1%}"
        )


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--stop", type=int, nargs="*", default=[8186], help="ids that end an answer")
    parser.add_argument("--texts", type=int, default=None, help="of each set, at most")
    options = parser.parse_args()
    sets = {path.stem: load(path)[: options.texts] for path in sorted(options.folder.glob("*.npz"))}
    table(sets, frozenset(options.stop), _say)


if __name__ == "__main__":
    run_tool(main)
