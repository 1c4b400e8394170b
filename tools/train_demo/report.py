"""Measures the shipped pair on the CPU and writes its model card: `python -m tools.train_demo.report`.

All but the plain loop and the acceptance lengths by budget is measured through the public interface, so the numbers are
those that a user gets. `--bench FOLDER` adds rows for HumanEval and gsm8k_test if you have those files.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import torch

from dflash_core import Engine, Knobs, load_draft, load_target
from dflash_core.backends.opened import Target
from dflash_core.demo import WEIGHTS, demo_dflash2_path, demo_draft_path, demo_mtp_path, demo_target_path
from dflash_core.events import PrefillEvent, StepEvent
from dflash_core.messages import Message
from dflash_core.prompting import build_prompt
from dflash_core.text.prompt import Prompting
from dflash_core.turn_stats import TurnStats, turn_stats

from . import bench_prompts, export
from .acceptance import acceptance
from .answers import answer_all
from .bench_prompts import Question
from .card import MTP_DEPTHS, Measured, Speed, bars_table, card, loss_picture
from .decode import decode_state, target_step
from .shapes import import_form
from .sizes import draft_configs, target_config

BUDGETS = (4, 8, 15, 16, 18, 22, 30, 40, 63)
FENCE = re.compile(r"```python\n(.*?)```", re.DOTALL)
NUMBER = re.compile(r"-?\d+")


@dataclass
class Run:
    """The results of one setting: an entry per prompt in each list, and how many answers ended by themselves."""

    texts: list[str] = field(default_factory=list)
    tokens: list[tuple[int, ...]] = field(default_factory=list)
    stats: list[TurnStats] = field(default_factory=list)
    ended: int = 0

    @property
    def acceptance_length(self) -> float:
        """Committed tokens per step over all steps."""
        return sum(s.tokens - 1 for s in self.stats) / max(1, sum(s.steps for s in self.stats))

    @property
    def tokens_per_second(self) -> float:
        return sum(s.tokens - 1 for s in self.stats) / max(1e-9, sum(s.decode_s for s in self.stats))

    @property
    def steps(self) -> int:
        return sum(s.steps for s in self.stats)

    def stage_ms(self, name: str) -> float:
        """Mean milliseconds of one stage per step."""
        return float(sum(getattr(s.stage_ms, name) * s.steps for s in self.stats)) / max(1, self.steps)

    def depth_rates(self) -> list[float]:
        """By depth: the share of the steps that drafted it in which the accepted path reached it."""
        deepest = max((len(s.drafted_by_depth) for s in self.stats), default=0)
        rates = []
        for d in range(deepest):
            have = [s for s in self.stats if len(s.drafted_by_depth) > d]
            reached = sum(s.accept_rate_by_depth[d] * s.drafted_by_depth[d] for s in have)
            rates.append(reached / sum(s.drafted_by_depth[d] for s in have))
        return rates


def prompt_ids(target: Target, question: str, thinking: bool) -> tuple[int, ...]:
    """The prompt of a conversation that begins with `question`."""
    return build_prompt(Prompting(target.tokenizer, target.template, thinking), [Message("user", question)]).ids


def run(engine: Engine, target: Target, questions: Iterable[Question], knobs: Knobs) -> Run:
    """Answer every question from an empty state."""
    out = Run()
    for question in questions:
        ids = prompt_ids(target, question.text, knobs.thinking)
        prefill: PrefillEvent | None = None
        steps: list[StepEvent] = []
        spent, last = 0.0, 0.0
        for event in engine.generate(ids, knobs):
            now = time.perf_counter()
            if isinstance(event, PrefillEvent):
                prefill = event
            elif isinstance(event, StepEvent):
                steps.append(event)
                spent += now - last
            last = now
        if prefill is None:
            continue
        tokens = (*prefill.tokens, *(t for s in steps for t in s.tokens))
        out.tokens.append(tokens)
        out.stats.append(turn_stats(prefill, steps, spent))
        out.ended += (steps[-1].stop if steps else prefill.stop) == "stop token"
        out.texts.append(target.tokenizer.decode([t for t in tokens if t not in target.tokenizer.stop_ids]))
    return out


def loops(tokens: Sequence[int], longest: int = 32) -> bool:
    """Whether the text ends in the same 4 to `longest` tokens three times over."""
    t = list(tokens)
    return any(t[-n:] == t[-2 * n : -n] == t[-3 * n : -2 * n] for n in range(4, longest + 1) if len(t) >= 3 * n)


def parses(text: str) -> bool:
    """Whether an answer holds a fenced Python block with a function, and every such block parses."""
    blocks = FENCE.findall(text)
    try:
        trees = [ast.parse(block) for block in blocks]
    except SyntaxError:
        return False
    return any(isinstance(node, ast.FunctionDef) for tree in trees for node in tree.body)


def right(text: str, question: Question) -> bool:
    """Whether the number after the equals sign is the expected one."""
    if question.expected is None:
        return False
    want = NUMBER.findall(question.expected.answer.split("=")[-1])
    got = NUMBER.findall(text.split("=")[-1])
    return bool(want) and got[:1] == want[:1]


def plain_loop_ms(texts: Sequence[tuple[Sequence[int], Sequence[int]]]) -> float:
    """Milliseconds per token of (prompt, answer) pairs in a plain loop without the decoder.

    The loop runs the recipe's own one-token step in float32.
    """
    c = target_config()
    w = import_form(export.read_weights(demo_target_path()))
    spent, count = 0.0, 0
    with torch.inference_mode():
        for prompt, answer in texts:
            state = decode_state(c, 1, len(prompt) + len(answer), torch.device("cpu"), torch.float32)
            for i, token in enumerate([*prompt, *answer[:-1]]):
                begun = time.perf_counter()
                int(target_step(c, w, state, torch.tensor([token])).argmax())
                if i >= len(prompt):
                    spent, count = spent + time.perf_counter() - begun, count + 1
    return 1000 * spent / max(1, count)


class Walked:
    """Acceptance lengths of every budget at once: drafts for all positions of the greedy answers, then simulated steps.

    The decoder is lossless, so the answer and the drafts determine its steps. The card shows both side by side.
    """

    def __init__(self) -> None:
        self.c = target_config()
        self.weights = import_form(export.read_weights(demo_target_path()))

    def lengths(self, prompts: Sequence[Sequence[int]]) -> dict[str, float]:
        """ "chain" and each budget of BUDGETS -> acceptance length over 128 tokens of greedy answer."""
        file = demo_draft_path()
        drafter, _ = draft_configs(self.c)[file.name]
        asked = [np.array(ids) for ids in prompts]
        answers = answer_all(
            self.c, self.weights, asked, batch=len(asked), most=128, temperature=0.0, seed=0
        )  # fmt: skip
        texts = [(list(p), a.tolist()) for p, a in zip(prompts, answers, strict=True)]
        return acceptance(self.c, self.weights, drafter, export.read_weights(file), texts, BUDGETS)


DRAFTERS = {
    "DFlash": demo_draft_path(),
    "DFlash 2": demo_dflash2_path(),
    "MTP head": demo_mtp_path(),
    "n-grams": Path("ngram"),
}


def by_parent(target: Target, questions: Sequence[Question]) -> tuple[float, float]:
    """Acceptance lengths of the DFlash 2 drafter's trees of 22: scored by the token above, and by marginals."""
    engine = Engine(target, load_draft(demo_dflash2_path(), target=target))
    tree = Knobs(drafting="tree 22", max_tokens=128)
    on, off = (run(engine, target, questions, tree.replace(by_parent=one)).acceptance_length for one in (True, False))
    return on, off


