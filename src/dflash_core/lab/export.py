"""Writes a sweep or a curve to a file: JSON or CSV for programs, PNG or SVG for people, by the file name's suffix."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
from pathlib import Path
from typing import Any

from dflash_core.errors import DFlashError
from dflash_core.files import check_folder, write_whole
from dflash_core.knobs import SPECS
from dflash_core.lab import picture
from dflash_core.lab.sweep import SweepResult
from dflash_core.lab.table import best, rows

VERSION = 1
PICTURES = (".png", ".svg")
ENDINGS = (".json", ".csv", *PICTURES)


def to_json(result: SweepResult) -> dict[str, Any]:
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
        "settings": [setting.knobs.to_dict() for setting in result.settings],
        "best": None if top is None else top.index,
        "rows": [
            {
                "setting": row.index,
                "label": row.setting.label,
                "mode": row.mode,
                "runs": row.runs,
                "tokens_per_second": dataclasses.asdict(row.tok_s),
                "acceptance_length": row.acceptance,
                "step_ms": row.step_ms,
                "right": row.right[0],
                "scored": row.right[1],
                "other_text": row.other_text,
                "versus_best": None if row.versus_best is None else dataclasses.asdict(row.versus_best),
            }
            for row in table
        ],
        "trials": [
            {
                "setting": trial.setting,
                "prompt": trial.prompt,
                "repeat": trial.repeat,
                "mode": trial.report.mode,
                "stop": trial.report.stop,
                "right": trial.right,
                "stats": dataclasses.asdict(trial.report.stats),
            }
            for trial in result.trials
        ],
    }


def to_csv(result: SweepResult) -> str:
    """A line per run with all parameters, for a spreadsheet."""
    out = io.StringIO()
    figures = ("tokens", "steps", "tokens_per_second", "acceptance_length", "decode_s", "ttft_ms", "prompt_tokens")
    write = csv.writer(out, lineterminator="\n").writerow
    write(["prompt", "repeat", "ran", "stop", "right", *figures, *(spec.name for spec in SPECS)])
    for trial in result.trials:
        report = trial.report
        name, right = result.prompts[trial.prompt], "" if trial.right is None else int(trial.right)
        write(
            [name, trial.repeat, report.mode, report.stop, right]
            + [getattr(report.stats, figure) for figure in figures]
            + list(report.knobs.to_dict().values())
        )
    return out.getvalue()


def check_path(path: Path) -> Path:
    """A path that `write` can write, as far as can be checked in advance. Raises DFlashError."""
    if path.suffix.lower() not in ENDINGS:
        raise DFlashError(
            f"{path}: a file that ends in {', '.join(ENDINGS)} was expected; the ending says what to write"
        )
    if path.suffix.lower() in PICTURES:
        picture.check_can_draw()
    check_folder(path)
    return path


def write(result: SweepResult, path: Path) -> None:
    """Write `result` to a file, completely or not at all. Raises DFlashError."""
    ending = check_path(path).suffix.lower()
    if ending == ".json":
        data = (json.dumps(to_json(result), ensure_ascii=False, indent=1) + "\n").encode()
    elif ending == ".csv":
        data = to_csv(result).encode()
    else:
        data = picture.draw(result, ending.removeprefix("."))

    try:
        write_whole(path, data)
    except OSError as error:
        raise DFlashError(f"{path} could not be written: {error.strerror}; the figures are still here") from None
