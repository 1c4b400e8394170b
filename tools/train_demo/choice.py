"""Measures what the choice among the demo target's drafters gains on recorded answers: tokens per second by prompt set.

    python -m tools.train_demo.choice --prompts FOLDER --records FILE

Answers are greedy and decoding is lossless, so their text is known, and so is what every drafter would propose after
each of their tokens. The policies then decode the same stream of answers, in mixed order. A step is charged the time
that the demo pair takes on one core (`policy/costs.py`), with each drafter's own drafting time. Recording takes minutes
on a CPU; `--records` keeps the answers in a file.
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from dflash_core import Engine, Knobs, load_draft, load_target
from dflash_core.demo import demo_draft, demo_target_path
from dflash_core.drafters.capabilities import Capabilities
from dflash_core.events import StepEvent
from dflash_core.messages import Message
from dflash_core.policy.arm import Arm, PairState
from dflash_core.policy.auto import AutoPolicy
from dflash_core.policy.base import Policy
from dflash_core.policy.costs import CPU
from dflash_core.prompting import build_prompt
from dflash_core.text.prompt import Prompting
from dflash_core.text.tokenizer import THINK_TAGS
from dflash_core.tree import NO_CANDIDATES
from tools.bench.replay import GivenCosts, decode_known

from .bench_prompts import FILES, file_questions, held_questions
from .choice_records import Answered, load, save
from .record_drafts import _facts, _fresh, _say, certain

LONGEST = 96
LONGEST_PROMPT = 600
PASSES = 5
"""How often all answers are decoded, each time in another order."""
WITHIN = 0.03  # share of the better single drafter's speed that the choice may lose in a set
DRAWS = 2000  # bootstrap samples


class Pair:
    """The demo target with each of the drafters `kinds`."""

    def __init__(self, kinds: Sequence[str]) -> None:
        self.target = load_target(demo_target_path())
        self.drafts = {kind: load_draft(demo_draft(kind), self.target) for kind in kinds}
        self.engines = {kind: Engine(self.target, draft) for kind, draft in self.drafts.items()}
        special = self.target.tokenizer.special
        self.think = (special[THINK_TAGS[0]], special[THINK_TAGS[1]])
        self.stops = self.target.tokenizer.stop_ids

    def answered(self, group: str, text: str, thinking: bool) -> Answered | None:
        """A prompt's greedy answer with the drafts after each token; None where it has fewer than 8 tokens."""
        prompt = build_prompt(
            Prompting(self.target.tokenizer, self.target.template, thinking), [Message("user", text)]
        ).ids
        prompt, engine = prompt[:LONGEST_PROMPT], next(iter(self.engines.values()))
        engine.reset()
        events = list(engine.generate(prompt, Knobs(drafting="tree 30", max_tokens=LONGEST)))
        answer = tuple(token for event in events for token in event.tokens)
        if len(answer) < 8:
            return None
        whole, drafts = [*prompt, *answer], {}
        for kind, draft in self.drafts.items():
            session = self.target.session(draft)
            session.prefill(whole[:-1])
            places = range(len(prompt), len(whole) - 1)
            drafts[kind] = [session.propose(whole[at], Knobs(), at=at) if kind != "ngram" else NO_CANDIDATES
                            for at in places]  # fmt: skip
        return Answered(group, tuple(prompt), answer, drafts, certain(self.target, prompt, answer))

    def draft_ms(self, kind: str, prompt: Sequence[int]) -> float:
        """Milliseconds of drafting in a step, the median over an answer."""
        self.engines[kind].reset()
        events = self.engines[kind].generate(prompt, Knobs(drafting="tree 22", max_tokens=LONGEST, ignore_eos=True))
        return statistics.median(event.stages.draft for event in events if isinstance(event, StepEvent))


def costs_of(draft_ms: float) -> GivenCosts:
    """Step costs of the demo pair on one core with a drafter that takes `draft_ms`."""
    more = draft_ms - CPU.draft
    return GivenCosts(replace(CPU, steps={rows: ms + more for rows, ms in CPU.steps.items()}, draft=draft_ms))


def stream(answers: Sequence[Answered], seed: int) -> list[Answered]:
    """All answers PASSES times, each time in another order."""
    draws, out = random.Random(seed), list[Answered]()
    for _ in range(PASSES):
        out += draws.sample(answers, len(answers))
    return out


Speeds = dict[str, list[tuple[int, float]]]
"""By set of prompts: tokens and milliseconds of each of its texts."""


def speeds(pair: Pair, answers: Sequence[Answered], policy: Policy, costs: dict[str, GivenCosts], kind: str) -> Speeds:
    """Decode `answers` under `policy`. `kind`: the drafter where the policy names none."""
    found: dict[tuple[str, tuple[int, ...]], tuple[int, float]] = {}
    for one in answers:
        tokens, ms = found.get((one.group, one.prompt), (0, 0.0))
        said, took = decode_known(one.prompt, one.answer, one.drafts, policy, costs, kind, pair.stops, one.certain)
        found[one.group, one.prompt] = tokens + said, ms + took
    groups: Speeds = {}
    for (group, _), each in sorted(found.items()):
        groups.setdefault(group, []).append(each)
    return groups


def _speed(texts: Iterable[tuple[int, float]]) -> float:
    """Tokens per second."""
    tokens, ms = 0, 0.0
    for said, took in texts:
        tokens, ms = tokens + said, ms + took
    return tokens / ms * 1e3


def _row(name: str, found: Speeds, groups: Sequence[str]) -> str:
    cells = [*(found[group] for group in groups), [each for texts in found.values() for each in texts]]
    return f"| {name} | {' | '.join(f'{_speed(texts):.0f}' for texts in cells)} |"


