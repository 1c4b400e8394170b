"""Trains the demo target's MTP head on one GPU: `python -m tools.train_demo.mtp --out FOLDER`.

The target is the shipped one and is not trained. The head learns to predict the target's own distributions over newly
generated documents, for up to `--depth` tokens in a row. Writes `demo-mtp.gguf`, a file of the head alone, and
`mtp-log.jsonl`. The learning rate follows the clock, so that training always ends inside `--time-limit`. Needs torch,
numpy, gguf and tokenizers only.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import gguf
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, decoders, models
from torch import Tensor

from dflash_core.arch.kinds import NextN
from dflash_core.arch.qwen35 import DENSE as ARCHITECTURE
from dflash_core.config import MtpConfig
from dflash_core.formats.gguf import open_gguf

from . import data, export, prepare
from . import tokenizer as tok
from .corpus import build
from .data import Documents
from .head_run import begun, end_now, head_options, rounded
from .loop import Clock, Fresh, batches, schedule, split_tokens
from .mtp_net import mtp_forward
from .optim import Optimiser
from .pieces import linear, use_compile
from .rounding import effective, quantised
from .shapes import Shapes, TargetConfig, Weights, export_form, import_form, initialise, spec, target_shapes
from .sizes import target_config
from .target_net import target_forward

OTHER_WEIGHT = 0.1  # loss weight of tokens that are not part of an answer
DEEPER = 0.8  # loss weight of a depth relative to the one before it
SHARD = 2500  # documents that a worker generates at a time


def mtp_config(c: TargetConfig) -> MtpConfig:
    """The head of the demo target: a full-attention layer like its own, and no embedding or head of its own."""
    model = spec(c)
    layer = model.layers[c.interval - 1]
    return MtpConfig("DFlash demo MTP head", c.layers, layer, NextN(), c.hidden, c.vocab, c.eps)


def mtp_shapes(c: TargetConfig) -> Shapes:
    """Every tensor of the head by its name in the file; matrices are Q8_0."""
    return {name: (shape, "Q8_0" if len(shape) > 1 else "F32") for name, shape in mtp_config(c).tensors().items()}


def shipped_tokenizer(target: Path, out: Path) -> Path:
    """Write the tokenizer of a target's file as a file of the tokenizers package in `out`; text gets the same ids."""
    metadata = open_gguf(target).metadata
    names, joined = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.merges"]
    assert isinstance(names, list), "a target with a vocabulary"
    assert isinstance(joined, list), "a target with merges"
    merges = [tuple(merge.split(" ")) for merge in joined]
    learned = {name: at for at, name in enumerate(names[: len(names) - len(tok.SPECIAL)])}
    made = Tokenizer(models.BPE(vocab=learned, merges=merges))
    made.pre_tokenizer = tok.pre_tokenizer()
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(list(tok.SPECIAL))
    path = out / "tokenizer.json"
    made.save(str(path))
    return path


def documents(tokenizer: Path, count: int, length: int, seed: int, workers: int) -> Documents:
    """New training documents, made by worker processes."""
    tasks = [(tokenizer, first, min(SHARD, count - first), seed, length) for first in range(0, count, SHARD)]
    if not workers:
        shards = [prepare.fresh_shard(task) for task in tasks]
    else:
        with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
            shards = list(pool.map(prepare.fresh_shard, tasks))
    return Documents.of([shard[i] for shard in shards for i in range(len(shard))])


