"""Trains the demo pair on one GPU: `python -m dflash_core.demo.train --corpus FOLDER --out FOLDER`.

Stage `target` trains the chat model, the last part of it with its weights rounded as the file will hold them, and
writes `demo-target.gguf`. Stage `draft` lets that file answer prompts of the corpus, trains the drafters on those
answers, and writes `demo-draft.gguf` and `demo-draft-swa.gguf`. Data order depends on the seed alone; the learning
rate follows the clock, so that a stage always finishes inside its time limit. Needs torch, numpy and gguf only.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
import torch._dynamo
import torch.nn.functional as F
from torch import Tensor

from . import data, export, net, prepare
from . import tokenizer as tok
from .acceptance import acceptance
from .data import ANSWER, Documents, Rows
from .net import DraftConfig, TargetConfig, Weights
from .optim import Optimiser

OTHER_WEIGHT = 0.1
"""Loss weight of tokens that are not part of an answer: enough to learn the language of questions from."""


class Log:
    """Prints lines and keeps them, one JSON object each, next to the weights."""

    def __init__(self, path: Path) -> None:
        self.path, self.start = path, time.monotonic()
        path.write_text("", encoding="utf-8")

    def __call__(self, **values: object) -> None:
        row = {"t": round(time.monotonic() - self.start, 1), **values}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        print(json.dumps(row), flush=True)  # noqa: T201


class Clock:
    """The share of a stage's training time that has passed, measured from the first call of `go`."""

    def __init__(self, deadline: float) -> None:
        self.deadline, self.begun = deadline, 0.0

    def go(self) -> None:
        self.begun = time.monotonic()

    @property
    def progress(self) -> float:
        now = time.monotonic()
        if now >= self.deadline:
            return 1.0
        return (now - self.begun) / (self.deadline - self.begun) if self.begun else 0.0


def schedule(step: int, progress: float, warmup: int, flat: float = 0.3) -> float:
    """A short linear warm-up in steps, a flat part, then a line down to nothing at progress 1."""
    return min((step + 1) / warmup, 1.0) * min(1.0, max((1 - progress) / (1 - flat), 0.01))


def epochs(documents: Callable[[int], Documents], length: int, seed: int, device: torch.device) -> Callable[[], Rows]:
    """Packed epochs one after the other; the next is packed in the background."""
    pool = ThreadPoolExecutor(1)
    number = 0

    def packed(n: int) -> Rows:
        return data.pack(documents(n), length, seed + n)

    coming = pool.submit(packed, 0)

    def take() -> Rows:
        nonlocal number, coming
        rows = coming.result()
        number += 1
        coming = pool.submit(packed, number)
        return Rows(rows.tokens.to(device), rows.seg.to(device))

    return take


class Fresh:
    """The generated documents of each epoch: the corpus file first, after that new ones made by worker processes."""

    def __init__(self, made: Documents, tokenizer: Path, context: int, seed: int, workers: int) -> None:
        self.made, self.tokenizer, self.context, self.seed = made, tokenizer, context, seed
        self.pool = ProcessPoolExecutor(workers, get_context("spawn")) if workers else None

    def __call__(self, epoch: int) -> Documents:
        if epoch == 0 or self.pool is None:
            return self.made
        size = 5000
        seed = self.seed + 1000 * epoch
        tasks = [(self.tokenizer, i, size, seed, self.context) for i in range(0, len(self.made), size)]
        parts = list(self.pool.map(prepare.fresh_shard, tasks))
        shards = [Documents(tokens, starts) for tokens, starts in parts]
        starts = np.cumsum(np.concatenate([[0], *(np.diff(s.starts) for s in shards)])).astype(np.int64)
        return Documents(np.concatenate([s.tokens for s in shards]), starts)


