"""Measures the shipped pair on the CPU and writes its model card: `python -m dflash_core.demo.report`.

Everything but the plain loop goes through the public interface, so the numbers are those that a user gets.
`--bench FOLDER` adds the HumanEval and gsm8k_test rows, for who has those files.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dflash_core import Engine, Knobs, load_draft, load_target
from dflash_core.conversation import Message, build_prompt
from dflash_core.events import PrefillEvent, StepEvent, TurnStats, turn_stats
from dflash_core.loading import Target

from . import bench_prompts, demo_draft_path, demo_target_path, export, net, train
from .acceptance import acceptance
from .bench_prompts import Question

SLIDING = "the sliding-window drafter, thinking off"
BUDGETS = (4, 8, 15, 16, 18, 22, 30, 40, 63)
FENCE = re.compile(r"```python\n(.*?)```", re.DOTALL)
NUMBER = re.compile(r"-?\d+")


@dataclass
class Run:
    """The same prompts through one setting."""

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
        """Of the steps that drafted each depth, the part whose walk reached it."""
        deepest = max((len(s.drafted_by_depth) for s in self.stats), default=0)
        rates = []
        for d in range(deepest):
            have = [s for s in self.stats if len(s.drafted_by_depth) > d]
            reached = sum(s.accept_rate_by_depth[d] * s.drafted_by_depth[d] for s in have)
            rates.append(reached / sum(s.drafted_by_depth[d] for s in have))
        return rates


def prompt_ids(target: Target, question: str, thinking: bool) -> tuple[int, ...]:
    return build_prompt(target.tokenizer, target.template, [Message("user", question)], thinking).ids


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
            else:
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


def plain_loop_ms(tokens: Sequence[tuple[Sequence[int], Sequence[int]]]) -> float:
    """Milliseconds per token of a loop that knows nothing of drafts: the trainer's own one-token step in float32."""
    c = train.target_config()
    w = net.import_form(export.read_weights(demo_target_path()))
    spent, count = 0.0, 0
    with torch.inference_mode():
        for prompt, answer in tokens:
            state = net.decode_state(c, 1, len(prompt) + len(answer), torch.device("cpu"), torch.float32)
            for i, token in enumerate([*prompt, *answer[:-1]]):
                begun = time.perf_counter()
                int(net.target_step(c, w, state, torch.tensor([token])).argmax())
                if i >= len(prompt):
                    spent, count = spent + time.perf_counter() - begun, count + 1
    return 1000 * spent / max(1, count)


class Walked:
    """Acceptance lengths of every budget at once: drafts for all positions of the greedy answers, then the walks.

    The decoder is lossless, so its steps are known from the answer and the drafts; the card shows both side by side.
    """

    def __init__(self, target: Target) -> None:
        self.target = target
        self.c = train.target_config()
        self.weights = net.import_form(export.read_weights(demo_target_path()))

    def lengths(self, prompts: Sequence[Sequence[int]], *, sliding: bool = False) -> dict[str, float]:
        """ "chain" and each budget of BUDGETS -> acceptance length over 128 tokens of greedy answer."""
        file = demo_draft_path(sliding=sliding)
        drafter, _ = train.draft_configs(self.c)[file.name]
        asked = [np.array(ids) for ids in prompts]
        answers = train.answer_all(
            self.c, self.weights, asked, batch=len(asked), most=128, temperature=0.0, seed=0
        )  # fmt: skip
        texts = [(list(p), a.tolist()) for p, a in zip(prompts, answers, strict=True)]
        return acceptance(self.c, self.weights, drafter, export.read_weights(file), texts, BUDGETS)


