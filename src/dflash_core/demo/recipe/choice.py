"""What the choice among the demo pair's drafters brings, on recorded answers: tokens per second by set of prompts.

    python -m dflash_core.demo.recipe.choice --prompts FOLDER

Answers are greedy and lossless, so their text is known, and so is what every drafter would have proposed after each
of their tokens. The policies then decode the same stream of answers, in mixed order. Steps cost what they cost the demo
pair on one core (`policy/costs.py`), drafting as each drafter was timed. Minutes on a CPU.
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dflash_core import Engine, Knobs, load_draft, load_target
from dflash_core.bench.replay import GivenCosts, decode_known
from dflash_core.conversation import Message, build_prompt
from dflash_core.demo.pair import demo_draft, demo_target_path
from dflash_core.drafters.capabilities import Capabilities
from dflash_core.events import StepEvent
from dflash_core.policy.base import Policy
from dflash_core.policy.costs import CPU
from dflash_core.policy.learned import LearnedPolicy
from dflash_core.policy.pair import PairState
from dflash_core.policy.several import SeveralPolicy
from dflash_core.text.tokenizer import THINK_TAGS
from dflash_core.tree import NO_CANDIDATES, Candidates

from .bench_prompts import FILES, file_questions, held_questions
from .record_drafts import _facts, _fresh, _say, certain

LONGEST = 96
LONGEST_PROMPT = 600
PASSES = 5
"""Times that the answers are decoded, in another order each."""


@dataclass(frozen=True, slots=True)
class Answered:
    """An answer with what each drafter proposes after every token of it."""

    group: str
    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    drafts: dict[str, list[Candidates]]
    certain: tuple[float, ...] = ()  # the target's own probability of each token of the answer


class Pair:
    """The demo target with each of its drafters."""

    def __init__(self, kinds: Sequence[str]) -> None:
        self.target = load_target(demo_target_path())
        self.drafts = {kind: load_draft(demo_draft(kind), self.target) for kind in kinds}
        self.engines = {kind: Engine(self.target, draft) for kind, draft in self.drafts.items()}
        special = self.target.tokenizer.special
        self.think = (special[THINK_TAGS[0]], special[THINK_TAGS[1]])
        self.stops = self.target.tokenizer.stop_ids

    def answered(self, group: str, text: str, thinking: bool) -> Answered | None:
        """A prompt's greedy answer; None where it is too short to tell anything."""
        prompt = build_prompt(self.target.tokenizer, self.target.template, [Message("user", text)], thinking).ids
        prompt, engine = prompt[:LONGEST_PROMPT], next(iter(self.engines.values()))
        engine.reset()
        events = list(engine.generate(prompt, Knobs(mode="tree", budget=30, max_tokens=LONGEST)))
        answer = tuple(token for event in events for token in event.tokens)
        if len(answer) < 8:
            return None
        whole, drafts = [*prompt, *answer], {}
        for kind, draft in self.drafts.items():
            session = self.target.session(draft)
            session.prefill(whole[:-1])
            places = range(len(prompt), len(whole) - 1)
            drafts[kind] = [session.propose(whole[at], Knobs(), at=at) if kind != "text" else NO_CANDIDATES
                            for at in places]  # fmt: skip
        return Answered(group, tuple(prompt), answer, drafts, certain(self.target, prompt, answer))

    def draft_ms(self, kind: str, prompt: Sequence[int]) -> float:
        """What drafting takes in a step, the median of an answer's."""
        self.engines[kind].reset()
        events = self.engines[kind].generate(prompt, Knobs(mode="tree", max_tokens=LONGEST, ignore_eos=True))
        return statistics.median(event.stages.draft for event in events if isinstance(event, StepEvent))


def costs_of(draft_ms: float) -> GivenCosts:
    """Steps of the demo pair on one core with a drafter that takes so long."""
    more = draft_ms - CPU.draft
    return GivenCosts(replace(CPU, steps={rows: ms + more for rows, ms in CPU.steps.items()}, draft=draft_ms))