def split_tokens(tokens: Tensor, seg: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """ids, next-token labels, whether the label is in the same document, and whether it is part of an answer."""
    ids = tokens & (ANSWER - 1)
    labels = F.pad(tokens, (0, 1))[:, 1:]
    same = (F.pad(seg, (0, 1), value=-3)[:, 1:] == seg) & (seg >= 0)
    return ids.long(), (labels & (ANSWER - 1)).long(), same, same & (labels >= ANSWER)


# ---------------------------------------------------------------------------------------------------------------
# stage 1


@torch.no_grad()
def validate(c: TargetConfig, w: Weights, rows: Rows, token_bytes: Tensor, batch: int) -> tuple[float, float]:
    """Mean loss per answer token in nats, and bits per byte of the answers, over held-out rows."""
    loss = torch.zeros((), device=token_bytes.device)
    count, size = loss.clone(), loss.clone()
    for i in range(0, len(rows) - batch + 1, batch):
        ids, labels, _, answer = split_tokens(rows.tokens[i : i + batch], rows.seg[i : i + batch])
        hidden, _ = net.target_forward(c, w, ids, rows.seg[i : i + batch])
        losses = net.token_losses(hidden.flatten(0, 1), w["output.weight"], labels.flatten()).view(labels.shape)
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
    shapes = net.target_shapes(c)
    weights = start or net.initialise(shapes, c.layers, seed)
    weights = {name: w.to(device).requires_grad_() for name, w in weights.items()}
    log(stage="target", parameters=sum(w.numel() for w in weights.values()))
    optimiser = Optimiser(weights)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    fresh = Fresh(corpus["made"], tokenizer, length, seed, workers)
    take = epochs(lambda n: fresh(n).joined(corpus["known"], known_times), length, seed, device)
    packed = {
        "held": data.pack(corpus["held"], length, seed),
        "held_read": data.pack(corpus["held_read"], length, seed),
    }
    held = {name: Rows(r.tokens[: 2 * batch].to(device), r.seg[: 2 * batch].to(device)) for name, r in packed.items()}
    tokens, _, _ = tok.gguf_tables(tokenizer)
    token_bytes = torch.tensor([len(t) for t in tokens], device=device)
    clock = Clock(deadline)
    step = seen = epoch = at = 0
    rows: Rows | None = None
    strength, next_check = 0.0, 0.12
    running = torch.zeros((), device=device)
    while clock.progress < 1:
        if rows is None or at + batch > len(rows):
            rows, at, epoch = take(), 0, epoch + 1
        block, seg = rows.tokens[at : at + batch], rows.seg[at : at + batch]
        at += batch
        ids, labels, same, answer = split_tokens(block, seg)
        strength = 1.0 if clock.progress >= quantise_at else 0.0
        w = net.effective(weights, shapes, strength, dtype)
        hidden, _ = net.target_forward(c, w, ids, seg)
        losses = net.token_losses(hidden.flatten(0, 1), w["output.weight"], labels.flatten()).view(labels.shape)
        weight = same * OTHER_WEIGHT + answer * (1 - OTHER_WEIGHT)
        loss = (losses * weight).sum() / weight.sum()
        loss.backward()
        optimiser.step(schedule(step, clock.progress, 60))
        running += (losses.detach() * answer).sum() / answer.sum()
        step += 1
        seen += ids.numel()
        if step == 3:
            _sync(device)
            clock.go()  # what came before was mostly compilation
        if step % 10 == 0:
            _sync(device)
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
            w = net.effective(weights, shapes, strength, dtype)
            log(step=step, **held_losses(c, w, held, token_bytes, batch), rounded=strength)
    final = net.quantised({name: w.detach() for name, w in weights.items()}, shapes)
    w = net.effective(final, shapes, 0.0, dtype)
    log(step=step, **held_losses(c, w, held, token_bytes, batch), rounded=1.0, tokens=seen, final=True)
    export.write_target(out / "demo-target.gguf", c, final, tokenizer)
    return final


def _sync(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


# ---------------------------------------------------------------------------------------------------------------
# answers


@torch.no_grad()
def answer_all(
    c: TargetConfig, w: Weights, prompts: list[np.ndarray], *, batch: int, most: int, temperature: float, seed: int,
    deadline: float = math.inf,
) -> list[np.ndarray]:  # fmt: skip
    """The target's answers, end token included where it came within `most` tokens.

    All sequences of a batch advance together from position 0: a sequence still inside its prompt is fed the prompt.
    Prompts after the deadline get an empty answer.
    """
    device = w["output.weight"].device
    end = tok.token_id("<|im_end|>")
    draws = torch.Generator(device=device).manual_seed(seed)
    out: list[np.ndarray] = [np.zeros(0, np.uint16) for _ in prompts]
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    groups = [order[i : i + batch] for i in range(0, len(order), batch)]
    np.random.default_rng(seed).shuffle(groups)
    for group in groups:
        if time.monotonic() > deadline:
            break
        sizes = torch.tensor([len(prompts[i]) for i in group] + [1] * (batch - len(group)), device=device)
        longest = int(sizes.max())
        text = torch.zeros(batch, longest + most + 1, dtype=torch.long, device=device)
        host = np.zeros((len(group), longest), np.int64)
        for row, i in enumerate(group):
            host[row, : len(prompts[i])] = prompts[i]
        text[: len(group), :longest] = torch.from_numpy(host).to(device)
        done = sizes == 1
        ends = sizes + most
        state = net.decode_state(c, batch, longest + most, device, w["output.weight"].dtype)
        for t in range(longest + most - 1):
            logits = net.target_step(c, w, state, text[:, t])
            if temperature > 0:
                noise = torch.rand(logits.shape, device=device, generator=draws).clamp_(1e-10, 1 - 1e-7)
                logits = logits / temperature - (-noise.log()).log()
            token = logits.argmax(-1)
            writes = (t + 1 >= sizes) & ~done & (t + 1 < ends)
            text[:, t + 1] = torch.where(writes, token, text[:, t + 1])
            finished = writes & (token == end)
            ends = torch.where(finished, t + 2, ends)
            done |= finished | (t + 2 >= ends) & (t + 1 >= sizes)
            if t % 8 == 0 and bool(done.all()):
                break
        rows, stops = text.cpu().numpy(), ends.cpu().numpy()
        for row, i in enumerate(group):
            out[i] = rows[row, len(prompts[i]) : stops[row]].astype(np.uint16)
    return out


def plain_prompts(documents: Documents, picked: Sequence[int], longest: int) -> list[np.ndarray]:
    """Prompts of the picked documents that ask for an answer without thinking."""
    closed = tok.token_id("</think>")
    out = []
    for i in picked:
        row = documents[i]
        size = int(np.argmax(row >= ANSWER))
        if size <= longest and closed in row[max(0, size - 3) : size]:
            out.append(row[:size].astype(np.int64))
    return out


# ---------------------------------------------------------------------------------------------------------------
# stage 2


def train_draft(
    c: TargetConfig, target: Weights, drafters: dict[str, tuple[DraftConfig, str]], corpus: dict[str, Documents],
    tokenizer: Path, out: Path, log: Log, *, deadline: float, batch: int, anchors: int, length: int, seed: int,
    device: torch.device, prompts: int, decode_batch: int, checks: int, gamma: float = 7.0,
) -> None:  # fmt: skip
    """Train every drafter (file name -> shape and storage type) on the target's answers, and write the files."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    target = {name: w.to(device) for name, w in target.items()}
    w = net.effective(target, net.target_shapes(c), 0.0, dtype)
    begun = time.monotonic()
    rng = np.random.default_rng(seed)
    made, known = corpus["made"], corpus["known"]
    picked = rng.permutation(len(made))[: prompts * 2].tolist()
    asked = plain_prompts(known, range(len(known)), 400) + plain_prompts(made, picked, 400)[:prompts]
    third = len(asked) // 3
    rng.shuffle(asked)
    limit = begun + 0.35 * (deadline - begun)
    half = begun + 0.25 * (deadline - begun)
    answers = answer_all(
        c, w, asked[third:], batch=decode_batch, most=200, temperature=0.0, seed=seed, deadline=half
    )  # fmt: skip
    log(stage="draft", greedy=sum(int(len(a) > 0) for a in answers), seconds=round(time.monotonic() - begun, 1))
    answers = answer_all(
        c, w, asked[:third], batch=decode_batch, most=200, temperature=0.7, seed=seed + 1, deadline=limit
    ) + answers  # fmt: skip
    texts = Documents.of(
        [np.concatenate([p.astype(np.uint16), a | ANSWER]) for p, a in zip(asked, answers, strict=True) if len(a) > 1]
    )
    log(
        answers=len(texts),
        answer_tokens=int((texts.tokens >= ANSWER).sum()),
        seconds=round(time.monotonic() - begun, 1),
    )

    held_prompts = plain_prompts(corpus["held"], range(len(corpus["held"])), 400)[:checks]
    held_answers = answer_all(c, w, held_prompts, batch=len(held_prompts), most=128, temperature=0.0, seed=0)
    held = list(zip([p.tolist() for p in held_prompts], [a.tolist() for a in held_answers], strict=True))

    models = {}
    for number, (name, (dc, kind)) in enumerate(drafters.items()):
        shapes = net.draft_shapes(dc, kind)
        weights = net.initialise(shapes, dc.layers, seed + number)
        weights = {n: x.to(device).requires_grad_() for n, x in weights.items()}
        models[name] = (dc, kind, shapes, weights, Optimiser(weights))
        log(drafter=name, parameters=sum(x.numel() for x in weights.values()))
    first = next(iter(drafters.values()))[0]
    decay = torch.exp(-torch.arange(first.block - 1, device=device) / gamma)
    draws = torch.Generator(device=device).manual_seed(seed)
    take = epochs(lambda _: texts, length, seed, device)
    clock = Clock(deadline)
    rows: Rows | None = None
    step = at = epoch = 0
    running = {name: torch.zeros((), device=device) for name in models}
    while clock.progress < 1:
        if rows is None or at + batch > len(rows):
            rows, at, epoch = take(), 0, epoch + 1
        tokens, seg = rows.tokens[at : at + batch], rows.seg[at : at + batch]
        at += batch
        ids, _, _, answer_next = split_tokens(tokens, seg)
        with torch.no_grad():
            _, features = net.target_forward(c, w, ids, seg, first.taps)
            anchor = torch.multinomial(
                (answer_next & (tokens >= ANSWER)).float() + 1e-9, anchors, True, generator=draws
            )
            index = anchor[..., None] + torch.arange(first.block, device=device)
            index_in = index.clamp(max=length - 1).flatten(1)
            block = ids.gather(1, index_in).view(index.shape)
            anchor_seg = seg.gather(1, anchor)
            inside = (index < length) & (seg.gather(1, index_in).view(index.shape) == anchor_seg[..., None])
            inside &= (anchor_seg >= 0)[..., None]
            asks = torch.full_like(block, first.mask_id)
            asks[..., 0] = block[..., 0]
            noise = F.embedding(asks, w["token_embd.weight"])
            labels, weight = block[..., 1:], inside[..., 1:] * decay
        for name, (dc, _, shapes, weights, optimiser) in models.items():
            dw = net.effective(weights, shapes, 1.0 if clock.progress > 0.5 else 0.0, dtype)
            hidden = net.draft_forward(dc, dw, features, seg, anchor, anchor_seg, noise)[:, :, 1:]
            losses = net.token_losses(hidden.reshape(-1, c.hidden), w["output.weight"], labels.reshape(-1))
            loss = (losses.view(labels.shape) * weight).sum() / weight.sum()
            loss.backward()
            optimiser.step(schedule(step, clock.progress, 60))
            running[name] += loss.detach()
        step += 1
        if step == 3:
            _sync(device)
            clock.go()
        if step % 10 == 0:
            _sync(device)
        if step % 100 == 0:
            log(
                step=step,
                epoch=epoch,
                progress=round(clock.progress, 3),
                **{n: round(float(r) / 100, 4) for n, r in running.items()},
            )
            for r in running.values():
                r.zero_()
    for name, (dc, kind, shapes, weights, _) in models.items():
        final = net.quantised({n: x.detach() for n, x in weights.items()}, shapes)
        export.write_draft(out / name, dc, final, tokenizer, c.context, kind)
        net.use_compile(False)
        found = acceptance(c, w, dc, net.effective(final, shapes, 0.0, dtype), held, (8, 15, 22, 40))
        log(drafter=name, acceptance={k: round(v, 3) for k, v in found.items()}, steps=step)


# ---------------------------------------------------------------------------------------------------------------


def target_config() -> TargetConfig:
    return TargetConfig()


def draft_configs(c: TargetConfig) -> dict[str, tuple[DraftConfig, str]]:
    """The shipped drafters: all layers full, and the variant with causal sliding-window layers below the last."""
    base = DraftConfig(hidden=c.hidden, taps=net.default_taps(c.layers, 5), mask_id=tok.token_id("<|mask|>"))
    return {
        "demo-draft.gguf": (base, "Q8_0"),
        "demo-draft-swa.gguf": (replace(base, layers=2, ffn=448, window=256, sliding=(True, False)), "Q4_0"),
    }


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corpus", type=Path, required=True, help="folder written by dflash_core.demo.prepare")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--stage", choices=("target", "draft", "both"), default="both")
    parser.add_argument("--time-limit", type=float, default=460, help="seconds of each stage")
    parser.add_argument("--target", type=Path, help="target file of the draft stage, if not the one in --out")
    parser.add_argument("--start", type=Path, help="GGUF target to go on training from")
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
        torch.set_float32_matmul_precision("high")
        torch._dynamo.config.recompile_limit = 64  # every piece is used with a few shapes
        net.use_compile(True)
    corpus, tokenizer = data.load(a.corpus), a.corpus / "tokenizer.json"
    c = target_config()
    if a.stage in ("target", "both"):
        log = Log(a.out / "target-log.jsonl")
        start = net.import_form(export.read_weights(a.start)) if a.start else None
        deadline = log.start + (a.target_time or a.time_limit) - 8
        final = train_target(
            c, corpus, tokenizer, a.out, log, deadline=deadline, batch=a.batch, length=a.length, seed=a.seed,
            device=device, start=start, workers=a.workers,
        )  # fmt: skip
        check_answers(c, final, corpus, tokenizer, log, device, a.checks)
    if a.stage in ("draft", "both"):
        log = Log(a.out / "draft-log.jsonl")
        final = net.import_form(export.read_weights(a.target or a.out / "demo-target.gguf"))
        net.use_compile(device.type == "cuda")
        train_draft(
            c, final, draft_configs(c), corpus, tokenizer, a.out, log, deadline=log.start + a.time_limit - 15,
            batch=a.draft_batch, anchors=a.anchors, length=a.length, seed=a.seed, device=device, prompts=a.prompts,
            decode_batch=a.decode_batch, checks=min(a.checks, 160),
        )  # fmt: skip


def check_answers(
    c: TargetConfig, final: Weights, corpus: dict[str, Documents], tokenizer: Path, log: Log, device: torch.device,
    count: int = 1000,
) -> None:  # fmt: skip
    """Answer held-out prompts and log how many are word for word the expected text, by their first sign."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    w = net.effective({n: x.to(device) for n, x in final.items()}, net.target_shapes(c), 0.0, dtype)
    held = corpus["held"]
    rows = [held[i] for i in range(min(count, len(held)))]
    sizes = [int(np.argmax(row >= ANSWER)) for row in rows]
    prompts = [row[:n].astype(np.int64) for row, n in zip(rows, sizes, strict=True)]
    answers = answer_all(c, w, prompts, batch=len(prompts), most=256, temperature=0.0, seed=0)
    end = tok.token_id("<|im_end|>")
    ended = sum(len(x) > 0 and int(x[-1]) == end for x in answers)
    exact = sum(np.array_equal(x, row[n:] & (ANSWER - 1)) for x, row, n in zip(answers, rows, sizes, strict=True))
    log(answered=len(rows), ended=ended, exact=exact)
    try:
        reader = tok.load(tokenizer)
    except ImportError:
        return
    for prompt, answer in list(zip(prompts, answers, strict=True))[:24]:
        text = reader.decode(prompt.tolist(), skip_special_tokens=False)
        log(prompt=text[-300:], answer=reader.decode(answer.tolist(), skip_special_tokens=False))


if __name__ == "__main__":
    main()