def chain_rates(target: Target, draft: Path, questions: Iterable[Question]) -> tuple[float, list[float]]:
    """Acceptance length and accept rate by draft position of a drafter's chains of MTP_DEPTHS."""
    engine = Engine(target, load_draft(draft, target=target))
    found = run(engine, target, questions, Knobs(drafting=f"chain {MTP_DEPTHS}", mtp_depth=MTP_DEPTHS, max_tokens=128))
    return found.acceptance_length, found.depth_rates()


def measure(count: int, bench: Path | None, say: Callable[[str], None]) -> Measured:
    """All numbers of the card, from `count` prompts a row; `say` gets a line for each as it is known."""
    target = load_target(demo_target_path(), device="cpu")
    facts = json.loads((WEIGHTS / "demo.json").read_text(encoding="utf-8"))
    copies = {name: set(numbers) for name, numbers in facts["near_copies"].items()}

    def fresh(questions: list[Question], name: str, most: int = count) -> list[Question]:
        clean = [q for q in questions if q.number not in copies.get(name, set())]
        return clean[:: max(1, len(clean) // most)][:most]

    engine = Engine(target, load_draft(demo_draft_path(), target=target))
    tree, chain, ar = (Knobs(max_tokens=128).replace(mode=m) for m in ("tree", "chain", "plain"))
    everything = bench_prompts.held_questions()
    mixed = fresh(everything, "held")

    code = fresh(bench_prompts.held_questions({"library", "combined"}), "held")
    answers = run(engine, target, code, tree.replace(max_tokens=256))
    parse = (sum(map(parses, answers.texts)), len(code))
    say(f"python answers that parse: {parse}")
    asked = fresh(bench_prompts.held_questions({"sum", "difference"}), "held", 4 * count)
    answers = run(engine, target, asked, tree.replace(max_tokens=32))
    sums = (sum(right(t, q) for t, q in zip(answers.texts, asked, strict=True)), len(asked))
    say(f"sums and differences: {sums}")
    answers = run(engine, target, mixed, tree.replace(max_tokens=256))
    ended = (answers.ended, sum(map(loops, answers.tokens)), len(mixed))
    say(f"ended by themselves, loops: {ended}")

    walked = Walked()
    prompts = [prompt_ids(target, q.text, False) for q in mixed]
    thoughts = [prompt_ids(target, q.text, True) for q in mixed]
    rows = {"held-out, thinking off": (len(mixed), walked.lengths(prompts))}
    rows["held-out, thinking on"] = (len(mixed), walked.lengths(thoughts))
    for name in bench_prompts.FILES if bench else ():
        questions = fresh(bench_prompts.file_questions(bench or Path(), name), name)
        rows[name] = (len(questions), walked.lengths([prompt_ids(target, q.text, False) for q in questions]))
    for name, (_, found) in rows.items():
        say(f"{name}: " + ", ".join(f"{k} {v:.2f}" for k, v in found.items()))

    timed: dict[str, list[Run]] = {"ar": [], "tree": [], "chain": []}
    loops_ms: list[float] = []
    for _ in range(3):  # in turns, so that a busy machine slows all of them
        for name, knobs in (("ar", ar), ("tree", tree), ("chain", chain)):
            timed[name].append(run(engine, target, mixed, knobs))
        loops_ms.append(plain_loop_ms(list(zip(prompts, timed["ar"][-1].tokens, strict=True))))
    best = {name: max(runs, key=lambda r: r.tokens_per_second) for name, runs in timed.items()}
    speed = Speed(
        ar=best["ar"].tokens_per_second,
        tree=best["tree"].tokens_per_second,
        chain=best["chain"].tokens_per_second,
        draft_ms=best["tree"].stage_ms("draft"),
        verify_ms=best["tree"].stage_ms("verify"),
        rest_ms=sum(best["tree"].stage_ms(s) for s in ("tree", "accept", "commit")),
        ar_ms=1000 / best["ar"].tokens_per_second,
        loop_ms=min(loops_ms),
        same=sum(a == b for a, b in zip(best["ar"].tokens, best["tree"].tokens, strict=True)),
    )
    decoder = (best["chain"].acceptance_length, best["tree"].acceptance_length, best["tree"].depth_rates())
    chains = {name: chain_rates(target, file, mixed) for name, file in DRAFTERS.items()}
    say(f"speed: {asdict(speed)}, decoder: {decoder}")
    return Measured(
        facts=facts,
        count=len(mixed),
        held_questions=len(everything),
        parse=parse,
        sums=sums,
        ended=ended,
        acceptance=rows,
        speed=speed,
        chain_length=decoder[0],
        tree_length=decoder[1],
        depth_rates=decoder[2],
        chains=chains,
        by_parent=by_parent(target, mixed),
    )


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, default=48, help="held-out prompts per row")
    parser.add_argument("--bench", type=Path, help="folder with HumanEval.jsonl.gz and gsm8k_test.jsonl.gz")
    parser.add_argument("--docs", type=Path, help="write demo.md and demo-loss.svg into this folder")
    a = parser.parse_args(argv)
    measured = measure(a.prompts, a.bench, lambda line: print(line, flush=True))  # noqa: T201
    print(bars_table(measured))  # noqa: T201
    if a.docs:
        a.docs.mkdir(parents=True, exist_ok=True)
        (a.docs / "demo-loss.svg").write_text(loss_picture(measured.facts), encoding="utf-8")
        (a.docs / "demo.md").write_text(card(measured), encoding="utf-8")


if __name__ == "__main__":
    main()
