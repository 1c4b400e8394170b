"""`sweep`: compare settings on prompts, headless. The table on stdout, progress on stderr."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence

from dflash_core.bench.prompts import PROMPTS, SAMPLES, Task, read_prompts, sample
from dflash_core.drafters.capabilities import DRAFT_KNOBS, Capabilities
from dflash_core.errors import DFlashError
from dflash_core.knobs import SPEC
from dflash_core.lab.experiment import Case, Design, Experiment, default_repeats
from dflash_core.lab.export import check_path, to_json, write
from dflash_core.lab.grid import parse_axes, settings
from dflash_core.lab.results import Result
from dflash_core.limits import Limits
from dflash_tui.application.amounts import counted
from dflash_tui.cli.options import Invocation
from dflash_tui.terminal.hangup import stop_on_interrupt
from dflash_tui.terminal.output import Notes, write_json, write_out
from dflash_tui.text import lab as lab_text
from dflash_tui.text.bars import clip, plot

CURVE_ROWS = 14
ANY_PAIR = Limits(Capabilities("+".join(SPEC["draft"].choices), block=2**30, knobs=DRAFT_KNOBS), context_length=2**30)
"""A pair that supports every parameter: what it refuses no pair takes."""


def run(call: Invocation) -> int:
    """Measure, print, export. Returns the exit code; raises DFlashError. After Ctrl+C, finished runs are reported."""
    args, request = call.args, call.request
    axes = parse_axes(args.axes)
    settings(axes, request.knobs, ANY_PAIR)  # refuse settings that no pair supports before one is loaded
    if (args.prompt is None) == (args.prompts is None):
        call.refuse("expected one of --prompt TEXT and --prompts FILE")
    if args.prompt is not None and not args.prompt.strip():
        call.refuse("the prompt is empty")
    cases, repeats = asked(call, args.prompt)
    for path in args.out:
        check_path(path)

    from dflash_tui.cli.loading import loaded_laboratory  # imports torch

    notes = Notes()
    _, lab = loaded_laboratory(request, notes)
    design = Design(settings(axes, request.knobs, lab.limits), cases, repeats, tuple(axis.name for axis in axes))
    result, fault, code = measure(lab.experiment(design), notes)
    if args.json:
        write_json(to_json(result))
    elif result.trials:
        write_out(page(result))
        sys.stdout.flush()
    for path in args.out if result.trials else ():
        write(result, path)
        notes.line(f"written: {path}")
    if fault is not None:
        raise fault
    return code


def asked(call: Invocation, prompt: str | None = None) -> tuple[tuple[Case, ...], int]:
    """The prompts of the command line, else `prompt` or the examples, and how often each is run with a setting."""
    args = call.args
    if args.samples is not None and args.prompts is None:
        call.refuse("--samples draws from a file of prompts: give it, --prompts FILE")
    if args.prompts is not None:
        tasks = list(sample(read_prompts(args.prompts), args.samples or SAMPLES))
    else:
        tasks = [Task(text, text) for text in PROMPTS] if prompt is None else [Task("prompt", prompt)]
    return tuple(map(Case.of, tasks)), args.repeats or default_repeats(len(tasks))


def measure(experiment: Experiment, notes: Notes) -> tuple[Result, DFlashError | None, int]:
    """Run an experiment with its progress on stderr: what was measured, what ended it, the exit code. Ctrl+C keeps
    what is done."""
    fault = None
    with stop_on_interrupt(experiment.cancel) as interrupted:
        try:
            for progress in experiment:
                # A line that wraps could not be overwritten.
                notes.progress(clip(lab_text.progress(progress), shutil.get_terminal_size().columns - 1))
        except DFlashError as error:
            fault = error
        except KeyboardInterrupt:
            pass
    notes.end_line()
    if interrupted:
        notes.line(f"interrupted after {counted(len(experiment.result.trials), 'run')}")
    return experiment.result, fault, 130 if interrupted else 0


def page(result: Result, *more: Sequence[str]) -> str:
    """The table of a result, what is accepted by depth, a field or curve of swept values, `more`, and the finding."""
    width = min(shutil.get_terminal_size((80, 24)).columns, 100)
    marks, title = lab_text.curve(result)
    curve = plot(marks, width, CURVE_ROWS, title) if marks else []
    parts = lab_text.table(result), lab_text.depths(result), lab_text.plain(lab_text.field(result, width)), curve, *more
    finding = [lab_text.finding(result), *lab_text.notes(result)]
    return "\n\n".join("\n".join(part) for part in (*parts, finding) if part) + "\n"
