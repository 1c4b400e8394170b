"""One step of the decoder: draft, tree, verify, accept, commit. Five calls, each named after its part."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from dflash_core import tree as ddtree
from dflash_core.backends.base import AnswerOptions, Backend, Logits
from dflash_core.constraints.base import Constraint, masked
from dflash_core.constraints.drafts import within
from dflash_core.drafters.capabilities import Capabilities
from dflash_core.drafting import MAX_NODES
from dflash_core.errors import NumericsError
from dflash_core.events import Choice, GuardEvent, StageTimes, StepDrafts, StepEvent, StepTree, Stop
from dflash_core.knobs import Knobs
from dflash_core.policy.base import LATELY, Decision, FixedPolicy
from dflash_core.sampling import Sampler, check_finite, probability
from dflash_core.tree import NO_CANDIDATES, Candidates, Tree, Walk

FORCED = 16  # tokens that a grammar forces, in a step
NOTE = "; within a grammar"  # ends the reason of a constrained step
SPARE = 2  # nodes that are built for each that is verified, where a constraint may rule some out


def stop_at(token: int, answered: int, knobs: Knobs, stop_ids: Collection[int], capacity: int) -> Stop | None:
    """Why an answer ends with `token`, the `answered`-th of it, if it does.

    `capacity`: positions of the context after the prompt. A token occupies one once it has run, and the next token must
    still fit.
    """
    if token in stop_ids:
        return "stop token"
    if answered >= knobs.max_tokens:
        return "max tokens"
    return "context full" if answered >= capacity else None


def tokens_left(knobs: Knobs, answered: int, capacity: int, halt: int | None) -> int:
    """Tokens until an answer of `answered` tokens ends or halts, if it does not before. `capacity`: as in `stop_at`;
    `halt`: how many tokens it halts at."""
    end = min(knobs.max_tokens, capacity)
    return (end if halt is None else min(end, halt)) - answered


def constrained(
    tree: Tree, constraint: Constraint, knobs: Knobs, decision: Decision, deepest: int, limit: int
) -> tuple[Tree, Decision]:
    """The part of a tree that a constraint leaves, with what it forces, no deeper than `deepest` and with `limit` nodes
    below the root at most; and what the step then runs. Under `auto` what is forced is drafted whatever drafts bring,
    as it is hardly ever wrong."""
    if knobs.mode == "plain":
        return tree, decision
    budget = min(decision.budget, limit)
    forced = min(max(budget, FORCED) if knobs.mode == "auto" else budget, deepest, limit)
    tree = within(tree, constraint, budget, forced, chain=decision.mode != "tree")
    if decision.mode == "plain" and len(tree) > 1:
        decision = replace(decision, mode="chain", budget=len(tree) - 1, drafts=False)
    return tree, decision


class _Sequence(Protocol):
    @property
    def length(self) -> int: ...
    @property
    def capabilities(self) -> Capabilities | None: ...
    def prefill(self, tokens: Sequence[int]) -> Logits: ...


class AnswerDecoder(ABC):
    """What a runner needs of a decoder: one answer after the prompt that its backend has just read. `answer`: the
    tokens that `first` and `step` have returned. The tokens that a guard supplies, and where the answer ends, are the
    same on every machine."""

    decision: Decision

    def __init__(self, backend: _Sequence, options: AnswerOptions) -> None:
        self._sequence, self.knobs, self.context_length = backend, options.knobs, options.context_length
        self.policy = options.policy or FixedPolicy(backend.capabilities)
        self.constraint, self.log_probs = options.constraint, options.log_probs
        endless = options.knobs.ignore_eos and self.constraint is None
        self.stop_ids = frozenset[int]() if endless else options.stop_ids
        self.answer: list[int] = []
        self.prompt_length = backend.length  # `first` sets it again; timed steps do not call `first`
        self._halt: int | None = None

    @abstractmethod
    def take(self, knobs: Knobs) -> None: ...

    @abstractmethod
    def step(self) -> StepEvent: ...

    @property
    def ahead(self) -> bool:
        """Whether steps are under way that `step` has not returned yet; `finish` ends them and returns them."""
        return False

    def finish(self) -> Sequence[StepEvent]:
        return ()

    @property
    def halted(self) -> bool:
        """Whether the answer has reached the point where it must halt. `go_on`, `inject` and `put` lift that."""
        return len(self.answer) == self._halt

    def halt_at(self, tokens: int | None) -> None:
        """Halt where the answer has so many tokens; None: nowhere. Steps under way may not know of it."""
        self._halt = tokens

    def go_on(self) -> None:
        """After a halt: `step` decodes on from the newest token."""
        self._halt = None

    @abstractmethod
    def _went_on(self, stop: Stop | None) -> None:
        """Called after the answer has got tokens that no step has drawn; `stop`: whether they end it."""

    @property
    def _capacity(self) -> int:
        return self.context_length - self.prompt_length

    def first(self, logits: Logits) -> tuple[int, Stop | None]:
        """Draw the answer's first token from the logits (vocab,) after the prompt: it becomes the root."""
        self.prompt_length = length = self._sequence.length
        check_finite(logits[None], length, "target")
        (token,), stop = self._until_stop([Sampler(self.knobs).draw(self._masked(logits, ()), length, self.answer)])
        self._extend([token])
        self._went_on(stop)
        return token, stop

    def inject(self, tokens: Sequence[int], event: GuardEvent) -> StepEvent:
        """After a halt: continue with `tokens` instead of the target's own, no further than one that ends the answer.
        The step's `stop` says whether one did."""
        self.go_on()
        taken, stop = self._until_stop(tokens)
        run, began = [self.answer[-1], *taken[:-1]], time.perf_counter()
        self._sequence.prefill(run)  # the last token is the next root
        ones, nodes = (1.0,) * len(run), tuple(range(len(run)))
        step = StepEvent(
            tokens=tuple(taken),
            tree=StepTree(tuple(run), tuple(range(-1, len(run) - 1)), nodes, ones, ones, nodes),
            drafted_depth=len(run) - 1,
            accepted_depth=len(run) - 1,
            length=self._sequence.length,
            stages=StageTimes(verify=(time.perf_counter() - began) * 1e3),
            mode="plain",
            reason=event.trigger,
            stop=stop,
            bonus=taken[-1],
            knobs=self.knobs,
            guard=event,
        )
        self._supplied(taken, stop)
        return step

    def put(self, token: int) -> Stop | None:
        """After a stop token: the answer has `token` in its place and goes on, unless it ends there too, which is
        returned."""
        self.go_on()
        del self.answer[-1]
        for record in self.constraint, self.log_probs:
            if record is not None:
                record.drop()
        _, stop = self._until_stop((token,))
        self._supplied((token,), stop)
        return stop

    def _supplied(self, tokens: Sequence[int], stop: Stop | None) -> None:
        self._extend(tokens)
        self.policy.injected(tokens)
        self._went_on(stop)

    def _extend(self, tokens: Sequence[int]) -> None:
        self.answer += tokens
        for record in self.constraint, self.log_probs:
            if record is not None:
                record.add(tokens)

    def _masked(self, logits: Logits, path: Sequence[int]) -> Logits:
        """Logits (vocab,) after the answer and `path`, without what the constraint rules out."""
        if self.log_probs is not None:
            self.log_probs.see(path, logits)
        return logits if self.constraint is None else masked(logits, self.constraint.allowed(path))

    def _until_stop(self, tokens: Sequence[int]) -> tuple[list[int], Stop | None]:
        """Cut tokens that follow the answer's end - a stop token, the token limit, the end of the context - or the
        place where it halts."""
        taken: list[int] = []
        for token in tokens:
            taken.append(token)
            answered = len(self.answer) + len(taken)
            stop = stop_at(token, answered, self.knobs, self.stop_ids, self._capacity)
            if stop is not None or answered == self._halt:
                return taken, stop
        return taken, None


