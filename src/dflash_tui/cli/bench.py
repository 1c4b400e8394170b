"""`bench`: plain decoding, chain, tree and auto, or two drafters, on the same prompts."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from dflash_core.bench.plain_loop import plain_loop_ms
from dflash_core.demo import demo_draft
from dflash_core.errors import DFlashError
from dflash_core.events import STAGES
from dflash_core.lab.experiment import Design
from dflash_core.lab.export import to_json
from dflash_core.lab.grid import Arm, Axis, settings
from dflash_core.lab.results import Result
from dflash_tui.cli.options import Invocation
from dflash_tui.cli.sweep import asked, measure, page
from dflash_tui.terminal.output import Notes, check_file, write_json, write_json_file, write_out
from dflash_tui.text.bars import clip

if TYPE_CHECKING:
    from dflash_core.engine import Engine


def run(call: Invocation) -> int:
    """Measure and print. Returns the exit code; raises DFlashError."""
    args, request = call.args, call.request
    if args.against is not None and request.draft is None:
        call.refuse("--against compares two drafters: name the first one with --draft")
    cases, repeats = asked(call)
    if args.out is not None:
        check_file(args.out)  # measuring takes minutes

    from dflash_tui.cli.loading import loaded_laboratory, with_drafter  # imports torch

    notes = Notes()
    engine, lab = loaded_laboratory(request, notes)
    compared = ("plain", "chain", "tree", "auto") if engine.session.capabilities else ("plain",)
    grid, axes = settings((Axis("mode", compared),), request.knobs, lab.limits), ["mode"]
    others: list[Engine] = []
    if args.against is not None:
        draft, other = request.draft, args.against
        if draft is None or not engine.session.capabilities:
            raise DFlashError(f"--against compares two drafters, and {draft} is left out; name another one")
        labels = (draft.name, other.name) if draft.name != other.name else (str(draft), str(other))
        grid, axes = tuple(Arm(label, request.knobs, model=model) for model, label in enumerate(labels)), []
        others = [with_drafter(engine, other if request.target is not None else demo_draft(other), request.kv)]
    result, fault, code = measure(lab.experiment(Design(grid, cases, repeats, tuple(axes), base=0), others), notes)
    loop_ms = _plain_loop_ms(engine)
    found = {**to_json(result), "plain_loop_ms": loop_ms}
    if args.json:
        write_json(found)
    elif result.trials:
        write_out(page(result, stage_lines(result, loop_ms)))
    write_json_file(args.out, found, notes)
    if fault is not None:
        raise fault
    return code


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
