"""`auto`: a tree of the candidates that are worth their time, by learned values and costs measured on this machine.

Nodes are chosen by learned value, including text copied from the conversation, as many rows as pay at the present rate
of tokens per millisecond, and no drafts at all while they do not pay.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from dflash_core.drafters.successors import Successors
from dflash_core.events import Choice, StepEvent, brings
from dflash_core.knobs import Knobs
from dflash_core.policy.base import Decision, StepPlan
from dflash_core.policy.best_first import DEEPEST, ValueTree, build, trials
from dflash_core.policy.choosing import ALL, Chooser, Expected, Picked
from dflash_core.policy.costs import MAX_ROWS, min_slopes, paying
from dflash_core.policy.depth import Depths
from dflash_core.policy.pace import START_ROWS, Chain, chain, chain_rows
from dflash_core.policy.pair import PairPolicy, PairState
from dflash_core.policy.values import Stated
from dflash_core.tree import Candidates, Tree

MAX_TREE_NODES = MAX_ROWS - 1
NEVER_RIGHT = 4.0  # decayed steps of a drafter without an accepted token, after which certainty predicts nothing
RANKS = 8  # candidates per depth that are considered
_MORE = 8  # rows that the reason mentions
_TRIED_ROWS = 8  # assumed for a drafter's steps before any was measured
_TWICE = 2.0  # building stops at an offer that would not pay at twice its value: later ones are rarely that much better


@dataclass(frozen=True, slots=True)
class Rest:
    """A step without a draft: the copied nodes, if they pay, and its tokens minus the value of its time."""

    copied: Chain
    nodes: int
    brings: float


@dataclass(slots=True)
class _Step:
    """The decision for the step under way, until it is observed."""

    decision: Decision
    knobs: Knobs
    copied: Chain | None = None
    nodes: int = 0
    tree: ValueTree | None = None
    stated: Stated | None = None
    rate: float = 0.0
    picked: Picked | None = None


@dataclass(eq=False, repr=False)
class LearnedPolicy(PairPolicy):
    """Implements `policy.base.Policy` for a drafter in lock-step with its target.

    `pausing`: the drafter may be switched off while it does not pay.
    """

    pausing: bool = field(default=True, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._text = Successors()
        self._step: _Step | None = None
        self._resting: _Step | None = None
        self._rest: tuple[Knobs, Rest] | None = None
        self._chooser, self._at = Chooser([self.kind]), 0
        self._pause = 0  # steps for which `_resting` is repeated

    @property
    def kind(self) -> str:
        """The drafter's kind; "" without one."""
        return self.drafter.kind if self.drafter is not None else ""

    @property
    def block(self) -> int:
        """Positions of the drafter's block."""
        return self.drafter.block if self.drafter is not None else 1

    @property
    def copies_only(self) -> bool:
        """Whether the drafter only copies text."""
        return self.kind == "ngram"

    @property
    def rate(self) -> float:
        """The present rate in tokens per millisecond, or that of plain decoding if that is higher."""
        present = super().rate
        return max(present, 1 / self.costs.plain) if self.pausing else present

    def join(self, chooser: Chooser, at: int) -> None:
        """Become one of several: `chooser` chooses among them, this one is number `at`; `take` passes the choice."""
        self._chooser, self._at = chooser, at

    def expected(self) -> Expected:
        """The expectation for the next step, if this drafter drafts it."""
        return self._chooser.expected(self._at, self._drafts, self._start)

    def rest(self, knobs: Knobs, rate: float) -> Rest:
        """The next step without a draft, at `rate` tokens per millisecond."""
        if self._rest is None or not _same(self._rest[0], knobs):
            known = self._text if knobs.from_text or self.copies_only else Successors()
            found = chain(known, self._state.copies, self._stops, max_nodes(knobs))
            self._rest = knobs, Rest(found, *chain_rows(found, self.costs.copying(len(found.values)), rate))
        return self._rest[1]

    def take(self, knobs: Knobs, picked: Picked) -> None:
        """Adopt a choice: the next step is drafted by this drafter, or without a draft."""
        self._step = self._decide(knobs, picked)

    @property
    def text(self) -> Sequence[int]:
        """The known conversation: prompt and answer, with the root at its end."""
        return self._text.tokens

    def reset(self, state: PairState) -> None:
        super().reset(state)
        self._chooser.reset()

    def begin(self, ids: Sequence[int], stops: frozenset[int]) -> None:
        super().begin(ids, stops)
        self._text.become(ids)
        self._chooser.begin()
        self._step = self._rest = self._resting = None

    def next(self, knobs: Knobs) -> Decision:
        if self._step is None or not _same(self._step.knobs, knobs):
            self._step = self._again(knobs)
            if self._step is None:
                self.take(knobs, self._picked(knobs))
            assert self._step is not None, "a step that was decided"
        return self._step.decision

    def plan(self, knobs: Knobs, root: int, drafts: Candidates, deepest: int) -> StepPlan | None:
        self.next(knobs)
        step = self._step
        assert step is not None, "a plan before its decision"
        if step.copied is not None:
            return self._copied(step, step.copied, root, deepest)
        if step.decision.mode == "plain" or not self._free(knobs):
            return None
        return self._valued(step, knobs, root, drafts, deepest)

    def asks_certain(self, knobs: Knobs) -> bool:
        """True where steps may run without drafts: there, the target's certainty tells most about how many tokens a
        draft would yield, unless none was ever right."""
        return self.pausing and not self.copies_only and not self._dead and self._free(knobs)

    def observe(self, step: StepEvent, certain: Sequence[float] = ()) -> None:
        done, self._step, self._rest = self._step, None, None
        self._chooser.said(certain)
        if done is not None:
            self._learn(done, step)
        self._text.extend(step.tokens)
        self._follow(step.tokens)

    def said(self, tokens: Sequence[int]) -> None:
        self._step = self._rest = None
        self._text.extend(tokens)
        self._follow(tokens)

    @property
    def _dead(self) -> bool:
        """Whether none of the drafter's drafts was right."""
        known = self._drafts.get(ALL)
        return known is not None and known.steps > NEVER_RIGHT and known.tokens == known.steps

    def _again(self, knobs: Knobs) -> _Step | None:
        """The plain step before this one again, where a dead drafter's next try is not due and nothing can be copied:
        deciding anew takes a share of a small model's step."""
        it = self._resting
        if (
            it is None
            or self._pause < 2
            or it.knobs is not knobs
            or it.picked is None
            or it.picked.place[0] != self.place
        ):
            return None
        if knobs.from_text and self._text.after(self._text.tail()) is not None:
            return None
        self._pause -= 1
        return it

    @property
    def _start(self) -> float:
        """The assumed time of a drafter's step before any was measured, in plain steps."""
        return self.costs.curve()[_TRIED_ROWS] / self.costs.plain

    def _picked(self, knobs: Knobs) -> Picked:
        if self.copies_only or not self._free(knobs):
            return Picked(None)
        if not self.pausing:
            return Picked(self._at)
        rate = self.rate
        none = self.rest(knobs, rate).brings
        return self._chooser.pick(
            {self._at: self.expected()}, none, rate * self.costs.plain, sure=self.costs.knows_plain, part=self.place
        )

    def _decide(self, knobs: Knobs, picked: Picked) -> _Step:
        if not self._free(knobs):
            return _Step(self._fixed.next(knobs), knobs, picked=picked if picked.at is not None else None)
        if picked.at is None:
            return self._without_drafts(knobs, picked)
        why = "auto: as many candidates as pay"
        if picked.tries:
            why = f"auto: drafts are tried again; {picked.lost:.1f} plain steps may be lost"
        decision = Decision("tree", max_nodes(knobs), why, depth=self._depth(knobs))
        return _Step(decision, knobs, rate=self.rate, picked=picked)

    def _without_drafts(self, knobs: Knobs, picked: Picked) -> _Step:
        rate = self.rate
        rest = self.rest(knobs, rate)
        if rest.nodes:
            why = f"copying: {rest.nodes} row{'s' if rest.nodes > 1 else ''} from the text"
        elif self.copies_only:
            why = "auto: nothing to copy that pays"
        elif picked.tries:
            why = "auto: a plain step, to see what it costs"
        else:
            draft = self.expected()
            soon = self._chooser.wait(self._at, draft, rest.brings, rate * self.costs.plain, self.place)
            why = f"auto: a draft would bring {draft.tokens:.1f} tokens in {draft.plain:.1f} plain steps; next try in "
            why += f"{soon} steps" if soon > 1 else "a step"
            if self._dead:
                why = "auto: no draft has been right so far; one is tried from time to time"
                self._pause = soon if not rest.copied.found else 0
        decision = Decision("chain" if rest.nodes else "plain", rest.nodes, why, drafts=False)
        step = _Step(decision, knobs, copied=rest.copied, nodes=rest.nodes, rate=rate, picked=picked)
        self._resting = step if self._pause else None
        return step

    def _copied(self, step: _Step, found: Chain, root: int, deepest: int) -> StepPlan:
        nodes = min(step.nodes, deepest)
        tokens = [one.token for one in found.found[:nodes]]
        values = found.values[: nodes + 1]
        count = len(tokens) + 1
        paths = tuple(math.log(value) for value in values)
        steps = (0.0, *(after - before for before, after in itertools.pairwise(paths)))
        tree = Tree((root, *tokens), tuple(range(-1, count - 1)), tuple(range(count)), steps, paths,
                    tuple(values), tuple(range(1, count)))  # fmt: skip
        return StepPlan(tree, step.decision, Choice(brings(found.values), count))

    def _tree(
        self, knobs: Knobs, root: int, drafts: Candidates, rate: float, deepest: int
    ) -> tuple[ValueTree, Stated, list[float]]:
        curve = self.costs.curve()
        slopes = min_slopes(curve)
        text = self._text if knobs.from_text and self._text.tokens[-1:] == [root] else None
        own = drafts.cut(len(drafts.tokens), RANKS) if drafts.given is not None else None
        stated = Stated(drafts.tokens[:, :RANKS], drafts.log_probs[:, :RANKS], own, root)
        tree = build(
            stated, self._state.learned, text, root, self._stops, max_nodes(knobs),
            min(DEEPEST, deepest),
            lambda value, nodes: _TWICE * value <= rate * slopes[nodes],
        )  # fmt: skip
        return tree, stated, curve

    def _valued(self, step: _Step, knobs: Knobs, root: int, drafts: Candidates, deepest: int) -> StepPlan:
        step.tree, step.stated, curve = self._tree(knobs, root, drafts, step.rate, deepest)
        nodes = paying(step.tree.values, curve, step.rate)
        tree = step.tree.first(nodes)
        tried = step.picked is not None and step.picked.tries
        why = step.decision.reason if tried else _why(step.tree, nodes, curve, step.rate)
        decision = replace(step.decision, budget=nodes, reason=why)
        return StepPlan(tree, decision, Choice(brings(step.tree.values), nodes + 1))

    def _learn(self, done: _Step, step: StepEvent) -> None:
        drafted = done.decision.drafts and done.decision.mode != "plain"
        spent = self.costs.add(step, drafted)
        part, unit = self._state, self.costs.curve()[START_ROWS]
        if self._free(done.knobs):
            self._news = True
            self.state.pace.add(len(step.tokens), spent, unit, drafted=drafted)
        if spent > 0 and done.picked is not None:
            self._weigh(done.picked, step)
        if done.copied is not None:
            for one, token in zip(done.copied.found, step.tokens):
                part.copies.add(one.match, one.token == token)
                if one.token != token:
                    break
        if done.tree is None or done.stated is None:
            return
        path = step.tree.accepted[: len(step.tokens)]
        self._count_depth(step)
        for node, token in zip(path, step.tokens):
            found = done.tree.found[node]
            if found is not None:
                part.copies.add(found.match, found.token == token)
        if done.knobs.learn:
            part.learned.learn(*trials(done.tree, done.stated, path, step.tokens, self._stops))

    def _weigh(self, picked: Picked, step: StepEvent) -> None:
        """Learn whether drafts pay. The usual time of such steps is used: a single step may have been delayed."""
        rows, costs = min(len(step.tree.tokens), MAX_ROWS), self.costs
        plain = (costs.copying(rows)[rows] if picked.at is None else costs.typical(rows)) / costs.plain
        if picked.at is None:
            self._chooser.rested()
        else:
            if picked.tries and step.accepted_depth:
                self._depths[self._part] = Depths()  # drafts may have become better
            self._chooser.drafted(self._at, step.accepted_depth + 1, plain, self._drafts, self._start)
        self._chooser.spent(plain, picked, step.accepted_depth + 1)


