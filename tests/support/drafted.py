"""A machine of numbers that a policy drives: steps take times of a curve, drafts are accepted by a rule. No torch."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from dflash_core.drafters.capabilities import Capabilities
from dflash_core.events import Choice, StageTimes, StepDrafts, StepEvent, StepTree, brings
from dflash_core.knobs import Knobs
from dflash_core.policy.arm import Arm, PairState
from dflash_core.policy.auto import AutoPolicy
from dflash_core.policy.base import Decision
from dflash_core.policy.best_first import ValueTree, build
from dflash_core.policy.choosing import QUEUED, Found
from dflash_core.policy.costs import CPU, H200, CostTable, StepCosts
from dflash_core.policy.queued import QueuedPolicy
from dflash_core.policy.values import Learned, Stated
from dflash_core.tree import Candidates, Tree

DEPTHS, RANKS = 7, 8
MANY = 16  # plain steps that a draft does not take in by itself
KNOBS = Knobs(from_text=False)
THINK = (8, 9)
AHEAD, MAX_AHEAD, CALM_MS, BUSY_MS = 2, 6, 0.5, 2.0  # as in backends/cuda/step.py, which needs torch


@dataclass(frozen=True)
class Host:
    """Milliseconds of a card's host: to queue and read a `step`; more to queue a step that drafts after one that does
    not (`begin`), or the other way round (`end`), and to `read` a draft after plain steps. On the card a draft after
    many of those has to `catch_up`, and each third such draft waits `rare`ly for longer. Each `every`-th step waits for
    a machine that pauses for `pause`."""

    step: float = 0.0
    begin: float = 0.0
    end: float = 0.0
    read: float = 0.0
    catch_up: float = 0.0
    rare: float = 0.0
    pause: float = 0.0
    every: int = 1


NONE = Host()


@dataclass
class Ran:
    """`lost[n]`: the time that the first n tokens took, over plain decoding's, minus 1."""

    plain: float
    times: list[float] = field(default_factory=lambda: [0.0])
    drafts: int = 0
    modes: list[str] = field(default_factory=list)

    def lost(self, tokens: int, since: int = 0) -> float:
        return (self.times[tokens] - self.times[since]) / (self.plain * (tokens - since)) - 1


def target(position: int) -> int:
    """The text never repeats itself."""
    return 100 + position


def policy_for(late: bool, kind: str = "dflash", shape: CostTable | None = None) -> AutoPolicy:
    drafter = Capabilities(kind, DEPTHS + 1, on_device=late)
    costs = StepCosts(shape or (H200 if late else CPU))
    arm = Arm(drafter, PairState(), costs)
    return QueuedPolicy(arm, think_ids=THINK) if late else AutoPolicy([arm], think_ids=THINK)


def proven(policy: AutoPolicy) -> AutoPolicy:
    """The policy of a card whose drafts are known to bring three tokens."""
    policy.arm.state.parts["answer"].drafts[QUEUED] = Found(27.0, 12.0, 9.0)
    return policy