class Decoder(AnswerDecoder):
    """Decodes one answer after the prompt that `backend` has just read. Raises NumericsError from both calls.

    Between steps the state ends before the root, the newest token of the answer: drawn, but not yet run.
    """

    def __init__(self, backend: Backend, options: AnswerOptions) -> None:
        super().__init__(backend, options)
        self.backend = backend
        self.take(options.knobs)

    def take(self, knobs: Knobs) -> None:
        """Use other knobs from the next step; those that only a new turn can change stay as they are.

        The answer remains the target's own: from here on its draws follow the new sampling knobs.
        """
        self.knobs = self.knobs.in_mid_turn(knobs)
        self.decision = self._decided()
        self.sampler = Sampler(self.knobs)

    def _went_on(self, stop: Stop | None) -> None:
        self._clock = _Clock()

    def step(self) -> StepEvent:
        """Decode one step after the root, and leave the state at the last token of what it committed."""
        clock = self._clock
        self.decision = self._decided()
        clock.lap("host")
        drafts, tree, choice = self._drafted(clock)
        logits = self.backend.verify(tree.tokens, tree.parents)
        check_finite(logits, self.backend.length, "target")
        clock.lap("verify")
        walk = self.accept(tree, logits)
        tokens, stop = self._until_stop([tree.tokens[node] for node in walk.path[1:]] + [walk.next_token])
        clock.lap("accept")
        # The last token is the next root, not yet run; a stop inside the path cuts the path there too.
        path = walk.path[: len(tokens)]
        self.backend.commit(path)
        clock.lap("commit")
        self._extend(tokens)
        event = StepEvent(
            tokens=tuple(tokens),
            tree=_describe(tree, walk),
            drafted_depth=max(tree.depths),
            accepted_depth=len(walk.path) - 1,
            length=self.backend.length,
            stages=clock.times(),
            mode=self.decision.mode,
            reason=self.policy.watch.reason(self.decision, self.knobs),
            stop=stop,
            drafts=step_drafts(drafts),
            bonus=walk.next_token,
            knobs=self.knobs,
            choice=choice,
            drafter=self._drafter(),
        )
        if self.constraint is None:
            self.policy.observe(event, self._certain(walk, tokens, logits))
        else:  # what a grammar leaves of a tree shows nothing about the drafter
            self.policy.injected(tokens)
        return event

    def _decided(self) -> Decision:
        return self._with_note(self.policy.next(self.knobs))

    def _with_note(self, decision: Decision) -> Decision:
        return decision if self.constraint is None else replace(decision, reason=decision.reason + NOTE)

    def _drafted(self, clock: _Clock) -> tuple[Candidates, Tree, Choice | None]:
        """Candidates and tree of a step. A drafter whose numbers are not finite is left out, and the step goes on
        without it: the text is the target's own."""
        while True:
            try:
                drafts = self.draft()
                clock.lap("draft")
                tree, choice = self.tree(drafts)
            except NumericsError as error:
                if not (kind := self._drafter()):
                    raise
                self.policy.failed(kind, error)
                self.decision = self._decided()
            else:
                clock.lap("tree")
                return drafts, tree, choice

    def _certain(self, walk: Walk, tokens: Sequence[int], logits: Logits) -> Sequence[float]:
        """The target's own probability of each of the last tokens of a step, where the policy needs it."""
        if not self.policy.asks_certain(self.knobs):
            return ()
        drawn = list(zip(walk.path, tokens))
        return [probability(logits[node], token) for node, token in drawn[-LATELY:]]

    def _drafter(self) -> str:
        """The kind of the drafter that the step used; "" where none was."""
        drafts = self.decision.mode != "plain" and self.decision.drafts
        capabilities = self.backend.capabilities
        return (self.decision.drafter or (capabilities.kind if capabilities else "")) if drafts else ""

    def draft(self) -> Candidates:
        """The drafter's best tokens per depth after the root, or none where it is not used."""
        if self.decision.mode == "plain" or not self.decision.drafts:
            return NO_CANDIDATES
        named, knobs = self.decision.drafter, self.decision.drafting(self.knobs)
        return self.backend.propose(self.answer[-1], knobs.replace(draft=named) if named else knobs)

    def tree(self, drafts: Candidates) -> tuple[Tree, Choice | None]:
        """The tree to verify: the policy's own, or the candidates' best-first tree within the budget; a chain has
        only the best ones. It has no nodes past the answer's end or halt."""
        knobs = self.knobs
        deepest = ddtree.deepest_draft(tokens_left(knobs, len(self.answer), self._capacity, self._halt))
        plan = self.policy.plan(knobs, self.answer[-1], drafts, deepest)
        if plan is not None:
            self.decision = self._with_note(plan.decision)
            return self._constrained(plan.tree, deepest), plan.choice
        decision = self.decision
        drafts = drafts.cut(deepest, 1 if decision.mode == "chain" else None)
        budget = min(decision.budget, MAX_NODES)
        tree = ddtree.build(
            self.answer[-1],
            drafts,
            budget if self.constraint is None else SPARE * budget,
            p_min=knobs.p_min,
            chain_seed=knobs.chain_seed,
            stops=self.stop_ids,
        )
        return self._constrained(tree, deepest), None

    def _constrained(self, tree: Tree, deepest: int) -> Tree:
        if self.constraint is not None:
            limits = deepest, MAX_NODES
            tree, self.decision = constrained(tree, self.constraint, self.knobs, self.decision, *limits)
        return tree

    def accept(self, tree: Tree, logits: Logits) -> Walk:
        """Walk the tree by the target's own draws from `logits` (nodes, vocab)."""
        root_position = self.backend.length

        def draw(node: int, path: list[int]) -> int:
            position = root_position + tree.depths[node] + 1
            history = self.answer + path if self.sampler.penalises else ()
            return self.sampler.draw(self._masked(logits[node], path), position, history)

        return ddtree.walk(tree, draw)


def _describe(tree: Tree, walk: Walk) -> StepTree:
    probs = tuple(map(math.exp, tree.log_probs))
    path_probs = tuple(map(math.exp, tree.path_log_probs))
    return StepTree(
        tree.tokens, tree.parents, tree.depths, probs, path_probs, walk.path, tree.values, tree.copied
    )  # fmt: skip


def step_drafts(drafts: Candidates) -> StepDrafts:
    """Candidates as a step records them."""
    # A token that the drafter rules out has a log-probability of -inf, which a record in JSON could not hold.
    log_probs = np.maximum(drafts.log_probs, np.finfo(np.float64).min)
    return StepDrafts(tuple(map(tuple, drafts.tokens.tolist())), tuple(map(tuple, log_probs.tolist())))


class _Clock:
    """Laps from one step to the next: the time between two steps is a lap too."""

    def __init__(self) -> None:
        self.at = time.perf_counter()
        self.laps: dict[str, float] = {}

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.laps[name] = (now - self.at) * 1e3
        self.at = now

    def times(self) -> StageTimes:
        return StageTimes(**self.laps)