def over_better(auto: Sequence[tuple[int, float]], alone: Iterable[Sequence[tuple[int, float]]]) -> float:
    """The choice's speed divided by that of the better single drafter on the same texts, minus 1."""
    return _speed(auto) / max(_speed(each) for each in alone) - 1


def drawn_again(auto: Sequence[tuple[int, float]], alone: Sequence[Sequence[tuple[int, float]]]) -> tuple[float, float]:
    """The 95 % bootstrap interval of `over_better`: the texts are resampled with replacement."""
    draws, found = random.Random(DRAWS), list[float]()
    for _ in range(DRAWS):
        at = draws.choices(range(len(auto)), k=len(auto))
        found.append(over_better([auto[n] for n in at], [[each[n] for n in at] for each in alone]))
    found.sort()
    return found[DRAWS // 40], found[-1 - DRAWS // 40]


def _over(auto: Speeds, alone: Sequence[Speeds], groups: Sequence[str]) -> list[float]:
    whole = [[each for texts in found.values() for each in texts] for found in (auto, *alone)]
    return [
        *(over_better(auto[one], [each[one] for each in alone]) for one in groups),
        over_better(whole[0], whole[1:]),
    ]


def _together(orders: Sequence[Speeds], group: str) -> list[tuple[int, float]]:
    """Tokens and milliseconds of each text of a set, summed over all orders."""
    texts = zip(*(one[group] for one in orders), strict=True)
    return [(sum(tokens for tokens, _ in each), sum(ms for _, ms in each)) for each in texts]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=Path, default=None, help="a folder with HumanEval and gsm8k files")
    parser.add_argument("--texts", type=int, default=16, help="held-out prompts")
    parser.add_argument("--others", type=int, default=8, help="prompts of each other set")
    parser.add_argument("--part", type=int, default=0, choices=range(4), help="which prompts: no two parts share one")
    parser.add_argument("--kinds", default="dflash2+mtp")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="seeds of the orders of answers")
    parser.add_argument("--draft-ms", type=float, nargs="+", help="drafting time of each kind; else it is timed")
    parser.add_argument("--records", type=Path, help="a file (.npz) that keeps the answers; it is read where it exists")
    options = parser.parse_args()
    kinds = options.kinds.split("+")
    pair = Pair(kinds)
    answers = _answers(pair, options)
    if options.draft_ms:
        drafting = dict(zip(kinds, options.draft_ms, strict=True))
    else:
        drafting = {kind: 0.0 if kind == "ngram" else pair.draft_ms(kind, answers[0].prompt) for kind in kinds}
    costs, blocks = {kind: costs_of(ms) for kind, ms in drafting.items()}, {}
    for kind, draft in pair.drafts.items():
        blocks[kind] = Capabilities(kind, draft.capabilities.block)

    def policy(*kinds: str) -> AutoPolicy:
        arms = [Arm(blocks[kind], PairState(), costs[kind]) for kind in kinds]
        return AutoPolicy(arms, think_ids=pair.think)

    groups = list(dict.fromkeys(one.group for one in answers))
    _say(f"drafting: {', '.join(f'{kind} {ms:.1f} ms' for kind, ms in drafting.items())}; {len(answers)} answers")
    _say(f"| tokens per second | {' | '.join(groups)} | all |\n{'|---' * (len(groups) + 2)}|")
    orders, within = list[list[Speeds]](), 0
    for seed in options.seeds:
        mixed = stream(answers, seed)
        alone = [speeds(pair, mixed, policy(kind), costs, kind) for kind in kinds]
        auto = speeds(pair, mixed, policy(*kinds), costs, kinds[0])
        for name, found in zip((*kinds, "auto"), (*alone, auto), strict=True):
            _say(_row(f"{name}, order {seed}", found, groups))
        over = _over(auto, alone, groups)
        within += sum(one >= -WITHIN for one in over[:-1])
        _say(f"| over the better one | {' | '.join(f'{one:+.1%}' for one in over)} |")
        orders.append([auto, *alone])
    cells = []
    for group in groups:
        auto_all, *alone_all = [_together([order[n] for order in orders], group) for n in range(len(kinds) + 1)]
        low, high = drawn_again(auto_all, alone_all)
        cells.append(f"{over_better(auto_all, alone_all):+.1%} ({low:+.1%} to {high:+.1%})")
    _say(f"| all orders; with other texts (95 %) | {' | '.join(cells)} | |")
    _say(f"{within} of {len(groups) * len(orders)} sets within {WITHIN:.0%} of the better one")


def _answers(pair: Pair, options: argparse.Namespace) -> list[Answered]:
    """The recorded answers: read from the file if it exists, else recorded and written to it."""
    asked = f"{options.kinds}, {options.texts} and {options.others} texts, part {options.part}"
    if options.records and options.records.exists():
        selectors = {kind: getattr(draft.model, "selector", None) for kind, draft in pair.drafts.items()}
        return load(options.records, asked, selectors)
    copies = {name: set(numbers) for name, numbers in _facts()["near_copies"].items()}
    held, near = held_questions(), copies.get("held", set())
    prompts = [("held-out", one.text, False) for one in _fresh(held, near, options.texts, options.part)]
    prompts += [("held-out, thinking on", one.text, True) for one in _fresh(held, near, options.others, options.part)]
    for name in FILES if options.prompts else ():
        questions = file_questions(options.prompts, name)
        chosen = _fresh(questions, copies.get(name, set()), options.others, options.part)
        prompts += [(name, one.text, False) for one in chosen]
    answers = [found for one in prompts if (found := pair.answered(*one)) is not None]
    if options.records:
        save(options.records, answers, asked)
    return answers


if __name__ == "__main__":
    main()
