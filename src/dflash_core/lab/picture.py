"""A sweep as a picture: speed, acceptance and step time over one parameter, or speed as a field over two."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING

from dflash_core.errors import DFlashError
from dflash_core.knobs import spec_of
from dflash_core.lab.grid import show
from dflash_core.lab.results import Result
from dflash_core.lab.table import ArmRow, best, rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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
