"""Trains the demo pair on one GPU: `python -m tools.train_demo.train --corpus FOLDER --out FOLDER`.

Stage `target` trains the chat model, the last part of it with its weights rounded as the file will hold them, and
writes `demo-target.gguf`. Stage `draft` lets that file answer prompts of the corpus, trains the drafters on those
answers, and writes `demo-draft.gguf`. Data order depends on the seed alone; the learning
rate follows the clock, so that a stage always finishes inside its time limit. Needs torch, numpy, gguf and
tokenizers only.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from . import data, export
from . import tokenizer as tok
from .acceptance import acceptance
from .answers import answer_all, plain_prompts
from .blocks import pick_blocks
from .data import ANSWER, Documents, Rows
from .draft_net import draft_forward
from .loop import Clock, Fresh, Log, batches, schedule, split_tokens
from .optim import Optimiser
from .pieces import prepare_card, use_compile
from .rounding import effective, quantised
from .shapes import DraftConfig, TargetConfig, Weights, draft_shapes, import_form, initialise, target_shapes
from .sizes import draft_configs, target_config
from .target_net import target_forward, token_losses

OTHER_WEIGHT = 0.1
"""Loss weight of tokens that are not part of an answer: enough to learn how questions are worded."""


# ---------------------------------------------------------------------------------------------------------------
# stage 1: the target


@torch.no_grad()
def validate(c: TargetConfig, w: Weights, rows: Rows, token_bytes: Tensor, batch: int) -> tuple[float, float]:
    """Mean loss per answer token in nats, and bits per byte of the answers, over held-out rows."""
    loss = torch.zeros((), device=token_bytes.device)
    count, size = loss.clone(), loss.clone()
    for i in range(0, len(rows) - batch + 1, batch):
        ids, labels, _, answer = split_tokens(rows.tokens[i : i + batch], rows.seg[i : i + batch])
        hidden, _ = target_forward(c, w, ids, rows.seg[i : i + batch])
        losses = token_losses(hidden.flatten(0, 1), w["output.weight"], labels.flatten()).view(labels.shape)
        loss += (losses * answer).sum()
        count += answer.sum()
        size += (token_bytes[labels] * answer).sum()
    return float(loss / count), float(loss / math.log(2) / size)


def held_losses(
    c: TargetConfig, w: Weights, held: dict[str, Rows], token_bytes: Tensor, batch: int
) -> dict[str, float]:
    """`validate` of the generated and of the read held-out documents, by the names they are logged under."""
    out: dict[str, float] = {}
    for name, rows in held.items():
        loss, bits = validate(c, w, rows, token_bytes, min(batch, len(rows)))
        out |= {f"{name}_loss": round(loss, 4), f"{name}_bits_per_byte": round(bits, 4)}
    return out


def train_target(
    c: TargetConfig, corpus: dict[str, Documents], tokenizer: Path, out: Path, log: Log, *,
    deadline: float, batch: int, length: int, seed: int, device: torch.device, start: Weights | None = None,
    known_times: int = 1, quantise_at: float = 0.5, workers: int = 0,
) -> Weights:  # fmt: skip
    """Train the target until the deadline, write its file, and return the weights as the file holds them."""
    shapes = target_shapes(c)
    weights = start or initialise(shapes, c.layers, seed)
    weights = {name: w.to(device).requires_grad_() for name, w in weights.items()}
    log(stage="target", parameters=sum(w.numel() for w in weights.values()))
    optimiser = Optimiser(weights)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    fresh = Fresh(corpus["made"], tokenizer, length, seed, workers)
    rows = batches(
        lambda n: fresh(n).joined(corpus["known"], known_times), batch=batch, length=length, seed=seed, device=device
    )
    packed = {
        "held": data.pack(corpus["held"], length, seed),
        "held_read": data.pack(corpus["held_read"], length, seed),
    }
    held = {name: Rows(r.tokens[: 2 * batch].to(device), r.seg[: 2 * batch].to(device)) for name, r in packed.items()}
    names, _, _ = tok.gguf_tables(tokenizer)
    token_bytes = torch.tensor([len(name) for name in names], device=device)  # byte-level BPE: a character per byte
    clock = Clock(deadline, device)
    step = seen = 0
    strength, next_check = 0.0, 0.12
    running = torch.zeros((), device=device)
    while clock.progress < 1:
        epoch, tokens, seg = next(rows)
        ids, labels, same, answer = split_tokens(tokens, seg)
        strength = 1.0 if clock.progress >= quantise_at else 0.0
        w = effective(weights, shapes, strength, dtype)
        hidden, _ = target_forward(c, w, ids, seg)
        losses = token_losses(hidden.flatten(0, 1), w["output.weight"], labels.flatten()).view(labels.shape)
        weight = same * OTHER_WEIGHT + answer * (1 - OTHER_WEIGHT)
        loss = (losses * weight).sum() / weight.sum()
        loss.backward()
        optimiser.step(schedule(step, clock.progress, 60))
        running += (losses.detach() * answer).sum() / answer.sum()
        step += 1
        seen += ids.numel()
        clock.stepped(step)
        if step % 50 == 0:
            log(
                step=step,
                epoch=epoch,
                tokens=seen,
                loss=round(float(running) / 50, 4),
                progress=round(clock.progress, 3),
                lr=round(schedule(step, clock.progress, 60), 3),
                rounded=strength,
            )
            running.zero_()
        if clock.progress >= next_check:
            next_check += 0.12
            w = effective(weights, shapes, strength, dtype)
            log(step=step, **held_losses(c, w, held, token_bytes, batch), rounded=strength)
    final = quantised({name: w.detach() for name, w in weights.items()}, shapes)
    w = effective(final, shapes, 0.0, dtype)
    log(step=step, **held_losses(c, w, held, token_bytes, batch), rounded=1.0, tokens=seen, final=True)
    export.write_target(out / "demo-target.gguf", c, final, tokenizer)
    return final


def check_answers(
    c: TargetConfig, final: Weights, corpus: dict[str, Documents], tokenizer: Path, log: Log, device: torch.device,
    count: int = 1000,
) -> None:  # fmt: skip
    """Answer held-out prompts; log how many answers end, how many are the expected text, and the text of the first."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    w = effective({n: x.to(device) for n, x in final.items()}, target_shapes(c), 0.0, dtype)
    held = corpus["held"]
    rows = [held[i] for i in range(min(count, len(held)))]
    sizes = [int(np.argmax(row >= ANSWER)) for row in rows]
    prompts = [row[:n].astype(np.int64) for row, n in zip(rows, sizes, strict=True)]
    answers = answer_all(c, w, prompts, batch=len(prompts), most=256, temperature=0.0, seed=0)
    end = tok.token_id("<|im_end|>")
    ended = sum(len(x) > 0 and int(x[-1]) == end for x in answers)
    exact = sum(np.array_equal(x, row[n:] & (ANSWER - 1)) for x, row, n in zip(answers, rows, sizes, strict=True))
    log(answered=len(rows), ended=ended, exact=exact)
    reader = tok.load(tokenizer)
    for prompt, answer in list(zip(prompts, answers, strict=True))[:24]:
        text = reader.decode(prompt.tolist(), skip_special_tokens=False)
        log(prompt=text[-300:], answer=reader.decode(answer.tolist(), skip_special_tokens=False))