def measure(count: int, bench: Path | None, say: Callable[[str], None]) -> dict[str, Any]:
    """All rows of the card, as plain numbers."""
    target = load_target(demo_target_path(), device="cpu")
    facts = json.loads((demo_target_path().parent / "demo.json").read_text(encoding="utf-8"))
    copies = {name: set(numbers) for name, numbers in facts["near_copies"].items()}

    def fresh(questions: list[Question], name: str, most: int = count) -> list[Question]:
        clean = [q for q in questions if q.number not in copies.get(name, set())]
        return clean[:: max(1, len(clean) // most)][:most]

    engine = Engine(target, load_draft(demo_draft_path(), target=target))
    tree, chain, ar = (Knobs(mode=m, max_tokens=128) for m in ("tree", "chain", "ar"))
    everything = bench_prompts.held_questions()
    mixed = fresh(everything, "held")
    out: dict[str, Any] = {"facts": facts, "count": len(mixed), "held_questions": len(everything)}

    code = fresh(bench_prompts.held_questions({"library", "combined"}), "held")
    answers = run(engine, target, code, tree.replace(max_tokens=256))
    out["parse"] = (sum(map(parses, answers.texts)), len(code))
    say(f"python answers that parse: {out['parse']}")
    sums = fresh(bench_prompts.held_questions({"sum", "difference"}), "held", 4 * count)
    answers = run(engine, target, sums, tree.replace(max_tokens=32))
    out["sums"] = (sum(right(t, q) for t, q in zip(answers.texts, sums, strict=True)), len(sums))
    say(f"sums and differences: {out['sums']}")
    answers = run(engine, target, mixed, tree.replace(max_tokens=256))
    out["ended"] = (answers.ended, sum(map(loops, answers.tokens)), len(mixed))
    say(f"ended by themselves, loops: {out['ended']}")

    walked = Walked(target)
    prompts = [prompt_ids(target, q.text, False) for q in mixed]
    thoughts = [prompt_ids(target, q.text, True) for q in mixed]
    rows = {"held-out, thinking off": (len(mixed), walked.lengths(prompts))}
    rows["held-out, thinking on"] = (len(mixed), walked.lengths(thoughts))
    for name in bench_prompts.FILES if bench else ():
        questions = fresh(bench_prompts.file_questions(bench or Path(), name), name)
        rows[name] = (len(questions), walked.lengths([prompt_ids(target, q.text, False) for q in questions]))
    rows[SLIDING] = (len(mixed), walked.lengths(prompts, sliding=True))
    for name, (_, found) in rows.items():
        say(f"{name}: " + ", ".join(f"{k} {v:.2f}" for k, v in found.items()))
    out["acceptance"] = rows

    timed: dict[str, list[Run]] = {"ar": [], "tree": [], "chain": []}
    loops_ms: list[float] = []
    for _ in range(3):  # in turns, so that a busy machine slows all of them
        for name, knobs in (("ar", ar), ("tree", tree), ("chain", chain)):
            timed[name].append(run(engine, target, mixed, knobs))
        loops_ms.append(plain_loop_ms(list(zip(prompts, timed["ar"][-1].tokens, strict=True))))
    best = {name: max(runs, key=lambda r: r.tokens_per_second) for name, runs in timed.items()}
    loop = min(loops_ms)
    same = sum(a == b for a, b in zip(best["ar"].tokens, best["tree"].tokens, strict=True))
    out["speed"] = {
        "ar": best["ar"].tokens_per_second, "tree": best["tree"].tokens_per_second,
        "chain": best["chain"].tokens_per_second,
        "draft_ms": best["tree"].stage_ms("draft"), "verify_ms": best["tree"].stage_ms("verify"),
        "rest_ms": sum(best["tree"].stage_ms(s) for s in ("tree", "accept", "commit")),
        "ar_ms": 1000 / best["ar"].tokens_per_second, "loop_ms": loop, "same": same,
    }  # fmt: skip
    out["decoder"] = (best["chain"].acceptance_length, best["tree"].acceptance_length, best["tree"].depth_rates())
    say(f"speed: {out['speed']}, decoder: {out['decoder']}")
    return out


# ---------------------------------------------------------------------------------------------------------------
# the card


def bar(reached: bool) -> str:
    return "reached" if reached else "**missed**"


def table(m: dict[str, Any]) -> str:
    """The table of bars."""
    rows = m["acceptance"]
    final = next(r for r in reversed(m["facts"]["target_log"]) if "held_loss" in r)
    off, on = rows["held-out, thinking off"][1], rows["held-out, thinking on"][1]
    chain, tree = m["decoder"][:2]
    speed = m["speed"]
    ratio = speed["tree"] / speed["ar"]
    lines = ["| what | measured | bar | |", "|---|---|---|---|"]

    def row(what: str, measured: str, wanted: str = "", state: str = "") -> None:
        lines.append(f"| {what} | {measured} | {wanted} | {state} |")

    for what, key in (("generated held-out answers", "held"), ("held-out school math and library code", "held_read")):
        lowest = min(r[f"{key}_loss"] for r in m["facts"]["target_log"] if f"{key}_loss" in r)
        loss, bits = final[f"{key}_loss"], final[f"{key}_bits_per_byte"]
        measured = f"{loss:.3f} nats per token (lowest {lowest:.3f}), {bits:.3f} bits per byte"
        row(f"validation loss, {what}", measured, "falling to the end", bar(loss <= lowest))
    for what, (good, count), wanted in (
        ("Python answers that parse", m["parse"], 0.9),
        ("sums and differences up to 99, held-out pairs", m["sums"], 0.9),
    ):
        row(what, f"{good} of {count} = {good / count:.1%}", f">= {wanted:.0%}", bar(good >= wanted * count))
    ended, looped, count = m["ended"]
    row(
        "answers that end by themselves within 256 tokens",
        f"{ended} of {count}, {looped} loops",
        ">= 95 %, no loop",
        bar(ended >= 0.95 * count and not looped),
    )
    row(
        "acceptance length, thinking off, chain of 15 / tree 22",
        f"{chain:.2f} / {tree:.2f}",
        ">= 4.0 / >= 4.6",
        bar(chain >= 4.0 and tree >= 4.6),
    )
    for name, (number, found) in rows.items():
        if not name.startswith("held-out"):
            row(f"the same, {name} ({number})", f"{found['chain']:.2f} / {found['22']:.2f}", "reported")
    row(
        "thinking on",
        f"{on['chain']:.2f} / {on['22']:.2f}; to off {on['chain'] / off['chain']:.2f} / {on['22'] / off['22']:.2f}",
        "reported",
    )
    row(
        "tree 22 against AR on the CPU",
        f"{speed['tree']:.0f} against {speed['ar']:.0f} tokens per second = {ratio:.2f}x",
        ">= 1.5x",
        bar(ratio >= 1.5),
    )
    row(
        "milliseconds per draft / verify / rest of a tree step; per AR step",
        f"{speed['draft_ms']:.1f} / {speed['verify_ms']:.1f} / {speed['rest_ms']:.1f}; {speed['ar_ms']:.1f}",
        "reported",
    )
    row(
        "AR step against a plain one-row loop",
        f"{speed['ar_ms']:.1f} against {speed['loop_ms']:.1f} ms",
        "within 5 %",
        bar(speed["ar_ms"] <= 1.05 * speed["loop_ms"]),
    )
    row(
        "tree output equal to AR output, token for token",
        f"{speed['same']} of {m['count']} answers",
        "all but ties",
        "",
    )
    return "\n".join(lines)


def sweep_table(m: dict[str, Any]) -> str:
    names = list(m["acceptance"])
    lines = ["| budget | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    for key in ("chain", *map(str, BUDGETS)):
        found = [f"{m['acceptance'][name][1][key]:.2f}" for name in names]
        lines.append(f"| {'chain of 15' if key == 'chain' else key} | " + " | ".join(found) + " |")
    return "\n".join(lines)


def depth_line(m: dict[str, Any]) -> str:
    return ", ".join(f"{rate:.0%}" for rate in m["decoder"][2])


def loss_picture(facts: dict[str, Any], width: int = 720, height: int = 300) -> str:
    """Both stages' loss curves as an SVG."""
    left, top, plot_w, plot_h = 50, 30, width - 70, height - 70
    curves: list[tuple[str, str, list[tuple[float, float]]]] = []
    log, draft = facts["target_log"], facts["draft_log"]
    curves.append(("target, training", "#3b7dd8", [(r["progress"], r["loss"]) for r in log if "loss" in r]))
    last = max(r["t"] for r in log if "held_loss" in r)
    for key, name, color in (
        ("held_loss", "target, held-out", "#d8733b"),
        ("held_read_loss", "target, held-out read text", "#8a8f98"),
    ):
        curves.append((name, color, [(r["t"] / last, r[key]) for r in log if key in r]))
    for name, color in (("demo-draft.gguf", "#3ba66b"), ("demo-draft-swa.gguf", "#a04fc4")):
        curves.append((name.removesuffix(".gguf"), color, [(r["progress"], r[name]) for r in draft if name in r]))
    high = 3.2
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
             'font-size="11">',
             f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
             f'<text x="{left}" y="16">loss (nats per token) over the share of each stage\'s time</text>']  # fmt: skip
    for tick in range(4):
        y = top + plot_h * (1 - tick / high)
        parts.append(
            f'<path d="M{left} {y:.1f}H{left + plot_w}" stroke="#dddddd"/>'
            f'<text x="{left - 16}" y="{y + 4:.1f}">{tick}</text>'
        )
    for number, (name, color, points) in enumerate(curves):
        xy = [(left + plot_w * min(x, 1), top + plot_h * (1 - min(y, high) / high)) for x, y in points]
        path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in xy)
        parts.append(f'<path d="{path}" fill="none" stroke="{color}" stroke-width="1.6"/>')
        x = left + number * (plot_w // len(curves))
        parts.append(f'<text x="{x}" y="{height - 14}" fill="{color}">{name}</text>')
    return "\n".join([*parts, "</svg>", ""])


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, default=48, help="held-out prompts per row")
    parser.add_argument("--bench", type=Path, help="folder with HumanEval.jsonl.gz and gsm8k_test.jsonl.gz")
    parser.add_argument("--docs", type=Path, help="write demo.md and demo-loss.svg into this folder")
    a = parser.parse_args(argv)
    measured = measure(a.prompts, a.bench, lambda line: print(line, flush=True))  # noqa: T201
    print(table(measured))  # noqa: T201
    if a.docs:
        from .card import card

        (a.docs / "demo-loss.svg").write_text(loss_picture(measured["facts"]), encoding="utf-8")
        (a.docs / "demo.md").write_text(card(measured), encoding="utf-8")


if __name__ == "__main__":
    main()
