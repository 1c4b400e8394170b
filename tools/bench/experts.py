"""How fast 35B-A3B decodes on a card that is too small for its experts, by how its routers choose.

python -m tools.bench.experts --folder FOLDER --limit 12GiB [--layers 40] [--seconds 400]

Prints a JSON line for the plan against what the load took, then one per kind of routing. A router of random weights
chooses all experts alike (`uniform`), which real ones do not. `skewed`: rows of the router are scaled so that expert e,
in an order of its own for each layer, is chosen with a probability proportional to 1 / (e + FLATTENED), the law of Zipf
and Mandelbrot: the most used 115 of 256 experts get 78 % of the choices. `chosen`: what they got of the measured ones.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from dflash_core.backends.cuda.machine import CudaMachine
from dflash_core.backends.cuda.session import CudaSession
from dflash_core.backends.cuda.target_model import DeviceTarget
from dflash_core.bench.synthetic_models import SIZE_35B_A3B
from dflash_core.engine import Engine, load_pair
from dflash_core.events import StepEvent
from dflash_core.fits import CardOptions, plan, requested_setup
from dflash_core.knobs import Knobs
from dflash_core.loading import estimator_of
from dflash_core.memory import parse_bytes
from tools.bench.synthetic import write_target
from tools.bench.tool import run_tool
from tools.bench.variants import cut

FLATTENED = 8
PROMPT, WARM, MEASURED = 512, 192, 256  # tokens


def shares(count: int, used: int, skewed: bool) -> list[float]:
    """The probability that a row chooses each of `count` experts, the most used first; their sum is `used`."""
    weights = [1 / (expert + 1 + FLATTENED) if skewed else 1.0 for expert in range(count)]
    return [used * weight / sum(weights) for weight in weights]


def set_routers(model: DeviceTarget, skewed: bool) -> None:
    """Scale each router's rows so that scores, which are about normal, exceed one bound as often as `shares` says."""
    rng = np.random.default_rng(1)
    for layer in model.experts:
        bound = [1 / NormalDist().inv_cdf(1 - share) for share in shares(layer.spec.count, layer.spec.used, skewed)]
        scale = torch.tensor(rng.permutation(bound), dtype=torch.float32, device=layer.router.device)
        layer.router.mul_((scale / layer.router.norm(dim=1))[:, None])  # a normed row has a length of 1 per element


def choices(counts: npt.NDArray[Any]) -> dict[str, float]:
    """The share of choices that the most used quarter and 45 % of each layer's experts got. counts (layers, experts)"""
    ordered = -np.sort(-counts, axis=1)
    parts = {"quarter": counts.shape[1] // 4, "45 %": counts.shape[1] * 45 // 100}
    return {name: float(ordered[:, :part].sum() / counts.sum()) for name, part in parts.items()}


def speed(engine: Engine, model: DeviceTarget, seed: int) -> dict[str, Any]:
    """Tokens per second of plain decoding after a prompt. Sampled, as greedy answers of random weights repeat."""
    cache, rng = model.cache, np.random.default_rng(seed)
    ids = rng.integers(0, engine.vocab_size, PROMPT).tolist()
    knobs = Knobs(drafting="plain", temperature=1.0, seed=seed, ignore_eos=True, max_tokens=WARM + MEASURED)
    engine.reset()
    before = cache.used.cpu().numpy().copy() if cache else None
    done, at, began, first, asked = 0, 0, 0.0, 0.0, time.perf_counter()
    for event in engine.generate(ids, knobs):
        if not isinstance(event, StepEvent):
            first = time.perf_counter() - asked
            continue
        done += len(event.tokens)
        if done >= WARM and not began:
            began, at = time.perf_counter(), done
    found: dict[str, Any] = {"tok_s": (done - at) / (time.perf_counter() - began), "prompt_s": first}
    if cache is not None and before is not None:
        counts = cache.used.cpu().numpy() - before
        inside = np.take_along_axis(counts, cache.resident, axis=1).sum() / counts.sum()
        unmoved = counts[:, : cache.resident.shape[1]].sum() / counts.sum()
        found |= {"hits": float(inside), "hits_unmoved": float(unmoved), "chosen": choices(counts)}
    return found


def measure(path: Path, limit: int, seconds: float) -> None:
    """Load under the limit, and print a line per figure as it comes."""
    began = time.perf_counter()

    def say(**found: Any) -> None:
        found["at_s"] = round(time.perf_counter() - began, 1)
        sys.stdout.write(json.dumps(found) + "\n")
        sys.stdout.flush()

    card = CardOptions(vram_limit=limit, experts="auto", tune=False)
    estimator = estimator_of(path, None, "cuda", card=card)
    planned = plan(estimator, requested_setup(estimator, None, "auto"))
    say(planned=planned.total, context=planned.setup.context, layers=planned.setup.experts, cached=planned.setup.cached)
    engine = load_pair(path, None, "cuda", card=card)
    held, model = engine.memory(), engine.target.model  # type: ignore[attr-defined]
    assert isinstance(engine.machine, CudaMachine)
    assert isinstance(engine.session, CudaSession)
    slots = model.cache.resident.shape[1] if model.cache else 0
    say(limit=limit, found=held.measured, off=held.measured / planned.total - 1, slots=slots, notes=engine.notes)
    for kind in ("uniform", "skewed"):
        with engine.session.device.stream():
            set_routers(model, kind == "skewed")
        for seed in (1, 2, 3):
            if time.perf_counter() - began > seconds:
                say(stopped="out of time")
                return
            say(routing=kind, seed=seed, **speed(engine, model, seed))


def main() -> None:
    """The command line of this module."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench.experts")
    parser.add_argument("--folder", type=Path, required=True, metavar="FOLDER", help="where the synthetic file is made")
    parser.add_argument("--limit", default="12GiB", metavar="SIZE", help="of the card that is imitated")
    parser.add_argument("--layers", type=int, default=40, metavar="N", help="of the model, 40 at most")
    parser.add_argument("--seconds", type=float, default=400, metavar="N", help="after which no measurement begins")
    args = parser.parse_args()
    model = cut(SIZE_35B_A3B, args.layers)
    path: Path = args.folder / f"experts-{args.layers}.gguf"
    if not path.exists():
        args.folder.mkdir(parents=True, exist_ok=True)
        write_target(path, model, lambda phase, done: None)
    measure(path, parse_bytes(args.limit), args.seconds)


if __name__ == "__main__":
    run_tool(main)