# ---------------------------------------------------------------------------------------------------------------
# stage 2: the drafters


def answered_prompts(
    c: TargetConfig, w: Weights, corpus: dict[str, Documents], log: Log, *, prompts: int, batch: int, seed: int,
    deadline: float,
) -> Documents:  # fmt: skip
    """Training texts of the drafters: prompts of the corpus with the target's answers, a third of them sampled.

    Takes about the first third of the time until `deadline`; prompts that there is no time for are left out.
    """
    begun = time.monotonic()
    left = deadline - begun
    rng = np.random.default_rng(seed)
    made, known = corpus["made"], corpus["known"]
    picked = rng.permutation(len(made))[: prompts * 2].tolist()  # about half of them ask for thinking or are long
    asked = plain_prompts(known, range(len(known)), 400) + plain_prompts(made, picked, 400)[:prompts]
    third = len(asked) // 3
    rng.shuffle(asked)
    greedy = answer_all(
        c, w, asked[third:], batch=batch, most=200, temperature=0.0, seed=seed, deadline=begun + 0.25 * left
    )
    log(stage="draft", greedy=sum(int(len(a) > 0) for a in greedy), seconds=round(time.monotonic() - begun, 1))
    sampled = answer_all(
        c, w, asked[:third], batch=batch, most=200, temperature=0.7, seed=seed + 1, deadline=begun + 0.35 * left
    )
    pairs = zip(asked, sampled + greedy, strict=True)
    texts = Documents.of([np.concatenate([p.astype(np.int32), a | ANSWER]) for p, a in pairs if len(a) > 1])
    log(
        answers=len(texts),
        answer_tokens=int((texts.tokens >= ANSWER).sum()),
        seconds=round(time.monotonic() - begun, 1),
    )
    return texts


