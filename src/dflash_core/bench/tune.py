"""Timing of kernels without a model: products of the synthetic 27B target on random weights (`doctor --tune`)."""

from __future__ import annotations

from dflash_core.backends.cuda import tuning
from dflash_core.backends.cuda.device import CudaDevice
from dflash_core.backends.cuda.plan import Way
from dflash_core.backends.cuda.tuner import Groups, Tuner
from dflash_core.bench.kernels import ARENA, Bench, products_27b
from dflash_core.progress import Progress


def retune(device: CudaDevice, progress: Progress) -> Tuner:
    """Discard what is known about the card and time everything. Times depend on shapes and types, so they hold for
    every model with these; others are timed when they are loaded. Raises OutOfMemoryError."""
    products = list(dict.fromkeys(products_27b()))
    bench = Bench(device, ARENA, products)
    tuner = Tuner(device, device.programs.cache.folder)
    tuner.forget()
    groups: Groups = {product.planned: [*bench.copies(product)] for product in products}
    # In parts that fit the budget, until all are done.
    for _ in range(len(groups)):
        known = len(tuner.tuning.choices)
        tuner.run(groups, progress)
        if len(tuner.tuning.choices) == known:
            break
    return tuner


def lines(found: tuning.Tuning) -> list[str]:
    """A line per product: the chosen way, its time, and the second best."""
    if not found.choices:
        return ["kernels were not timed on this card yet; the first load of a model does it, or doctor --tune"]
    shown = []
    for name, choice in sorted(found.choices.items()):
        line = f"{name}: {choice.way}, {choice.us:.1f} us"
        if choice.way != Way():
            line += f" ({choice.default_us:.1f} as planned)"
        if choice.runner_up is not None:
            line += f"; next {choice.runner_up}, {choice.runner_up_us:.1f}"
        shown.append(line + (f"; times scattered by {choice.spread:.0%}, kept as planned" if choice.unsteady else ""))
    return shown
