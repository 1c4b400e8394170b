"""`bench`: plain decoding, chain, tree and auto on the same prompts; or the time of each kind of step on a card."""

from __future__ import annotations

import platform
import statistics
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dflash_core.bench.plain_loop import plain_loop_ms
from dflash_core.bench.prompts import PROMPTS, SAMPLES, Task, read_prompts, sample
from dflash_core.errors import DFlashError
from dflash_core.events import STAGES
from dflash_core.knobs import SPEC
from dflash_core.lab.experiment import Case, Design, default_repeats
from dflash_core.lab.export import to_json
from dflash_core.lab.grid import Arm, Axis, settings
from dflash_core.lab.results import Result
from dflash_core.memory import gib
from dflash_core.nvml import driver_version
from dflash_tui import __version__
from dflash_tui.application.session import LoadRequest
from dflash_tui.cli.sweep import measure
from dflash_tui.terminal.output import Notes, keep_json, write_json, write_out
from dflash_tui.text import lab as lab_text
from dflash_tui.text.bars import clip

if TYPE_CHECKING:
    from dflash_core.bench.steps import StepReport
    from dflash_core.engine import Engine


@dataclass(frozen=True, slots=True)
class Job:
    """What to measure. `synthetic` names generated files, `acceptance` forces lengths; both select step times."""

    prompts: Path | None = None
    samples: int | None = None
    repeats: int | None = None
    synthetic: str | None = None
    folder: Path | None = None
    acceptance: str | None = None
    steps: bool = False
    out: Path | None = None
    share: Path | None = None  # step times to share with others
    against: Path | None = None  # another drafter of the same target, to compare with
    contexts: tuple[int, ...] = ()  # context lengths at which steps are timed, in addition to a short one


def run(request: LoadRequest, job: Job, *, as_json: bool = False) -> int:
    """Measure and print. Returns the exit code; raises DFlashError."""
    if job.synthetic or job.acceptance or job.steps or job.share:
        return _steps(request, job, as_json=as_json)
    return _modes(request, job, as_json=as_json)


def kernels(*, out: Path | None, as_json: bool) -> int:
    """The ladder table of the kernels on this card."""
    from dataclasses import asdict

    from dflash_core.backends.cuda.target import open_device
    from dflash_core.bench.kernels import chain, chain_table, ladder, table

    notes, device = Notes(), open_device(0)
    found = ladder(device, progress=notes.progress)
    together = chain(device, progress=notes.progress)
    notes.end_line()
    figures = {**asdict(found), "chain_seconds": together}
    if as_json:
        write_json(figures)
    else:
        write_out("\n".join([*table(found), "", *chain_table(together)]) + "\n")
    keep_json(out, figures, notes)
    return 0


def _modes(request: LoadRequest, job: Job, *, as_json: bool) -> int:
    tasks = [Task(text, text) for text in PROMPTS]
    if job.prompts is not None:
        tasks = list(sample(read_prompts(job.prompts), job.samples or SAMPLES))

    from dflash_tui.application.engine_session import laboratory  # imports torch
    from dflash_tui.cli.loading import load_with_notes

    notes = Notes()
    engine = load_with_notes(request, notes)
    lab = laboratory(engine, request.title())
    modes = ("ar", "chain", "tree", "auto") if engine.session.capabilities else ("ar",)
    grid = settings((Axis("mode", modes),), request.knobs, lab.limits)
    repeats = job.repeats or default_repeats(len(tasks))
    cases = tuple(Case.of(task) for task in tasks)
    axes: tuple[str, ...] = ("mode",)
    others: list[Engine] = []
    if job.against is not None:
        grid, axes, others = _two_drafters(request, job.against, engine)
    repeats = job.repeats or default_repeats(len(tasks))
    result, fault, code = measure(lab.experiment(Design(grid, cases, repeats, axes, base=0), others), notes)
    loop_ms = _plain_loop_ms(engine)
    found = {**to_json(result), "plain_loop_ms": loop_ms}
    if as_json:
        write_json(found)
    elif result.trials:
        said = [lab_text.finding(result), *lab_text.notes(result)]
        parts = (lab_text.table(result), lab_text.depths(result), stage_lines(result, loop_ms), said)
        write_out("\n\n".join("\n".join(part) for part in parts if part) + "\n")
    keep_json(job.out, found, notes)
    if fault is not None:
        raise fault
    return code


