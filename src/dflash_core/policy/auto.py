"""`auto`: drafts where they pay, by the drafter that pays most, in trees of the candidates that are worth their time.

Values are learned from every walk, costs are measured on this machine. Nodes are chosen by learned value, including
text copied from the conversation, as many as pay at the present rate of tokens per millisecond; no drafts are made
while they do not pay. One `Chooser` (`choosing.py`) picks the drafter of a step, or none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dflash_core.drafters.ngram_table import NgramTable
from dflash_core.events import Choice, StepEvent, brings
from dflash_core.knobs import Knobs
from dflash_core.policy.arm import Arm, Pace, PairState, Part, PartState
from dflash_core.policy.base import Decision, Policy, StepPlan, as_set
from dflash_core.policy.best_first import DEEPEST, ValueTree, build, trials
from dflash_core.policy.choosing import ALL, Chooser, Drafts, Expected, Picked, tried_again
from dflash_core.policy.copying import Chain, chain
from dflash_core.policy.costs import MAX_ROWS, min_slopes, paying
from dflash_core.policy.values import Stated
from dflash_core.tree import Candidates
from dflash_core.turn_stats import FoundRow

MAX_TREE_NODES = MAX_ROWS - 1
NEVER_RIGHT = 4.0  # decayed steps of a drafter without an accepted token, after which certainty predicts nothing
RANKS = 8  # candidates per depth that are considered
AFTER = "after thinking"
_MORE = 8  # rows that the reason mentions
_TRIED_ROWS = 8  # assumed for a drafter's steps before any was measured
_TWICE = 2.0  # building stops at an offer that would not pay at twice its value: later ones are rarely that much better


@dataclass(slots=True)
class Step:
    """The decision for the step under way, until it is observed. `arm`: whose values decide it."""

    knobs: Knobs
    decision: Decision
    arm: Arm
    picked: Picked | None = None
    copied: Chain | None = None
    tree: ValueTree | None = None
    stated: Stated | None = None
    why: str = ""  # before its reason: why it has this drafter


class AutoPolicy(Policy):
    """Implements `policy.base.Policy` for drafters in lock-step with their target. `arms`: one per drafter, in the
    order in which they were loaded. `think_ids`: the tokens that open and close reasoning, where the vocabulary has
    them."""

    def __init__(self, arms: Sequence[Arm], *, think_ids: tuple[int, int] | None = None) -> None:
        super().__init__([arm.kind for arm in arms])
        self.arms = tuple(arms)
        self._think_ids = think_ids
        self._drafting = [arm for arm in self.arms if not arm.copies_only]
        # A step without a draft is decided by the values of the drafter that copies text, or of the first.
        self._home = next((arm for arm in self.arms if arm.copies_only), self.arms[0])
        self._chooser = Chooser([arm.kind for arm in self._drafting])
        blocks = [arm.drafter.block for arm in self._drafting]
        self._furthest = blocks.index(max(blocks)) if len(set(blocks)) > 1 else None
        self._pace = Pace()  # of all drafters together
        self._text = NgramTable()
        self._stops = frozenset[int]()
        self._part: Part = "answer"
        self._thought = False  # the answer has reasoned
        self.arm = self.arms[0]  # of the newest step
        self._step: Step | None = None

    # ---- Policy ----------------------------------------------------------------------------------------------------

    def begin(self, ids: Sequence[int], stops: frozenset[int]) -> None:
        self._stops, self._part, self._thought = stops, "answer", False
        self._follow(ids)
        self._text.become(ids)
        self._chooser.begin()
        self._step = None

    def _next(self, knobs: Knobs) -> Decision:
        if self._step is None or not _same(self._step.knobs, knobs):
            self._step = self._decide(knobs)
            self.arm = self._step.arm
        return self._step.decision

    def plan(self, knobs: Knobs, root: int, drafts: Candidates, deepest: int) -> StepPlan | None:
        self.next(knobs)
        step = self._step
        if step is not None and step.copied is not None:
            return step.copied.plan(step.decision, root, deepest)
        if step is None or step.decision.mode == "plain" or not free(knobs):
            return None
        return self._valued(step, knobs, root, drafts, deepest)

    def asks_certain(self, knobs: Knobs) -> bool:
        """True where steps may run without drafts: there, the target's certainty tells most about how many tokens a
        draft would yield, unless none was ever right."""
        if not free(knobs) or self.watch.none_left:
            return False
        return not all(self._dead(arm) for arm in self._drafting)

    def _observe(self, step: StepEvent, certain: Sequence[float]) -> None:
        done, self._step = self._step, None
        if done is not None:
            if free(done.knobs):
                self._chooser.certain(certain)
            self._learn(done, step)
        self._extend(step.tokens)

    def injected(self, tokens: Sequence[int]) -> None:
        self._step = None
        self._extend(tokens)

    def end(self) -> None:
        for arm in self.arms:
            arm.end()

    def found(self) -> tuple[FoundRow, ...]:
        """What was learned about the drafter of the newest step."""
        return self.arm.found()

    def reset(self, states: Sequence[PairState]) -> None:
        """Reset to the start values `states`, one per drafter; not while an answer is under way."""
        for arm, state in zip(self.arms, states, strict=True):
            arm.state = state
        self._chooser.reset()

    # ---- The text --------------------------------------------------------------------------------------------------

    @property
    def text(self) -> list[int]:
        """The known conversation: prompt and answer, with the root at its end."""
        tokens: list[int] = self._text.tokens.tolist()
        return tokens

    def _extend(self, tokens: Sequence[int]) -> None:
        self._follow(tokens)
        self._text.extend(tokens)

    def _follow(self, ids: Sequence[int]) -> None:
        """Update whether the text is in reasoning after `ids`."""
        if self._think_ids is not None:
            last = next((token for token in reversed(ids) if token in self._think_ids), None)
            if last is not None:
                self._part = "thinking" if last == self._think_ids[0] else "answer"
                self._thought |= self._part == "thinking"

    @property
    def place(self) -> str:
        """The part of the text by which drafters' results are stored. An answer after reasoning repeats it, so another
        drafter may be best there than in other answers."""
        return AFTER if self._thought and self._part == "answer" else self._part

    # ---- What is known ---------------------------------------------------------------------------------------------

    def _of(self, arm: Arm) -> PartState:
        return arm.state.parts[self._part]

    def _drafts(self, arm: Arm) -> Drafts:
        return self._of(arm).after if self.place == AFTER else self._of(arm).drafts

    def _expected(self, arm: Arm) -> Expected:
        start = arm.costs.curve()[_TRIED_ROWS] / arm.costs.plain
        return self._chooser.expected(self._drafting.index(arm), self._drafts(arm), start)

    def _dead(self, arm: Arm) -> bool:
        """Whether none of the drafter's drafts was right."""
        known = self._drafts(arm).get(ALL)
        return known is not None and known.steps > NEVER_RIGHT and known.tokens == known.steps

    def _rate(self, arm: Arm) -> float:
        """The present rate in tokens per millisecond, or that of plain decoding if that is higher."""
        return max(arm.rate, 1 / arm.costs.plain)

    # ---- The decision ----------------------------------------------------------------------------------------------

    def _decide(self, knobs: Knobs) -> Step:
        left = [arm for arm in self.arms if arm.kind not in self.watch.left_out]
        drafting = [arm for arm in left if not arm.copies_only]
        single = len(self.arms) == 1 or knobs.draft != "auto" or not drafting or knobs.mode not in ("auto", "tree")
        if single:
            # It has to be faster than plain decoding here. At the present rate time would be worth more, but a hard
            # place in the text is as hard after a plain step: what is saved there does not come at that rate.
            home = next((one for one in left if one.kind == knobs.draft), left[0])
            arms = [home] if home in drafting and free(knobs) else []
            rate = 1 / home.costs.plain if home in drafting else self._rate(home)
        else:
            home, arms = self._home, drafting
            rate = max(self._pace.rate(home.unit), 1 / home.costs.plain)
        copied = self._chain(knobs, home, rate) if free(knobs) else None
        picked = self._pick(arms, home, rate, -math.inf if copied is None else copied.brings)
        step = self._drafted(knobs, home if picked.at is None else self._drafting[picked.at], picked, copied)
        if len(self.arms) == 1:
            return step
        return _named(step, "" if single else self._why_drafter(step, picked))

    def _pick(self, arms: Sequence[Arm], home: Arm, rate: float, none: float) -> Picked:
        """The drafter of the next step among `arms`, or none. `home` decides a step without a draft, which brings
        `none`, both at `rate` tokens per millisecond."""
        if not arms:
            return Picked(None)
        expected = {self._drafting.index(arm): self._expected(arm) for arm in arms}
        furthest = self._furthest if len(arms) > 1 and self.place == "answer" else None
        return self._chooser.pick(
            expected, none, rate * home.costs.plain, sure=home.costs.knows_plain, furthest=furthest, part=self.place
        )

    def _drafted(self, knobs: Knobs, arm: Arm, picked: Picked, copied: Chain | None) -> Step:
        """A step with the drafter of `arm`, or with `copied` in place of a draft; None: as the knobs say."""
        if copied is None:
            return Step(knobs, as_set(knobs, arm.drafter), arm, picked if picked.at is not None else None)
        if picked.at is None:
            return self._undrafted(knobs, arm, picked, copied)
        why = "as many candidates as pay"
        if picked.tries:
            why = tried_again(picked.lost)
        return Step(knobs, Decision("tree", max_nodes(knobs), why, depth=arm.depth(knobs, self._part)), arm, picked)

    def _chain(self, knobs: Knobs, arm: Arm, rate: float) -> Chain:
        """The next step without a draft, at `rate` tokens per millisecond."""
        known = self._text if knobs.from_text or arm.copies_only else None
        found = chain(known, self._of(arm).copies, self._stops, max_nodes(knobs))
        found.price(arm.costs.copying(len(found.values)), rate)
        return found

    def _undrafted(self, knobs: Knobs, arm: Arm, picked: Picked, copied: Chain) -> Step:
        if copied.nodes:
            why = f"{copied.nodes} row{'s' if copied.nodes > 1 else ''} copied from the text"
        elif arm.copies_only:
            why = "nothing to copy that pays"
        elif picked.tries:
            why = "a plain step, to see what it costs"
        else:
            draft, at = self._expected(arm), self._drafting.index(arm)
            soon = self._chooser.wait(at, draft, copied.brings, self._rate(arm) * arm.costs.plain, self.place)
            why = f"a draft would bring {draft.tokens:.1f} tokens and take {draft.plain:.1f} plain steps; next try in "
            why += f"{soon} steps" if soon > 1 else "a step"
            if self._dead(arm):
                why = "no draft has been right so far; one is tried from time to time"
        decision = Decision("chain" if copied.nodes else "plain", copied.nodes, why, drafts=False)
        return Step(knobs, decision, arm, picked, copied)

    def _why_drafter(self, step: Step, picked: Picked) -> str:
        """Why this drafter: a try, a start, or each drafter's tokens and time of a step, the picked one first."""
        if picked.tries:
            return "no draft is tried" if picked.at is None else f"{step.arm.kind} is tried"
        if picked.lost > 0:
            return f"{step.arm.kind} begins: its block reaches furthest"
        arms = sorted(self._drafting, key=lambda arm: arm is not step.arm)
        parts = [
            # A plain step writes one token.
            f"{arm.kind} writes {one.tokens:.1f} tokens while plain decoding writes {one.plain:.1f}"
            for arm in arms for one in [self._expected(arm)]
        ]  # fmt: skip
        who = "plain decoding" if picked.at is None else step.arm.kind
        return f"{who} is fastest here ({'; '.join(parts)})"

    def _valued(self, step: Step, knobs: Knobs, root: int, drafts: Candidates, deepest: int) -> StepPlan:
        arm, rate = step.arm, self._rate(step.arm)
        curve = arm.costs.curve()
        slopes = min_slopes(curve)
        text = self._text if knobs.from_text and self._text.tokens[-1:].tolist() == [root] else None
        own = drafts.cut(len(drafts.tokens), RANKS) if drafts.given is not None else None
        step.stated = Stated(drafts.tokens[:, :RANKS], drafts.log_probs[:, :RANKS], own, root)
        step.tree = tree = build(
            step.stated, self._of(arm).learned, text, root, self._stops, max_nodes(knobs), min(DEEPEST, deepest),
            lambda value, nodes: _TWICE * value <= rate * slopes[nodes],
        )  # fmt: skip
        nodes = paying(tree.values, curve, rate)
        tried = step.picked is not None and step.picked.tries
        reason = step.decision.reason if tried else step.why + _why(tree, nodes, curve, rate)
        decision = replace(step.decision, budget=nodes, reason=reason)
        return StepPlan(tree.first(nodes), decision, Choice(brings(tree.values), nodes + 1))

    # ---- Learning --------------------------------------------------------------------------------------------------

    def _learn(self, done: Step, step: StepEvent) -> None:
        arm, drafted = done.arm, done.decision.drafts and done.decision.mode != "plain"
        for other in () if drafted else self.arms:  # a step without a draft counts for all drafters
            if other is not arm:
                other.costs.add(step, drafted=False)
        spent = arm.costs.add(step, drafted)
        if free(done.knobs):
            arm.changed = True
            arm.state.pace.add(len(step.tokens), spent, arm.unit, drafted=drafted)
        part = self._of(arm)
        if spent > 0 and done.picked is not None:
            if len(self.arms) > 1:
                self._pace.add(len(step.tokens), spent, self._home.unit, drafted=done.picked.at is not None)
            self._weigh(arm, done.picked, step)
        if (copied := done.copied) is not None:
            if copied.nodes:
                part.copies.weigh(copied, copied.nodes, step.accepted_depth)
            for one, token in zip(copied.found, step.tokens):
                part.copies.add(one.match, one.token == token)
                if one.token != token:
                    break
        if done.tree is None or done.stated is None:
            return
        path = step.tree.accepted[: len(step.tokens)]
        for node, token in zip(path, step.tokens):
            if (found := done.tree.found[node]) is not None:
                part.copies.add(found.match, found.token == token)
        if done.knobs.learn:
            part.learned.learn(*trials(done.tree, done.stated, path, step.tokens, self._stops))

    def _weigh(self, arm: Arm, picked: Picked, step: StepEvent) -> None:
        """Learn whether drafts pay. The usual time of such steps is used: a single step may have been delayed."""
        rows, costs, tokens = min(len(step.tree.tokens), MAX_ROWS), arm.costs, step.accepted_depth + 1
        plain = (costs.copying(rows)[rows] if picked.at is None else costs.typical(rows)) / costs.plain
        if picked.at is None:
            self._chooser.undrafted()
        else:
            arm.count_depth(step, self._part, anew=picked.tries and tokens > 1)
            self._chooser.drafted(picked.at, tokens, plain, self._drafts(arm))
        self._chooser.spent(plain, picked, tokens)


