"""Writes an experiment to a file: JSON or CSV for programs, PNG or SVG for people, by the file name's suffix."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dflash_core.errors import DFlashError
from dflash_core.files import check_folder, write_whole
from dflash_core.knobs import SPECS, spec_of
from dflash_core.lab.grid import show
from dflash_core.lab.results import Result
from dflash_core.lab.table import ArmRow, best, rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

VERSION = 2
PICTURES = (".png", ".svg")
ROWS = (".json", ".csv")
ENDINGS = (*ROWS, *PICTURES)
BLUE, ORANGE = "#1b6ca8", "#d1570a"
LIGHT = 0.6  # of the color map: from here on white does not show
INSTALL = 'pip install "dflash-tui[plots]", in a checkout .venv/bin/pip install -e ".[plots]"'


def check_can_draw() -> None:
    """Raises DFlashError where matplotlib is not installed. It is an optional dependency and takes long to import."""
    if find_spec("matplotlib") is None:
        raise DFlashError(f"PNG and SVG need matplotlib, which is not installed: {INSTALL}; JSON and CSV do without")


def draw(result: Result, format: str) -> bytes:
    """The bytes of a picture, `format` png or svg. Nothing opens on a screen. Raises DFlashError without matplotlib."""
    check_can_draw()
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise DFlashError(f"matplotlib does not import ({error}); install it again: {INSTALL}") from None

    table = rows(result)
    figure = Figure(figsize=(8, 6), layout="constrained")
    if len(result.axes) == 2:
        _field(figure, result, table)
    else:
        _curves(figure, result, table)
    figure.suptitle(f"prompts: {len(result.prompts) - len(result.excluded)}, repeats: {result.repeats}", fontsize=10)
    out = io.BytesIO()
    figure.savefig(out, format=format, dpi=150, metadata={"Date": None} if format == "svg" else None)
    return out.getvalue()


def _curves(figure: Figure, result: Result, table: Sequence[ArmRow]) -> None:
    spec = spec_of(result.axes[0]) if result.axes else None
    speed, acceptance, step = figure.subplots(3, 1, sharex=True, height_ratios=(3, 2, 2))
    numeric = spec is not None and spec.kind in ("int", "float")
    x = [float(getattr(row.arm.knobs, spec.name)) if spec and numeric else at for at, row in enumerate(table)]
    middle = [row.tok_s.median for row in table]
    below = [row.tok_s.median - row.tok_s.low for row in table]
    above = [row.tok_s.high - row.tok_s.median for row in table]
    speed.errorbar(x, middle, yerr=(below, above), marker="o", capsize=3, color=BLUE)
    top = best(table)
    if top is not None:
        at = list(table).index(top)
        speed.plot([x[at]], [middle[at]], marker="*", markersize=14, color=ORANGE, linestyle="none", label="best")
        speed.legend()
    acceptance.plot(x, [row.acceptance for row in table], marker="o", color=BLUE)
    step.plot(x, [row.step_ms for row in table], marker="o", color=BLUE)
    for axes, label in ((speed, "tok/s, median and quartiles"), (acceptance, "tokens per step"), (step, "ms per step")):
        axes.set_ylabel(label)
        axes.grid(alpha=0.3)
    if spec is not None:
        step.set_xlabel(spec.label)
    if not numeric:
        step.set_xticks(x, [row.arm.label for row in table])


def _field(figure: Figure, result: Result, table: Sequence[ArmRow]) -> None:
    down, across = result.axes
    by_place = {(getattr(row.arm.knobs, down), getattr(row.arm.knobs, across)): row for row in table}
    ys = list(dict.fromkeys(getattr(arm.knobs, down) for arm in result.arms))
    xs = list(dict.fromkeys(getattr(arm.knobs, across) for arm in result.arms))
    field = [[by_place[y, x].tok_s.median if (y, x) in by_place else float("nan") for x in xs] for y in ys]
    axes: Axes = figure.subplots()
    image = axes.imshow(field, aspect="auto", cmap="viridis")
    figure.colorbar(image, label="tok/s, median")
    top, speeds = best(table), [row.tok_s.median for row in table]
    light = min(speeds) + LIGHT * (max(speeds) - min(speeds))
    for y, line in enumerate(field):
        for x, value in enumerate(line):
            if math.isnan(value):
                continue
            star = "★ " if top is not None and by_place.get((ys[y], xs[x])) is top else ""
            color = "black" if value > light else "white"
            axes.text(x, y, f"{star}{value:.0f}", ha="center", va="center", color=color, fontsize=8)
    axes.set_xticks(range(len(xs)), [show(spec_of(across), value) for value in xs])
    axes.set_yticks(range(len(ys)), [show(spec_of(down), value) for value in ys])
    axes.set_xlabel(spec_of(across).label)
    axes.set_ylabel(spec_of(down).label)


def to_json(result: Result) -> dict[str, Any]:
    """The object that `sweep --json` prints: summarised `rows`, all `trials`, no texts."""
    table = rows(result)
    top = best(table)
    return {
        "version": VERSION,
        "complete": result.complete,
        "axes": list(result.axes),
        "about": dict(result.about),
        "prompts": list(result.prompts),
        "repeats": result.repeats,
        "excluded": [dataclasses.asdict(one) for one in result.excluded],
        "settings": [arm.knobs.to_dict() for arm in result.arms],
        "best": None if top is None else top.index,
        "against": result.base if result.base is not None or top is None else top.index,
        "rows": [
            {
                "setting": row.index, "label": row.arm.label, "mode": row.mode, "runs": row.runs,
                "tokens_per_second": dataclasses.asdict(row.tok_s), "acceptance_length": row.acceptance,
                "step_ms": row.step_ms, "accept_rate_by_depth": list(row.accepted), "right": row.right[0],
                "scored": row.right[1], "other_text": row.other_text,
                "versus": None if row.versus is None else dataclasses.asdict(row.versus),
            }
            for row in table
        ],
        "trials": [
            {
                "setting": trial.setting, "prompt": trial.prompt, "repeat": trial.repeat, "mode": trial.report.mode,
                "stop": trial.report.stop, "right": trial.right, "stats": dataclasses.asdict(trial.report.stats),
            }
            for trial in result.trials
        ],
    }  # fmt: skip


def to_csv(result: Result) -> str:
    """A line per run with all parameters, for a spreadsheet."""
    figures = ("tokens", "steps", "tokens_per_second", "acceptance_length", "decode_s", "ttft_ms", "prompt_tokens")
    header = ("label", "prompt", "repeat", "ran", "stop", "right", *figures, *(spec.name for spec in SPECS))
    lines = list[Sequence[object]]()
    for trial in result.trials:
        report = trial.report
        name, right = result.prompts[trial.prompt], "" if trial.right is None else int(trial.right)
        lines.append([
            result.arms[trial.setting].label, name, trial.repeat, report.mode, report.stop, right,
            *(getattr(report.stats, figure) for figure in figures), *report.knobs.to_dict().values(),
        ])  # fmt: skip
    return _csv(header, lines)


def _csv(header: Iterable[str], lines: Iterable[Iterable[object]]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([header, *lines])
    return out.getvalue()


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, indent=1) + "\n"


def check_path(path: Path, endings: Sequence[str] = ENDINGS) -> Path:
    """A path that `write` can write, as far as can be checked in advance. Raises DFlashError."""
    if path.suffix.lower() not in endings:
        raise DFlashError(
            f"{path}: a file that ends in {', '.join(endings)} was expected; the ending says what to write"
        )
    if path.suffix.lower() in PICTURES:
        check_can_draw()
    check_folder(path)
    return path


def write(result: Result, path: Path) -> None:
    """Write `result` to a file, completely or not at all. Raises DFlashError."""
    ending = check_path(path).suffix.lower()
    if ending in PICTURES:
        _put(path, draw(result, ending.removeprefix(".")))
    else:
        _put(path, (_json(to_json(result)) if ending == ".json" else to_csv(result)).encode())


def write_rows(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write rows of equal fields: JSON or CSV. Raises DFlashError."""
    ending, table = check_path(path, ROWS).suffix.lower(), [list(row.values()) for row in rows]
    _put(path, (_json(list(rows)) if ending == ".json" else _csv(rows[0] if rows else (), table)).encode())


def _put(path: Path, data: bytes) -> None:
    try:
        write_whole(path, data)
    except OSError as error:
        raise DFlashError(f"{path} could not be written: {error.strerror}; the measured figures are not lost") from None
