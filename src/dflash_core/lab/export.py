"""Writes an experiment to a file: JSON or CSV for programs, PNG or SVG for people, by the file name's suffix."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dflash_core.errors import DFlashError
from dflash_core.files import check_folder, write_whole
from dflash_core.knobs import SPECS
from dflash_core.lab import picture
from dflash_core.lab.results import Result
from dflash_core.lab.table import best, rows

VERSION = 2
PICTURES = (".png", ".svg")
ROWS = (".json", ".csv")
ENDINGS = (*ROWS, *PICTURES)


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
                "setting": row.index,
                "label": row.arm.label,
                "mode": row.mode,
                "runs": row.runs,
                "tokens_per_second": dataclasses.asdict(row.tok_s),
                "acceptance_length": row.acceptance,
                "step_ms": row.step_ms,
                "accept_rate_by_depth": list(row.accepted),
                "right": row.right[0],
                "scored": row.right[1],
                "other_text": row.other_text,
                "versus": None if row.versus is None else dataclasses.asdict(row.versus),
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


def to_csv(result: Result) -> str:
    """A line per run with all parameters, for a spreadsheet."""
    out = io.StringIO()
    figures = ("tokens", "steps", "tokens_per_second", "acceptance_length", "decode_s", "ttft_ms", "prompt_tokens")
    write = csv.writer(out, lineterminator="\n").writerow
    write(["label", "prompt", "repeat", "ran", "stop", "right", *figures, *(spec.name for spec in SPECS)])
    for trial in result.trials:
        report = trial.report
        name, right = result.prompts[trial.prompt], "" if trial.right is None else int(trial.right)
        write(
            [result.arms[trial.setting].label, name, trial.repeat, report.mode, report.stop, right]
            + [getattr(report.stats, figure) for figure in figures]
            + list(report.knobs.to_dict().values())
        )
    return out.getvalue()


def check_path(path: Path, endings: Sequence[str] = ENDINGS) -> Path:
    """A path that `write` can write, as far as can be checked in advance. Raises DFlashError."""
    if path.suffix.lower() not in endings:
        raise DFlashError(
            f"{path}: a file that ends in {', '.join(endings)} was expected; the ending says what to write"
        )
    if path.suffix.lower() in PICTURES:
        picture.check_can_draw()
    check_folder(path)
    return path


def write(result: Result, path: Path) -> None:
    """Write `result` to a file, completely or not at all. Raises DFlashError."""
    ending = check_path(path).suffix.lower()
    if ending == ".json":
        data = (json.dumps(to_json(result), ensure_ascii=False, indent=1) + "\n").encode()
    elif ending == ".csv":
        data = to_csv(result).encode()
    else:
        data = picture.draw(result, ending.removeprefix("."))
    _put(path, data)


def write_rows(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write rows of equal fields: JSON or CSV. Raises DFlashError."""
    if check_path(path, ROWS).suffix.lower() == ".json":
        _put(path, (json.dumps(list(rows), ensure_ascii=False, indent=1) + "\n").encode())
        return
    out = io.StringIO()
    writer = csv.DictWriter(out, rows[0] if rows else (), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    _put(path, out.getvalue().encode())


def _put(path: Path, data: bytes) -> None:
    try:
        write_whole(path, data)
    except OSError as error:
        raise DFlashError(f"{path} could not be written: {error.strerror}; the figures are still here") from None
