"""`bench`: plain decoding, chain, tree and auto, or two drafters, on the same prompts."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import TYPE_CHECKING

from dflash_core.bench.plain_loop import plain_loop_ms
from dflash_core.bench.prompts import PROMPTS, SAMPLES, Task, read_prompts, sample
from dflash_core.errors import DFlashError
from dflash_core.events import STAGES
from dflash_core.knobs import Knobs
from dflash_core.lab.experiment import Case, Design, default_repeats
from dflash_core.lab.export import to_json
from dflash_core.lab.grid import Arm, Axis, settings
from dflash_core.lab.results import Result
from dflash_tui.cli.options import Invocation
from dflash_tui.cli.sweep import measure
from dflash_tui.terminal.output import Notes, check_file, write_json, write_json_file, write_out
from dflash_tui.text import lab as lab_text
from dflash_tui.text.bars import clip

if TYPE_CHECKING:
    from dflash_core.engine import Engine


def run(call: Invocation) -> int:
    """Measure and print. Returns the exit code; raises DFlashError."""
    args, request = call.args, call.request
    for name in ("samples", "repeats"):
        value = getattr(args, name)
        if value is not None and value < 1:
            call.refuse(f"--{name} {value}: expected 1 or more")
    if args.samples is not None and args.prompts is None:
        call.refuse("--samples draws from a file of prompts: give it, --prompts FILE")
    if args.out is not None:
        check_file(args.out)  # measuring takes minutes
    tasks = [Task(text, text) for text in PROMPTS]
    if args.prompts is not None:
        tasks = list(sample(read_prompts(args.prompts), args.samples or SAMPLES))

    from dflash_tui.cli.loading import loaded_laboratory, with_drafter  # imports torch

    notes = Notes()
    engine, lab = loaded_laboratory(request, notes)
    compared = ("plain", "chain", "tree", "auto") if engine.session.capabilities else ("plain",)
    grid, axes = settings((Axis("mode", compared),), request.knobs, lab.limits), ["mode"]
    others: list[Engine] = []
    if args.against is not None:
        if request.draft is None or not engine.session.capabilities:
            raise DFlashError("--against compares two drafters: name the first one with --draft")
        grid, axes = _arms(request.draft, args.against, request.knobs), []
        others = [with_drafter(engine, args.against, request.kv)]
    cases, repeats = tuple(map(Case.of, tasks)), args.repeats or default_repeats(len(tasks))
    result, fault, code = measure(lab.experiment(Design(grid, cases, repeats, tuple(axes), base=0), others), notes)
    loop_ms = _plain_loop_ms(engine)
    found = {**to_json(result), "plain_loop_ms": loop_ms}
    if args.json:
        write_json(found)
    elif result.trials:
        lines = [lab_text.finding(result), *lab_text.notes(result)]
        parts = (lab_text.table(result), lab_text.depths(result), stage_lines(result, loop_ms), lines)
        write_out("\n\n".join("\n".join(part) for part in parts if part) + "\n")
    write_json_file(args.out, found, notes)
    if fault is not None:
        raise fault
    return code


def _arms(draft: Path, other: Path, knobs: Knobs) -> tuple[Arm, ...]:
    """Arms for the loaded drafter and for another file of the same target."""
    names = [draft.name, other.name]
    labels = names if names[0] != names[1] else [str(draft), str(other)]
    return tuple(Arm(label, knobs, model=model) for model, label in enumerate(labels))


def _plain_loop_ms(engine: Engine) -> float:
    with engine.scratch():
        engine.reset()
        engine.session.prefill([1] * 8)
        found = plain_loop_ms(engine.session, 1)
        engine.reset()
    return found


def stage_lines(result: Result, loop_ms: float) -> list[str]:
    """Milliseconds of a step by its parts, prompt speed and time to the first token, one line per arm."""
    lines = [f"{'ms per step':<12}" + "".join(f"{name:>9}" for name in STAGES) + f"{'prompt tok/s':>14}{'TTFT ms':>9}"]
    for index, arm in enumerate(result.arms):
        stats = [trial.report.stats for trial in result.trials if trial.setting == index]
        if not stats:
            continue
        means = (statistics.median(getattr(one.stage_ms, name) for one in stats) for name in STAGES)
        read = [(one.prompt_tokens - one.reused_tokens) / one.ttft_ms * 1e3 for one in stats if one.ttft_ms > 0]
        lines.append(
            f"{(arm.knobs.mode if result.axes else clip(arm.label, 12)):<12}"
            + "".join(f"{value:>9.3f}" for value in means)
            + f"{statistics.median(read):>14,.0f}{statistics.median(one.ttft_ms for one in stats):>9.1f}"
        )
    return [*lines, f"a plain one-row loop: {loop_ms:.3f} ms per token"]