def _same(one: Knobs, other: Knobs) -> bool:
    """Whether they are equal; in the usual case at once, as comparing all fields takes as long as a decision."""
    return one is other or one == other


def max_nodes(knobs: Knobs) -> int:
    """The most nodes that `auto` may choose."""
    return min(MAX_TREE_NODES, knobs.cap or MAX_TREE_NODES)


def _why(tree: ValueTree, nodes: int, curve: Sequence[float], rate: float) -> str:
    copied = sum(tree.copied[1 : nodes + 1])
    if nodes and 2 * copied > nodes:
        return f"copying: {copied} of {nodes} rows from the text"
    offered = len(tree) - 1
    more = min(_MORE, offered - nodes)
    if not more:
        all_pay = f"auto: all {offered} candidates pay" if offered > 1 else "auto: the only candidate pays"
        return all_pay if nodes else "auto: no candidate pays"
    ms = curve[nodes + 1 + more] - curve[nodes + 1]
    brings = sum(tree.values[nodes + 1 : nodes + 1 + more])
    rows, pay = "row costs" if more == 1 else f"{more} rows cost", "pays" if nodes == 1 else "pay"
    return (
        f"auto: {nodes} of {offered} candidates {pay}; the next {rows} {ms:.2f} ms = {rate * ms:.2f} tokens, "
        f"would bring {brings:.2f}"
    )
