"""The time of every kind of step on a card, with a pair or with generated files of the shapes of one.

python -m tools.bench.steps --synthetic 27b [--accept-trace 8.3] [--share FILE] [--out FILE]
python -m tools.bench.steps --target FILE --draft FILE
"""

from __future__ import annotations

import argparse
import platform
from datetime import UTC, datetime
from pathlib import Path

import torch

from dflash_core import nvrtc
from dflash_core.backends.cuda.target import open_device
from dflash_core.bench.family_models import MODELS
from dflash_core.engine import Engine
from dflash_core.errors import DFlashError
from dflash_core.events import STAGES
from dflash_core.fits import CardOptions
from dflash_core.loading import load_draft, load_target
from dflash_core.memory import gib
from dflash_core.nvml import driver_version
from dflash_core.user_folders import user_folder
from dflash_tui import __version__
from dflash_tui.cli.arguments import memory_size, positive
from dflash_tui.terminal.output import Notes, check_file, write_json_file
from tools.bench.share import shared
from tools.bench.step_bench import DEEP, DEPTHS, ROOM, StepBench, StepReport, acceptance_pattern, default_cases
from tools.bench.synthetic import synthetic_pair
from tools.bench.tool import report, run_tool


def main() -> None:
    """Time the steps of the pair that the command line names. Raises DFlashError."""
    args, notes = _arguments(), Notes()
    for path in filter(None, (args.out, args.share)):
        check_file(path)  # measuring takes minutes
    lengths = _lengths(args.accept_trace) if args.accept_trace else ()
    target, draft = _synthetic(args.synthetic, args.folder, notes) if args.synthetic else (args.target, args.draft)
    if target is None or draft is None:
        raise DFlashError("step times need a target and its drafter; give --synthetic 27b, or --target and --draft")
    loaded = load_target(target, "cuda", progress=notes.progress, card=_card(args))
    contexts = args.contexts or (DEEP,)
    engine = Engine(loaded, load_draft(draft, loaded), context_length=max(*contexts, DEEP) + ROOM, kv=args.kv)
    pattern = acceptance_pattern(lengths[0]) if len(lengths) == 1 else tuple(round(length) for length in lengths)
    drafter = engine.session.capabilities
    depths = DEPTHS if drafter and drafter.depth_knob else ()
    bench = StepBench(engine)
    engine.machine.learn(engine.session, notes.progress)
    cases = default_cases(drafter.block if drafter else 1, pattern, depths, contexts)
    for done, total, name in bench.run(cases, args.repeats):
        notes.progress(f"step times: {name}", done / total)
    notes.end_line()
    facts = _facts(f"{target.stem} + {draft.stem}", engine)
    text = "\n".join(step_lines(bench.report, facts))
    if args.share is not None:
        write_json_file(args.share, shared(bench.target, bench.report), notes)
    report({"about": facts, **bench.report.to_json()}, text, args, notes)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--synthetic", metavar="NAME", help=f"generated files with the shapes of a real model: {' '.join(MODELS)}")
    add("--folder", type=Path, metavar="DIR", help="where the generated files are")
    add("--target", type=Path, metavar="FILE", help="or a model, and")
    add("--draft", type=Path, metavar="FILE", help="its drafter")
    add("--accept-trace", default="", metavar="AL", help="force this acceptance length, or lengths step by step")
    add("--contexts", type=_contexts, default=(), metavar="N,..", help="context lengths of step times (32768)")
    add("--repeats", type=positive, default=5, metavar="N", help="runs of each (5)")
    add("--kv", default="auto", metavar="TYPE", help="the cache of keys and values")
    add("--activations", choices=("int8", "mixed", "f16"), default="int8", help="how inputs of products are rounded")
    add("--draft-type", choices=("q8_0", "q4_0"), default="", help="quantize the drafter further")
    add("--embedding", choices=("card", "host"), default="card", help="where the token embedding is")
    add("--experts", default="card", metavar="PLACE", help="where experts are: card, host, auto or a number of layers")
    add("--no-tune", action="store_true", help="no timing of passes at a first load")
    add("--vram-limit", type=memory_size, default=0, metavar="SIZE", help="as on a card of this size")
    add("--share", type=Path, metavar="FILE", help="step times as JSON without any text, path or host name")
    add("--out", type=Path, metavar="FILE", help="write everything measured as JSON")
    add("--json", action="store_true", help="one JSON object on stdout")
    return parser.parse_args()


def _contexts(text: str) -> tuple[int, ...]:
    """Lengths of a context, by commas."""
    found = [int(part) if part.isdigit() else 0 for part in text.split(",")]
    if not all(200 < one <= 1_048_576 for one in found):
        raise argparse.ArgumentTypeError(f"found {text}, expected positions by commas, such as 32768,131072")
    return tuple(found)


def _card(args: argparse.Namespace) -> CardOptions:
    tune = not args.no_tune
    return CardOptions(args.activations, args.draft_type, tune, args.vram_limit, args.embedding, args.experts)


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


def _synthetic(name: str, folder: Path | None, notes: Notes) -> tuple[Path, Path]:
    """The target and the drafter of generated files, which are written where they are not there."""
    if name not in MODELS:
        raise DFlashError(f"--synthetic {name}: expected one of {' '.join(MODELS)}")
    open_device(0)  # raises if there is none, before gigabytes are written
    folder = folder or user_folder("cache") / "synthetic"
    pair = synthetic_pair(folder, MODELS[name], notes.progress)
    notes.line(f"synthetic files: {folder}")
    return pair.target, pair.draft


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


if __name__ == "__main__":
    run_tool(main)