def _two_drafters(
    request: LoadRequest, other: Path, engine: Engine
) -> tuple[tuple[Arm, ...], tuple[str, ...], list[Engine]]:
    """Arms for the loaded drafter and for another file of the same target."""
    from dflash_core.engine import Engine
    from dflash_core.loading import load_draft

    if request.draft is None or not engine.session.capabilities:
        raise DFlashError("--against compares two drafters: name the first one with --draft")
    second = Engine(
        engine.target, load_draft(other, engine.target), context_length=engine.context_length, kv=request.kv
    )
    names = [request.draft.name, other.name]
    labels = names if names[0] != names[1] else [str(request.draft), str(other)]
    arms = tuple(Arm(label, request.knobs, model=model) for model, label in enumerate(labels))
    return arms, (), [second]


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
            f"{(SPEC['mode'].show(arm.knobs.mode) if result.axes else clip(arm.label, 12)):<12}"
            + "".join(f"{value:>9.3f}" for value in means)
            + f"{statistics.median(read):>14,.0f}{statistics.median(one.ttft_ms for one in stats):>9.1f}"
        )
    return [*lines, f"a plain one-row loop: {loop_ms:.3f} ms per token"]


def _steps(request: LoadRequest, job: Job, *, as_json: bool) -> int:
    from dataclasses import replace

    from dflash_core.bench.steps import DEEP, DEPTHS, ROOM, StepBench, acceptance_pattern, default_cases, shown
    from dflash_core.loading import CardOptions, load_draft, load_target

    notes = Notes()
    lengths = _lengths(job.acceptance) if job.acceptance else ()
    if job.synthetic:
        request = replace(request, **_synthetic(job, notes))
    from dflash_core.engine import Engine
    from dflash_tui.cli.share import shared

    if request.target is None or request.draft is None:
        raise DFlashError("step times need a target and its drafter; give --synthetic 27b, or --target and --draft")
    card = CardOptions(
        request.activations, request.draft_type, request.tune, embedding=request.embedding, reading=request.reading
    )
    loaded = load_target(request.target, "cuda", progress=notes.progress, card=card)
    contexts = job.contexts or (DEEP,)
    longest = max(*contexts, DEEP) + ROOM
    engine = Engine(loaded, load_draft(request.draft, loaded), context_length=longest, kv=request.kv)
    pattern = acceptance_pattern(lengths[0]) if len(lengths) == 1 else tuple(round(length) for length in lengths)
    drafter = engine.session.capabilities
    depths = DEPTHS if drafter and drafter.depth_knob else ()
    cases = default_cases(drafter.block if drafter else 1, pattern, depths, contexts)
    bench = StepBench(engine)
    engine.machine.learn(engine.session, notes.progress)
    for done, total, name in bench.run(cases, job.repeats or 5):
        notes.progress(f"step times: {shown(name)}", done / total)
    notes.end_line()
    facts = _facts(request.title(), engine)
    found = {"about": facts, **bench.report.to_json()}
    if as_json:
        write_json(found)
    else:
        write_out("\n".join(step_lines(bench.report, facts)) + "\n")
    if job.share is not None:
        keep_json(job.share, shared(bench.target, bench.report), notes)
    keep_json(job.out, found, notes)
    return 0