def train_draft(
    c: TargetConfig, target: Weights, drafters: dict[str, tuple[DraftConfig, str]], corpus: dict[str, Documents],
    out: Path, log: Log, *, deadline: float, batch: int, anchors: int, length: int, seed: int,
    device: torch.device, prompts: int, decode_batch: int, checks: int, gamma: float = 7.0,
) -> None:  # fmt: skip
    """Train every drafter (file name -> sizes and storage type) on the target's answers, and write the files.

    They share features and blocks, so all must have the same captured layers, block size and mask token. Position i of
    a block has weight exp(-i / gamma): a draft is of use only if all before it were accepted.
    """
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    target = {name: w.to(device) for name, w in target.items()}
    w = effective(target, target_shapes(c), 0.0, dtype)
    texts = answered_prompts(c, w, corpus, log, prompts=prompts, batch=decode_batch, seed=seed, deadline=deadline)
    held_prompts = plain_prompts(corpus["held"], range(len(corpus["held"])), 400)[:checks]
    held_answers = answer_all(c, w, held_prompts, batch=len(held_prompts), most=128, temperature=0.0, seed=0)
    held = list(zip([p.tolist() for p in held_prompts], [a.tolist() for a in held_answers], strict=True))

    models = {}
    for number, (name, (dc, kind)) in enumerate(drafters.items()):
        shapes = draft_shapes(dc, kind)
        weights = initialise(shapes, dc.layers, seed + number)
        weights = {n: x.to(device).requires_grad_() for n, x in weights.items()}
        models[name] = (dc, kind, shapes, weights, Optimiser(weights))
        log(drafter=name, parameters=sum(x.numel() for x in weights.values()))
    first = next(iter(drafters.values()))[0]
    decay = torch.exp(-torch.arange(first.block - 1, device=device) / gamma)
    draws = torch.Generator(device=device).manual_seed(seed)
    rows = batches(lambda _: texts, batch=batch, length=length, seed=seed, device=device)
    clock = Clock(deadline, device)
    step = 0
    running = {name: torch.zeros((), device=device) for name in models}
    while clock.progress < 1:
        epoch, tokens, seg = next(rows)
        with torch.no_grad():
            _, features = target_forward(c, w, split_tokens(tokens, seg)[0], seg, first.captured_layers)
            anchor, anchor_seg, block, inside = pick_blocks(tokens, seg, anchors, first.block, draws)
            asks = torch.full_like(block, first.mask_id)
            asks[..., 0] = block[..., 0]
            noise = F.embedding(asks, w["token_embd.weight"])
            labels, weight = block[..., 1:], inside[..., 1:] * decay
        for name, (dc, _, shapes, weights, optimiser) in models.items():
            dw = effective(weights, shapes, 1.0 if clock.progress > 0.5 else 0.0, dtype)
            hidden = draft_forward(dc, dw, features, seg, anchor, anchor_seg, noise)[:, :, 1:]
            losses = token_losses(hidden.reshape(-1, c.hidden), w["output.weight"], labels.reshape(-1))
            loss = (losses.view(labels.shape) * weight).sum() / weight.sum()
            loss.backward()
            optimiser.step(schedule(step, clock.progress, 60))
            running[name] += loss.detach()
        step += 1
        clock.stepped(step)
        if step % 100 == 0:
            log(
                step=step,
                epoch=epoch,
                progress=round(clock.progress, 3),
                **{n: round(float(r) / 100, 4) for n, r in running.items()},
            )
            for r in running.values():
                r.zero_()
    use_compile(False)  # the checks below see texts of all lengths, each of which would be compiled again
    for name, (dc, kind, shapes, weights, _) in models.items():
        final = quantised({n: x.detach() for n, x in weights.items()}, shapes)
        export.write_draft(out / name, dc, final, None, c.context, kind)
        found = acceptance(c, w, dc, effective(final, shapes, 0.0, dtype), held, (8, 15, 22, 40))
        log(drafter=name, acceptance={k: round(v, 3) for k, v in found.items()}, steps=step)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corpus", type=Path, required=True, help="folder written by tools.train_demo.prepare")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--stage", choices=("target", "draft", "both"), default="both")
    parser.add_argument("--time-limit", type=float, default=460, help="seconds of each stage")
    parser.add_argument("--target", type=Path, help="target file of the draft stage, if not the one in --out")
    parser.add_argument("--start", type=Path, help="GGUF target to continue training from")
    parser.add_argument("--batch", type=int, default=64, help="rows of --length tokens per step of the target")
    parser.add_argument("--draft-batch", type=int, default=16)
    parser.add_argument("--anchors", type=int, default=96, help="draft blocks per row")
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--prompts", type=int, default=110_000, help="generated prompts that the target answers")
    parser.add_argument("--decode-batch", type=int, default=8192)
    parser.add_argument(
        "--checks", type=int, default=1000, help="held-out prompts answered at the end of the target stage"
    )
    parser.add_argument(
        "--workers",
        type=int,
        default=max(0, (os.cpu_count() or 1) - 4),
        help="processes that make new documents for each epoch; 0 repeats those of the corpus file",
    )
    parser.add_argument("--target-time", type=float, help="seconds of the target stage, if not --time-limit")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    a = parser.parse_args(argv)
    a.out.mkdir(parents=True, exist_ok=True)
    device = torch.device(a.device)
    if device.type == "cuda":
        prepare_card(compiled=True)
    corpus, tokenizer = data.load(a.corpus), a.corpus / "tokenizer.json"
    c = target_config()
    if a.stage in ("target", "both"):
        log = Log(a.out / "target-log.jsonl")
        start = import_form(export.read_weights(a.start)) if a.start else None
        deadline = log.start + (a.target_time or a.time_limit) - 8  # the last check and the file come after it
        final = train_target(
            c, corpus, tokenizer, a.out, log, deadline=deadline, batch=a.batch, length=a.length, seed=a.seed,
            device=device, start=start, workers=a.workers,
        )  # fmt: skip
        check_answers(c, final, corpus, tokenizer, log, device, a.checks)
    if a.stage in ("draft", "both"):
        log = Log(a.out / "draft-log.jsonl")
        final = import_form(export.read_weights(a.target or a.out / "demo-target.gguf"))
        deadline = log.start + a.time_limit - 15  # the files and their checks come after it
        train_draft(
            c, final, draft_configs(c), corpus, a.out, log, deadline=deadline,
            batch=a.draft_batch, anchors=a.anchors, length=a.length, seed=a.seed, device=device, prompts=a.prompts,
            decode_batch=a.decode_batch, checks=min(a.checks, 160),
        )  # fmt: skip


if __name__ == "__main__":
    main()