def run(
    policy: AutoPolicy,
    shape: CostTable,
    right: Callable[[int], int],
    tokens: int = 2000,
    answers: int = 1,
    thinking: int = 0,
    host: Host = NONE,
    copied: bool = False,
) -> Ran:
    """`answers` answers of `tokens` tokens on a machine of `shape`; drafts are right for `right(position)` tokens,
    which are `copied` from the text while the drafter itself is wrong. Steps of a late policy are queued ahead.
    `thinking`: how many tokens of each answer are reasoning."""
    ran, curve, late = Ran(max(shape.plain, host.step)), shape.curve(), isinstance(policy, QueuedPolicy)
    now = done = 0.0  # on the host's clock, and when the card has done all that was read
    step_ms, since, before = math.inf, MANY, "plain"  # `since`: plain steps since the last draft
    for answer in range(answers):
        policy.next(KNOBS)  # a decoder asks before its answer begins
        policy.begin([1, THINK[0] if thinking else 2], frozenset())
        queue: deque[tuple[Decision, float]] = deque()
        at, said = answer * tokens, 0
        while said < tokens:
            covering = math.ceil((BUSY_MS if policy.busy_soon else CALM_MS) / step_ms)
            ahead = min(max(covering, AHEAD), MAX_AHEAD) if late else 1
            while len(queue) < min(ahead, tokens - said):
                decision = policy.next(KNOBS)
                now += host.step / 2 + _more(host, before, before := decision.mode)
                queue.append((decision, now))
                policy.queued()
            policy.spare()
            decision, launched = queue.popleft()
            done = done if said else launched  # nothing waits for an answer's first step
            wait = max(launched - done, 0.0) + host.pause * (len(ran.modes) % host.every == host.every - 1)
            drafts = decision.mode != "plain"
            if drafts and since >= MANY:
                wait += host.catch_up + host.rare * (ran.drafts % 3 == 2)
            event = step(policy, decision, curve, shape, at, right(at), wait)
            if copied and drafts:
                tree = replace(event.tree, copied=event.tree.accepted[1:])
                event = replace(event, tree=tree, drafts=StepDrafts(((0,),), ((0.0,),)))
            done += event.stages.total
            now = max(now, done) + host.step / 2 + host.read * (drafts and since > 0)
            since = 0 if drafts else since + 1
            step_ms = event.stages.total
            ids = event.tokens[: tokens - said]
            ran.times += [ran.times[-1]] * (len(ids) - 1) + [ran.times[-1] + event.stages.total]
            ran.drafts += drafts
            ran.modes.append(event.mode)
            if said < thinking <= said + len(ids):
                event = replace(event, tokens=(*event.tokens[:-1], THINK[1]))
            policy.observe(event)
            at, said = at + len(ids), said + len(ids)
    return ran


def _more(host: Host, before: str, mode: str) -> float:
    """What it takes the host more to queue a step of another mode than the one before."""
    return 0.0 if before == mode else host.end if mode == "plain" else host.begin


def step(
    policy: AutoPolicy, decision: Decision, curve: list[float], shape: CostTable, at: int, right: int, wait: float
) -> StepEvent:
    root, choice = target(at), None
    if decision.mode == "plain":
        return StepEvent((target(at + 1),), _described(Tree((root,), (-1,), (0,), (0.0,), (0.0,)), (0,)), 0, 0, at,
                         StageTimes(verify=shape.plain, host=wait), "plain", decision.reason, knobs=KNOBS)  # fmt: skip
    drafted = decision.depth or DEPTHS
    depths, ranks = np.arange(drafted)[:, None], np.arange(RANKS)[None]
    ids = np.where((ranks == 0) & (depths < right), 101 + at + depths, 10**6 + 1000 * at + RANKS * depths + ranks)
    log_probs = np.log(np.full((drafted, RANKS), 0.03) + 0.6 * (ranks == 0))
    if not isinstance(policy, QueuedPolicy):
        plan = policy.plan(KNOBS, root, Candidates(ids.astype(np.int64), log_probs), DEPTHS)
        assert plan is not None
        tree, choice = plan.tree, plan.choice
    else:
        built = value_tree(policy, ids, log_probs, root, decision.budget)
        tree = built.first(len(built) - 1)
        choice = Choice(brings(built.values), len(tree))
    path = [0]
    while (child := next((node for node in range(1, len(tree)) if tree.parents[node] == path[-1]
                          and tree.tokens[node] == target(at + len(path))), 0)):  # fmt: skip
        path.append(child)
    said = tuple(target(at + 1 + depth) for depth in range(len(path)))
    ms = curve[len(tree)]
    return StepEvent(said, _described(tree, tuple(path)), max(tree.depths), len(path) - 1, at,
                     StageTimes(draft=shape.draft, verify=ms - shape.draft, host=wait), decision.mode, decision.reason,
                     drafts=StepDrafts(tuple(map(tuple, ids.tolist())), tuple(map(tuple, log_probs.tolist()))),
                     knobs=KNOBS, choice=choice)  # fmt: skip


def value_tree(policy: AutoPolicy, ids: np.ndarray, log_probs: np.ndarray, root: int, nodes: int) -> ValueTree:
    weights = policy.weights(KNOBS)
    return build(Stated(ids, log_probs), Learned(weights), None, root, (), nodes)


def _described(tree: Tree, path: tuple[int, ...]) -> StepTree:
    return StepTree(tree.tokens, tree.parents, tree.depths, (0.5,) * len(tree), (0.5,) * len(tree), path, tree.values)