class Head:
    """The head under training beside the frozen target."""

    def __init__(self, c: TargetConfig, target: Weights, dtype: torch.dtype) -> None:
        self.c, self.w = c, effective(target, target_shapes(c), 0.0, dtype)
        self.prefix = mtp_config(c).prefix

    def losses(self, head: Weights, tokens: Tensor, seg: Tensor, depths: int) -> tuple[Tensor, Tensor, Tensor]:
        """By depth (depths,): the mean cross-entropy against the target's distribution, and two shares of the answer
        tokens: where the head's best token is the target's at this depth, and where it is at all depths up to it."""
        c, w = self.c, self.w
        ids, _, _, _ = split_tokens(tokens, seg)
        with torch.no_grad():
            hidden, _ = target_forward(c, w, ids, seg)
            said = linear(hidden, w["output.weight"])
        names = {name.removeprefix(self.prefix): value for name, value in head.items()}
        losses, right, whole = [], [], []
        chain = torch.ones_like(ids, dtype=torch.bool)
        rows = mtp_forward(c, names, w["token_embd.weight"], ids, seg, hidden, depths)
        for depth, row in enumerate(rows, 1):
            # Row p of depth d is trained to predict what the target predicts at position p + d.
            teacher = F.pad(said, (0, 0, 0, depth))[:, depth:]
            label = F.pad(tokens, (0, depth + 1))[:, depth + 1 :]
            same = F.pad(seg, (0, depth + 1), value=-3)[:, depth + 1 :] == seg
            answer = same & (seg >= 0) & (label >= data.ANSWER)
            weight = (same & (seg >= 0)) * OTHER_WEIGHT + answer * (1 - OTHER_WEIGHT)
            logits = linear(row, w["output.weight"]).float()
            entropy = -(teacher.float().softmax(-1) * logits.log_softmax(-1)).sum(-1)
            losses.append((entropy * weight).sum() / weight.sum().clamp(min=1))
            with torch.no_grad():
                hit = logits.argmax(-1) == teacher.argmax(-1)
                chain = chain & hit
                count = answer.sum().clamp(min=1)
                right.append((hit & answer).sum() / count)
                whole.append((chain & answer).sum() / count)
        return torch.stack(losses), torch.stack(right), torch.stack(whole)


def write_mtp(path: Path, c: TargetConfig, weights: Weights) -> None:
    """Write a file of the head alone: the target's settings with one block more, and that block's tensors."""
    w = gguf.GGUFWriter(path, ARCHITECTURE.name)
    export.write_target_settings(w, replace(c, layers=c.layers + 1), mtp_config(c).name)
    w.add_nextn_predict_layers(1)
    w.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    w.add_quantization_version(2)
    export.write_tensors(w, export_form(weights), mtp_shapes(c))


def main(argv: Sequence[str] | None = None) -> None:
    parser = head_options(__doc__, seconds=300, documents=60_000)
    parser.add_argument("--depth", type=int, default=4, help="tokens in a row that it learns to draft")
    a = parser.parse_args(argv)
    log, device, deadline = begun(a, "mtp-log.jsonl")
    c, tokenizer = target_config(), shipped_tokenizer(a.target, a.out)
    made = documents(tokenizer, a.documents, a.length, a.seed, a.workers)
    held = prepare.encode(tok.load(tokenizer), build.generated(800, "held", a.seed), a.length)
    log(documents=len(made), tokens=len(made.tokens))

    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    target = import_form(export.read_weights(a.target))
    model = Head(c, {name: w.to(device) for name, w in target.items()}, dtype)
    shapes = mtp_shapes(c)
    weights = {n: x.to(device).requires_grad_() for n, x in initialise(shapes, 1, a.seed).items()}
    optimiser, clock = Optimiser(weights), Clock(deadline, device)
    log(parameters=sum(w.numel() for w in weights.values()))
    fresh = Fresh(made, tokenizer, a.length, a.seed, a.workers)
    rows = batches(fresh, batch=a.batch, length=a.length, seed=a.seed, device=device)
    share = torch.tensor([DEEPER**depth for depth in range(a.depth)], device=device)
    step = 0
    while clock.progress < 1 and (step >= 3 or time.monotonic() < deadline):
        epoch, tokens, seg = next(rows)
        head = effective(weights, shapes, 1.0 if clock.progress > 0.6 else 0.0, dtype)
        losses, right, whole = model.losses(head, tokens, seg, a.depth)
        torch.autograd.backward((losses * share).sum())
        optimiser.step(schedule(step, clock.progress, 60))
        step += 1
        clock.stepped(step)
        if step % 50 == 0 or step < 4:
            log(step=step, epoch=epoch, progress=round(clock.progress, 3), loss=rounded(losses), right=rounded(right),
                whole=rounded(whole))  # fmt: skip
    use_compile(False)
    final = quantised({name: w.detach() for name, w in weights.items()}, shapes)
    write_mtp(a.out / "demo-mtp.gguf", c, final)
    packed = data.pack(held, a.length, a.seed)
    sample, head = min(a.batch, len(packed)), effective(final, shapes, 0.0, dtype)
    with torch.no_grad():
        found = model.losses(head, packed.tokens[:sample].to(device), packed.seg[:sample].to(device), a.depth)
    log(held=True, steps=step, loss=rounded(found[0]), right=rounded(found[1]), whole=rounded(found[2]))
    end_now()


if __name__ == "__main__":
    main()