def step_lines(report: StepReport, facts: dict[str, str]) -> list[str]:
    """The report as a table."""
    from dflash_core.bench.steps import shown  # imports torch

    lines = [f"{name}: {value}" for name, value in facts.items()]
    lines += ["", f"{'step':<18}{'rows':>5}{'context':>8}{'wall ms':>9}{'least':>8}{'most':>8}" + "".join(
        f"{name:>8}" for name in STAGES) + f"{'tok/step':>10}"]  # fmt: skip
    for case in report.cases:
        wall = case.wall
        name = shown(case.name) + (" (forced)" if case.forced else "")
        lines.append(
            f"{name:<18}{case.nodes:>5}{case.depth:>8,}{wall.median:>9.3f}{wall.least:>8.3f}{wall.most:>8.3f}"
            + "".join(f"{case.stages[stage]:>8.3f}" for stage in STAGES)
            + f"{case.acceptance_length:>10.2f}"
        )
    ar = report.case("ar").wall.median
    ratios = ", ".join(f"{rows} rows {report.verify_ratio(rows):.2f}" for rows in (16, 24, 40, 64))
    deep = [case for case in report.cases if case.name.startswith("ar at")]
    bushy = report.case("bushy tree 23").stages["verify"] / report.case("tree 23").stages["verify"]
    prompt = report.prefill_tokens / report.prefill_ms.median * 1e3
    lines += [
        "",
        f"plain decoding: {1e3 / ar:,.1f} tok/s; a one-row loop from the host: {report.plain_loop_ms.median:.3f} ms",
        f"verify in plain steps: {ratios}; a bushy tree against a seeded one of its size: {bushy:.3f}",
        *(f"plain decoding at context length {one.depth:,}: {ar / one.wall.median:.3f} of that speed" for one in deep),
        f"prompt of {report.prefill_tokens:,}: {prompt:,.0f} tok/s",
        f"idle between steps: {max(case.idle for case in report.cases):.1%} at most",
        f"a plain step moves {gib(report.step_bytes)}: {report.bandwidth_share:.1%} of the measured read bandwidth, "
        f"{report.read_bandwidth / 1e12:.2f} TB/s",
        "memory: " + ", ".join(
            f"{name} {gib(size)}" + ("" if found is None else f" (found {gib(found)})")
            for name, size, found in report.memory
        ),
    ]  # fmt: skip
    return lines


def _lengths(text: str) -> tuple[float, ...]:
    try:
        lengths = tuple(float(word) for word in text.split(","))
    except ValueError:
        lengths = ()
    if not lengths or not all(1 <= length <= 64 for length in lengths):
        raise DFlashError(
            f"--accept-trace {text}: expected a mean acceptance length, or lengths step by step: 8.3 or 5,1,9"
        )
    return lengths


def _synthetic(job: Job, notes: Notes) -> dict[str, Any]:
    from dflash_core.backends.cuda.target import open_device
    from dflash_core.bench.synthetic import synthetic_pair
    from dflash_core.bench.synthetic_models import MODELS
    from dflash_core.user_folders import user_folder

    if job.synthetic not in MODELS:
        raise DFlashError(f"--synthetic {job.synthetic}: expected one of {' '.join(MODELS)}")
    open_device(0)  # raises if there is none, before gigabytes are written
    folder = job.folder or user_folder("cache") / "synthetic"
    pair = synthetic_pair(folder, MODELS[job.synthetic], notes.progress)
    notes.line(f"synthetic files: {folder}")
    return {"target": pair.target, "draft": pair.draft}


def _facts(title: str, engine: Engine) -> dict[str, str]:
    import torch

    from dflash_core import nvrtc

    return {
        "GPU": engine.machine.name,
        "models": title,
        "keys and values": str(engine.kv),
        "program": f"dflash-tui {__version__}, torch {torch.__version__}, NVRTC {'.'.join(map(str, nvrtc.version()))}",
        "driver": driver_version(),
        "host": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        "when": datetime.now(UTC).isoformat(timespec="minutes"),
    }
