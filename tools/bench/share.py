"""The part of a benchmark that a user can share: figures of a card and of a model's shapes.

No prompt, no answer, no name of a file, folder, user or host, no date. `python -m tools.bench.predict` says what was
to be expected of the card.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch

from dflash_core import nvrtc
from dflash_core.backends.cuda.timings import products_of, target_name
from dflash_core.nvml import driver_version
from dflash_tui import __version__

if TYPE_CHECKING:
    from dflash_core.backends.cuda.target import CudaTarget
    from tools.bench.step_bench import StepReport

FORMAT = 3


def shared(target: CudaTarget, report: StepReport) -> dict[str, Any]:
    """The shareable figures of step times on one card."""
    device, machine = target.device, target.machine
    facts, card = device.runtime.card, device.card
    return {
        "format": FORMAT,
        "program": __version__,
        "torch": torch.__version__,
        "compiler": list(nvrtc.version()),
        "driver": driver_version(),
        "card": {
            "name": facts.name,
            "capability": list(facts.capability),
            "multiprocessors": card.multiprocessors,
            "shared_bytes": card.shared_bytes,
            "overlaps": card.overlaps,
            "memory": facts.total,
            "read_bandwidth": report.read_bandwidth,
        },
        "model": {
            "shapes": target_name(target.model),
            "layers": target.config.block_count,
            "weight_bytes": target.weight_bytes,
            "step_bytes": report.step_bytes,
            "products": {str(product): count for product, count in products_of(target.model).items()},
        },
        "pass_ms": {str(width): ms for width, ms in machine.passes.items()},
        "steps": [
            {
                "mode": case.mode,
                "nodes": case.nodes,
                "depth": case.depth,
                "forced": case.forced,
                "acceptance_length": case.acceptance_length,
                "wall_ms": asdict(case.wall),
                "stages_ms": case.stages,
                "idle": case.idle,
            }
            for case in report.cases
        ],
        "plain_loop_ms": asdict(report.plain_loop_ms),
        "prefill": {"tokens": report.prefill_tokens, "ms": asdict(report.prefill_ms)},
        "memory": [{"component": name, "predicted": size, "found": found} for name, size, found in report.memory],
    }