def stream(answers: Sequence[Answered], seed: int) -> list[Answered]:
    """All answers, PASSES times, in mixed order."""
    draws, out = random.Random(seed), list[Answered]()
    for _ in range(PASSES):
        out += draws.sample(answers, len(answers))
    return out


def speeds(
    pair: Pair, answers: Sequence[Answered], policy: Policy, costs: dict[str, GivenCosts], kind: str
) -> dict[str, tuple[int, float]]:
    """Tokens and milliseconds by group of prompts; `kind`: who drafts where the policy names nobody."""
    found: dict[str, tuple[int, float]] = {}
    for one in answers:
        tokens, ms = found.get(one.group, (0, 0.0))
        said, took = decode_known(one.prompt, one.answer, one.drafts, policy, costs, kind, pair.stops, one.certain)
        found[one.group] = tokens + said, ms + took
    return found


def _row(name: str, found: dict[str, tuple[int, float]], groups: Sequence[str]) -> str:
    whole = sum(tokens for tokens, _ in found.values()) / sum(ms for _, ms in found.values()) * 1e3
    cells = [f"{found[group][0] / found[group][1] * 1e3:.0f}" for group in groups]
    return f"| {name} | {' | '.join(cells)} | {whole:.0f} |"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=Path, default=None, help="a folder with HumanEval and gsm8k files")
    parser.add_argument("--texts", type=int, default=16, help="held-out prompts")
    parser.add_argument("--others", type=int, default=8, help="prompts of each other set")
    parser.add_argument("--part", type=int, default=0, choices=range(4), help="which prompts: no two parts share one")
    parser.add_argument("--kinds", default="dflash2+mtp")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="of the order of answers")
    parser.add_argument("--draft-ms", type=float, nargs="+", help="what drafting takes, by kind; else it is timed")
    options = parser.parse_args()
    kinds = options.kinds.split("+")
    pair, copies = Pair(kinds), {name: set(numbers) for name, numbers in _facts()["near_copies"].items()}
    held, near = held_questions(), copies.get("held", set())
    asked = [("held-out", one.text, False) for one in _fresh(held, near, options.texts, options.part)]
    asked += [("held-out, thinking on", one.text, True) for one in _fresh(held, near, options.others, options.part)]
    for name in FILES if options.prompts else ():
        questions = file_questions(options.prompts, name)
        chosen = _fresh(questions, copies.get(name, set()), options.others, options.part)
        asked += [(name, one.text, False) for one in chosen]
    answers = [found for one in asked if (found := pair.answered(*one)) is not None]
    if options.draft_ms:
        drafting = dict(zip(kinds, options.draft_ms, strict=True))
    else:
        drafting = {kind: 0.0 if kind == "text" else pair.draft_ms(kind, answers[0].prompt) for kind in kinds}
    costs, blocks = {kind: costs_of(ms) for kind, ms in drafting.items()}, {}
    for kind, draft in pair.drafts.items():
        blocks[kind] = Capabilities(kind, draft.capabilities.block)

    def policy(kind: str) -> LearnedPolicy:
        return LearnedPolicy(blocks[kind], PairState(), costs[kind], think_ids=pair.think)

    groups = list(dict.fromkeys(one.group for one in answers))
    _say(f"drafting: {', '.join(f'{kind} {ms:.1f} ms' for kind, ms in drafting.items())}; {len(answers)} answers")
    _say(f"| tokens per second | {' | '.join(groups)} | all |\n{'|---' * (len(groups) + 2)}|")
    for seed in options.seeds:
        mixed = stream(answers, seed)
        for kind in kinds:
            _say(_row(f"{kind}, order {seed}", speeds(pair, mixed, policy(kind), costs, kind), groups))
        several = SeveralPolicy([policy(kind) for kind in kinds])
        _say(_row(f"auto, order {seed}", speeds(pair, mixed, several, costs, kinds[0]), groups))


if __name__ == "__main__":
    main()