def free(knobs: Knobs) -> bool:
    """Whether the knobs leave the choice to the policy."""
    return knobs.mode == "auto"


def _same(one: Knobs, other: Knobs) -> bool:
    """Whether they are equal; in the usual case at once, as comparing all fields takes as long as a decision."""
    return one is other or one == other


def _named(step: Step, why: str) -> Step:
    """The step with its drafter's name, and why it is that one."""
    step.why = f"{why}; " if why else ""
    step.decision = replace(step.decision, drafter=step.arm.kind, reason=step.why + step.decision.reason)
    return step


def max_nodes(knobs: Knobs) -> int:
    """The most nodes that `auto` may choose."""
    return min(MAX_TREE_NODES, knobs.cap or MAX_TREE_NODES)


def _why(tree: ValueTree, nodes: int, curve: Sequence[float], rate: float) -> str:
    copied = sum(tree.copied[1 : nodes + 1])
    if nodes and 2 * copied > nodes:
        return f"{copied} of {nodes} rows copied from the text"
    offered = len(tree) - 1
    more = min(_MORE, offered - nodes)
    if not more:
        all_pay = f"all {offered} candidates pay" if offered > 1 else "the only candidate pays"
        return all_pay if nodes else "no candidate pays"
    ms = curve[nodes + 1 + more] - curve[nodes + 1]
    brings = sum(tree.values[nodes + 1 : nodes + 1 + more])
    rows, pay = "row costs" if more == 1 else f"{more} rows cost", "pays" if nodes == 1 else "pay"
    return (
        f"{nodes} of {offered} candidates {pay}; the next {rows} {ms:.2f} ms = {rate * ms:.2f} tokens, "
        f"would bring {brings:.2f}"
    )
