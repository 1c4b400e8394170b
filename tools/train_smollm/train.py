"""Trains the drafter on one GPU: `python -m tools.train_smollm train --prompts FOLDER --target FILE --out FOLDER`.

For a share of the time the target writes documents, greedily and at temperature 1; then the drafter learns from them,
reading hidden states that a pass of the target computes for every batch anew. The learning rate follows the clock, so
that a run ends inside `--time-limit`. Every minute the drafter is written to `--out`; `--start` goes on from there.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from tools.train_demo import export, pieces
from tools.train_demo.data import ANSWER
from tools.train_demo.head_run import rounded
from tools.train_demo.loop import Clock, Log, schedule
from tools.train_demo.optim import Optimiser
from tools.train_demo.rounding import effective
from tools.train_demo.selector_head import SelectorHead
from tools.train_demo.shapes import Shapes, Weights, draft_shapes, initialise

from . import state
from .evaluate import acceptance, answered
from .llama import LlamaConfig, llama_forward, prepared, random_weights
from .scripts import Scripts
from .sizes import KIND, draft_config
from .writing import Manner, Writer

SAVED_S = 60.0
"""Seconds between two states on disk."""


def options(parser: argparse.ArgumentParser) -> None:
    """The options of the `train` part."""
    parser.add_argument("--prompts", type=Path, required=True, help="folder written by the prepare part")
    parser.add_argument("--target", type=Path, help="SmolLM2's GGUF file; random weights without it, to try the recipe")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--start", type=Path, help="folder with the state of an earlier run, to go on from")
    parser.add_argument("--time-limit", type=float, default=530, help="seconds in all")
    parser.add_argument("--write-share", type=float, default=0.3, help="share of the time in which the target writes")
    parser.add_argument("--check-time", type=float, default=25, help="seconds for the last checks")
    parser.add_argument("--writers", type=int, default=3072, help="rows that the target writes at once")
    parser.add_argument("--length", type=int, default=1024, help="tokens of a row")
    parser.add_argument("--rows", type=int, default=32, help="rows of a training step")
    parser.add_argument("--anchors", type=int, default=256, help="draft blocks per row")
    parser.add_argument("--checks", type=int, default=64, help="held-out prompts of each set")
    parser.add_argument("--longest-check", type=int, default=192, help="tokens of their answers")
    parser.add_argument("--peak", type=float, default=1.0, help="factor of the learning rates")
    parser.add_argument("--layers", type=int, help="layers of random weights")
    parser.add_argument("--plain", action="store_true", help="compile nothing")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")


def begun(a: argparse.Namespace, log: Log) -> torch.device:
    """The device, ready for use. Pieces are compiled where that works."""
    device = torch.device(a.device)
    if device.type != "cuda":
        return device
    pieces.prepare_card(compiled=not a.plain)
    if not a.plain:
        small = [torch.ones(64, device=device), *(torch.ones(64, 64, device=device) for _ in range(3))]
        try:
            pieces.ffn_block(small[1], *small, 1e-5)
        except Exception as error:
            log(compiled=False, why=repr(error)[:500])
            pieces.use_compile(False)
    log(card=torch.cuda.get_device_name(device), free=torch.cuda.mem_get_info()[0] >> 20)
    return device


def written(
    c: LlamaConfig, w: Weights, scripts: Scripts, a: argparse.Namespace, log: Log, deadline: float
) -> tuple[Tensor, Tensor]:
    """Rows of documents that the target writes until the deadline: tokens and seg (R, length), on the device.

    Where the memory is too small for `--writers` rows, half as many are tried.
    """
    writer, batch = None, a.writers
    while writer is None:
        try:
            writer = Writer(c, w, scripts, Manner(), batch=batch, length=a.length, seed=a.seed)
            if a.device == "cuda":
                writer.capture()
        except torch.OutOfMemoryError:
            if batch < 64:
                raise
            writer, batch = None, batch // 2
            torch.cuda.empty_cache()
            log(writers=batch, why="out of memory")
    log(writing=batch)
    rows: list[tuple[Tensor, Tensor]] = []
    taken = 0.0
    while not rows or time.monotonic() + 0.3 * taken < deadline:
        begun = time.monotonic()
        writer.begin()
        tokens, seg = writer.fill(deadline)
        taken = time.monotonic() - begun
        rows.append((tokens, seg))
        known = seg >= 0
        own = (tokens >= ANSWER) & known
        log(
            written=int(known.sum()), answers=int(own.sum()), documents=int((seg.amax(1) + 1).sum()),
            tokens_a_second=int(known.sum()) // max(1, round(taken)), seconds=round(taken, 1),
        )  # fmt: skip
    del writer
    return torch.cat([t for t, _ in rows]), torch.cat([s for _, s in rows])


def shuffled(tokens: Tensor, seg: Tensor, batch: int, seed: int) -> Iterator[tuple[int, Tensor, Tensor]]:
    """The epoch and `batch` rows, without end; every epoch in another order."""
    rng, epoch = np.random.default_rng(seed), 0
    while True:
        epoch += 1
        order = torch.from_numpy(rng.permutation(len(tokens))).to(tokens.device)
        for at in range(0, max(1, len(order) - batch + 1), batch):
            picked = order[at : at + batch]
            yield epoch, tokens[picked], seg[picked]


@torch.no_grad()
def feature_scale(model: SelectorHead, tokens: Tensor, seg: Tensor) -> Tensor:
    """What brings every channel of the features (channels,) to a size of about one.

    A few channels are thirty times the others. `fc` is trained for scaled features, so that one learning rate suits all
    of its columns; the scale is then part of the exported matrix.
    """
    features = model.features((tokens & (ANSWER - 1)).long(), seg)[seg >= 0].float()
    return 1 / features.abs().median(0).values.clamp(min=1e-3)


def with_scale(weights: Weights, scale: Tensor) -> Weights:
    """The weights with `fc` for features as they are."""
    return weights | {"fc.weight": weights["fc.weight"] * scale}


def started(shapes: Shapes, layers: int, target: Weights, scale: Tensor, a: argparse.Namespace) -> Weights:
    """The weights that training begins with, for scaled features: random ones, or those of `--start`.

    The last norm begins as the target's, smaller: its head belongs to it, and the first rows are masks, which it would
    be certain of.
    """
    if a.start:
        first = state.load(a.start)
        first["fc.weight"] = first["fc.weight"] / scale.cpu()
    else:
        first = initialise(shapes, layers, a.seed)
        first["output_norm.weight"] = 0.5 * target["output_norm.weight"].cpu()
    return {name: first[name].to(scale.device).requires_grad_() for name in shapes}


def learned(
    model: SelectorHead, weights: Weights, scale: Tensor, rows: tuple[Tensor, Tensor], a: argparse.Namespace, log: Log,
    deadline: float, dtype: torch.dtype,
) -> int:  # fmt: skip
    """Train `weights` in place until the deadline; returns the number of steps."""
    device = rows[0].device
    shapes = draft_shapes(model.config, KIND)
    optimiser, clock = Optimiser(weights), Clock(deadline, device)
    draws = torch.Generator(device=device).manual_seed(a.seed)
    step, running, saved, begun = 0, torch.zeros(2, device=device), time.monotonic(), time.monotonic()
    coming = shuffled(*rows, a.rows, a.seed)
    while clock.progress < 1 and (step >= 3 or time.monotonic() < deadline):
        epoch, tokens, seg = next(coming)
        head = effective(with_scale(weights, scale), shapes, 1.0 if clock.progress > 0.5 else 0.0, dtype)
        total, losses = model.losses(head, tokens, seg, a.anchors, draws)
        torch.autograd.backward(total)
        optimiser.step(a.peak * schedule(step, clock.progress, 60))
        running += losses
        step += 1
        clock.stepped(step)
        if step in (1, 3, 10, 25) or step % 50 == 0:
            count = 50 if step % 50 == 0 else step
            values = {"step": step, "epoch": epoch, "progress": round(clock.progress, 3)}
            log(**values, loss=rounded(running / count), seconds=round(time.monotonic() - begun, 1))
            if step % 50 == 0:
                running.zero_()
        if step % 250 == 0:
            with pieces.uncompiled():
                log(step=step, accepted=[round(one, 3) for one in model.accepted(head, tokens, seg, 32, draws)])
        if step % 10 == 0 and time.monotonic() - saved > SAVED_S:
            state.save(a.out, with_scale(weights, scale))
            saved = time.monotonic()
    return step


def main(a: argparse.Namespace) -> None:
    a.out.mkdir(parents=True, exist_ok=True)
    log = Log(a.out / "train-log.jsonl")
    end = log.start + a.time_limit - a.check_time
    log(arguments={key: str(value) for key, value in vars(a).items() if key != "part"})
    device = begun(a, log)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    if a.target:
        c, file = LlamaConfig.of(a.target), export.read_weights(a.target)
    else:
        c = LlamaConfig() if a.layers is None else replace(LlamaConfig(), layers=a.layers)
        file = random_weights(c, a.seed)
    w = prepared(c, file, dtype, device)
    scripts = Scripts.load(a.prompts / "scripts.npz")
    held = json.loads((a.prompts / "held.json").read_text(encoding="utf-8"))
    held = {name: prompts[:: max(1, len(prompts) // a.checks)][: a.checks] for name, prompts in held.items()}
    log(loaded=len(file), layers=c.layers)

    graph = device.type == "cuda"
    with pieces.uncompiled():
        checks = answered(c, w, held, (0.0, 1.0), longest=a.longest_check, graph=graph, seed=a.seed + 1)
    log(checks={name: sum(one[0.0].ends) - sum(one[0.0].begins) for name, one in checks.items()})
    writing_ends = time.monotonic() + a.write_share * (end - time.monotonic())
    rows = written(c, w, scripts, a, log, writing_ends)
    if graph:
        torch.cuda.empty_cache()

    dc = draft_config(c)
    shapes = draft_shapes(dc, KIND)
    model = SelectorHead(
        dc, lambda ids, seg: llama_forward(c, w, ids, seg, dc.captured_layers)[1], w["token_embd.weight"],
        w["token_embd.weight"], gamma=4.0,
    )  # fmt: skip
    scale = feature_scale(model, rows[0][: a.rows], rows[1][: a.rows])
    weights = started(shapes, dc.layers, w, scale, a)
    log(parameters=sum(x.numel() for x in weights.values()), captured=dc.captured_layers, rows=len(rows[0]))
    steps = learned(model, weights, scale, rows, a, log, end, dtype)
    trained = with_scale({name: x.detach() for name, x in weights.items()}, scale)
    state.save(a.out, trained)
    log(steps=steps, peak_mib=torch.cuda.max_memory_allocated() >> 20 if graph else 0)

    final = effective(trained, shapes, 1.0, dtype)
    exact = replace(model, output=w["token_embd.weight"].float())
    with pieces.uncompiled():
        for heat in (0.0, 1.0):
            for name, one in checks.items():
                log(held=name, temperature=heat, **acceptance(exact, final, one[heat]))
    sys.stdout.flush()
