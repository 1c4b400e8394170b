"""What `auto` loses by a drafter that is never right, against plain decoding, on the demo pair or a synthetic one.

    python -m tools.bench.dead_drafter [--device cuda] [--rounds 9] [--seconds 120] [--folder FOLDER --model 27b]

A synthetic pair (--folder, where its files are written if missing) has random weights, so its drafts are never right.

The MTP head gets a projection of zeros, the block drafter an output norm of noise. Each round is an answer by plain
decoding and one by `auto` with nothing learned, the order turned from round to round; the losses are medians over the
rounds, and the rate of plain decoding belongs to the same rounds. `more_..`: what `auto` took more than plain decoding
between steps of the device, in steps, and after the last one. `near_tries_ms`: of the time between steps, that around
drafts, over as much plain decoding elsewhere. On a CPU the processor's time counts. Garbage is collected as by the app
and the server.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dflash_core import Engine, Knobs, load_draft, load_target
from dflash_core.bench.family_models import MODELS
from dflash_core.demo import demo_draft_path, demo_mtp_path, demo_target_path
from dflash_core.events import StepEvent
from dflash_core.formats.gguf import open_gguf
from dflash_core.messages import Message
from dflash_core.progress import silent
from dflash_core.prompting import build_prompt
from dflash_core.text.prompt import Prompting
from dflash_tui.application import collector
from tools.bench.engines import synthetic_or_demo
from tools.bench.tool import run_tool

QUESTION = "Why is the sky blue?"
SAMPLED = Knobs(temperature=0.8, ignore_eos=True)
LENGTHS = (256, 2000)
CONTEXT = 4096
AROUND = 8  # steps before and after a draft that may wait for the host because of it


@dataclass(frozen=True)
class Timed:
    """`seconds` of an answer, those after its last token (`end`), and its steps."""

    seconds: float
    end: float
    steps: Sequence[StepEvent]

    @property
    def tokens(self) -> int:
        return sum(len(step.tokens) for step in self.steps)

    @property
    def idle_ms(self) -> float:
        """Of the device, between steps."""
        return sum(step.stages.host for step in self.steps)

    @property
    def near_tries_ms(self) -> float:
        """Of the device between steps around drafts, over what as many other steps wait."""
        waits = [step.stages.host for step in self.steps]
        tries = [at for at, step in enumerate(self.steps) if step.drafts.tokens]
        near = {at for one in tries for at in range(one - AROUND, one + AROUND + 1) if 0 < at < len(waits)}
        usual = statistics.median(waits)
        return sum(waits[at] - usual for at in near)

    @property
    def step_ms(self) -> float:
        """Of the device, in steps."""
        return sum(step.stages.total for step in self.steps) - self.idle_ms

    @property
    def waits(self) -> Sequence[tuple[float, int, str]]:
        """The longest waits between two steps: milliseconds, number of the step, its mode."""
        return sorted(((round(step.stages.host, 2), at, step.mode) for at, step in enumerate(self.steps)))[:-13:-1]


def written(folder: Path) -> dict[str, Path]:
    """Copies of the demo's drafters that are never right, by kind."""
    noise = np.random.default_rng(5).standard_normal(1 << 16).astype(np.float32)
    found = dict[str, Path]()
    for kind, source, tensor in (("mtp", demo_mtp_path(), "eh_proj"), ("dflash", demo_draft_path(), "output_norm")):
        found[kind] = Path(shutil.copy(source, folder / f"{kind}.gguf"))
        info = next(one for name, one in open_gguf(source).tensors.items() if tensor in name and "enc" not in name)
        with found[kind].open("r+b") as file:
            file.seek(info.offset)
            file.write(bytes(info.n_bytes) if kind == "mtp" else noise.tobytes()[: info.n_bytes])
    return found


def timed(engine: Engine, ids: Sequence[int], knobs: Knobs, *, processor: bool) -> Timed:
    """An answer after its first token."""
    clock = time.process_time if processor else time.perf_counter
    began = last = clock()
    steps = list[StepEvent]()
    for event in engine.generate(ids, knobs):
        last = clock()
        if isinstance(event, StepEvent):
            steps.append(event)
        else:
            began = last
    return Timed(clock() - began, clock() - last, steps)


def rounds(
    engine: Engine, ids: Sequence[int], length: int, count: int, *, processor: bool
) -> Iterator[dict[str, float]]:
    """Rounds of one answer each way; the one before them warms both up and is left out."""
    for at in range(count + 1):
        base = Knobs(temperature=0.8, seed=at, ignore_eos=True, max_tokens=length)
        ways = ["plain", "auto"] if at % 2 else ["auto", "plain"]
        took = dict[str, Timed]()
        for way in ways:
            engine.forget_learned()
            took[way] = timed(engine, ids, base.replace(drafting=way), processor=processor)
        plain, auto = took["plain"], took["auto"]
        if at:
            yield {
                "plain_tok_s": plain.tokens / plain.seconds,
                "auto_tok_s": auto.tokens / auto.seconds,
                "lost": auto.seconds / plain.seconds - 1,
                "drafts": sum(bool(step.drafts.tokens) for step in auto.steps),
                "more_idle_ms": auto.idle_ms - plain.idle_ms,
                "near_tries_ms": auto.near_tries_ms,
                "more_step_ms": auto.step_ms - plain.step_ms,
                "more_end_ms": (auto.end - plain.end) * 1e3,
            }
    sys.stderr.write(f"{length} tokens, longest waits (ms, step, mode), plain and auto: {plain.waits} {auto.waits}\n")


def engines(options: argparse.Namespace, folder: Path) -> Iterator[tuple[str, Engine, Sequence[int]]]:
    """Kind of drafter, an engine with it and a prompt: of the synthetic pair, or of the demo's drafters spoiled in
    `folder`."""
    if options.folder is not None:
        engine = synthetic_or_demo(options.model, options.folder, options.device, CONTEXT)
        yield options.model, engine, engine.target.tokenizer.encode(QUESTION)
        return
    target = load_target(demo_target_path(), device=options.device)
    ids = build_prompt(Prompting(target.tokenizer, target.template, False), [Message("user", QUESTION)]).ids
    for kind, file in written(folder).items():
        yield kind, Engine(target, load_draft(file, target=target)), ids


def main() -> None:
    """Measure each drafter at both lengths."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=120.0, help="no further round begins after these")
    parser.add_argument("--folder", type=Path, help="folder of synthetic files, written if missing (the demo pair)")
    parser.add_argument("--model", choices=sorted(MODELS), default="27b", help="which synthetic files")
    options = parser.parse_args()
    end = time.monotonic() + options.seconds
    with tempfile.TemporaryDirectory() as folder:
        for kind, engine, ids in engines(options, Path(folder)):
            engine.session.prepare(silent, SAMPLED)  # as a load does
            collector.calm(tidied=False)
            processor = not engine.session.capabilities.on_device if engine.session.capabilities else True
            for length in LENGTHS:
                found = list[dict[str, float]]()
                for one in rounds(engine, ids, length, options.rounds, processor=processor):
                    found.append(one)
                    if time.monotonic() > end:
                        break
                middle = {name: round(statistics.median(one[name] for one in found), 4) for name in found[0]}
                losses = [round(one["lost"], 3) for one in found]
                line = {"drafter": kind, "tokens": length, "rounds": len(found), **middle, "losses": losses}
                sys.stdout.write(json.dumps(line) + "\n")
                sys.stdout.flush()


if __name__ == "__main__":
    run_tool(main)
