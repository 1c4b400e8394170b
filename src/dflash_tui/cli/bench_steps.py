"""`bench` on a card: the time of each kind of step, and the ladder of its kernels. Importing this imports torch."""

from __future__ import annotations

import platform
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from dflash_core import nvrtc
from dflash_core.backends.cuda.target import open_device
from dflash_core.bench.family_models import MODELS
from dflash_core.bench.kernels import chain, chain_table, ladder, table
from dflash_core.bench.steps import DEEP, DEPTHS, ROOM, StepBench, StepReport, acceptance_pattern, default_cases
from dflash_core.bench.synthetic import synthetic_pair
from dflash_core.engine import Engine
from dflash_core.errors import DFlashError
from dflash_core.events import STAGES
from dflash_core.loading import load_draft, load_target
from dflash_core.memory import gib
from dflash_core.nvml import driver_version
from dflash_core.user_folders import user_folder
from dflash_tui import __version__
from dflash_tui.application.memory_estimate import card_options
from dflash_tui.cli.options import Invocation
from dflash_tui.cli.share import shared
from dflash_tui.terminal.output import Notes, keep_json, write_json, write_out


def kernels(call: Invocation) -> int:
    """The ladder table of the kernels on this card."""
    notes, device = Notes(), open_device(0)
    found = ladder(device, progress=notes.progress)
    together = chain(device, progress=notes.progress)
    notes.end_line()
    figures = {**asdict(found), "chain_seconds": together}
    if call.args.json:
        write_json(figures)
    else:
        write_out("\n".join([*table(found), "", *chain_table(together)]) + "\n")
    keep_json(call.args.out, figures, notes)
    return 0


def steps(call: Invocation) -> int:
    """The time of each kind of step with a pair, or with generated files of the shapes of one."""
    args, request, notes = call.args, call.request, Notes()
    lengths = _lengths(args.accept_trace) if args.accept_trace else ()
    if args.synthetic:
        request = replace(request, **_synthetic(args.synthetic, args.folder, notes))
    if request.target is None or request.draft is None:
        raise DFlashError("step times need a target and its drafter; give --synthetic 27b, or --target and --draft")
    loaded = load_target(request.target, "cuda", progress=notes.progress, card=card_options(request))
    contexts = args.contexts or (DEEP,)
    longest = max(*contexts, DEEP) + ROOM
    engine = Engine(loaded, load_draft(request.draft, loaded), context_length=longest, kv=request.kv)
    pattern = acceptance_pattern(lengths[0]) if len(lengths) == 1 else tuple(round(length) for length in lengths)
    drafter = engine.session.capabilities
    depths = DEPTHS if drafter and drafter.depth_knob else ()
    cases = default_cases(drafter.block if drafter else 1, pattern, depths, contexts)
    bench = StepBench(engine)
    engine.machine.learn(engine.session, notes.progress)
    for done, total, name in bench.run(cases, args.repeats or 5):
        notes.progress(f"step times: {name}", done / total)
    notes.end_line()
    facts = _facts(request.title(), engine)
    found = {"about": facts, **bench.report.to_json()}
    if call.args.json:
        write_json(found)
    else:
        write_out("\n".join(step_lines(bench.report, facts)) + "\n")
    if args.share is not None:
        keep_json(args.share, shared(bench.target, bench.report), notes)
    keep_json(args.out, found, notes)
    return 0


def step_lines(report: StepReport, facts: dict[str, str]) -> list[str]:
    """The report as a table."""
    lines = [f"{name}: {value}" for name, value in facts.items()]
    lines += ["", f"{'step':<18}{'rows':>5}{'context':>8}{'wall ms':>9}{'min':>8}{'max':>8}" + "".join(
        f"{name:>8}" for name in STAGES) + f"{'tok/step':>10}"]  # fmt: skip
    for case in report.cases:
        wall = case.wall
        name = case.name + (" (forced)" if case.forced else "")
        lines.append(
            f"{name:<18}{case.nodes:>5}{case.depth:>8,}{wall.median:>9.3f}{wall.least:>8.3f}{wall.most:>8.3f}"
            + "".join(f"{case.stages[stage]:>8.3f}" for stage in STAGES)
            + f"{case.acceptance_length:>10.2f}"
        )
    plain = report.case("plain").wall.median
    ratios = ", ".join(f"{rows} rows {report.verify_ratio(rows):.2f}" for rows in (16, 24, 40, 64))
    deep = [(case.depth, plain / case.wall.median) for case in report.cases if case.name.startswith("plain at")]
    bushy = report.case("bushy tree 23").stages["verify"] / report.case("tree 23").stages["verify"]
    prompt = report.prefill_tokens / report.prefill_ms.median * 1e3
    lines += [
        "",
        f"plain decoding: {1e3 / plain:,.1f} tok/s; a one-row loop from the host: {report.plain_loop_ms.median:.3f} ms",
        f"verify in plain steps: {ratios}; a bushy tree against a seeded one of its size: {bushy:.3f}",
        *(f"plain decoding at context length {depth:,}: {share:.3f} of that speed" for depth, share in deep),
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


def _synthetic(name: str, folder: Path | None, notes: Notes) -> dict[str, Any]:
    if name not in MODELS:
        raise DFlashError(f"--synthetic {name}: expected one of {' '.join(MODELS)}")
    open_device(0)  # raises if there is none, before gigabytes are written
    folder = folder or user_folder("cache") / "synthetic"
    pair = synthetic_pair(folder, MODELS[name], notes.progress)
    notes.line(f"synthetic files: {folder}")
    return {"target": pair.target, "draft": pair.draft}


def _facts(title: str, engine: Engine) -> dict[str, str]:
    return {
        "GPU": engine.machine.name,
        "models": title,
        "keys and values": str(engine.kv),
        "program": f"dflash-tui {__version__}, torch {torch.__version__}, NVRTC {'.'.join(map(str, nvrtc.version()))}",
        "driver": driver_version(),
        "host": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        "when": datetime.now(UTC).isoformat(timespec="minutes"),
    }
