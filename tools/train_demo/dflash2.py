"""Trains the demo target's DFlash 2 head on one GPU: `python -m tools.train_demo.dflash2 --out FOLDER`.

The target is the shipped one and is not trained. For about a third of the time it answers newly generated prompts. The
head is trained on those answers: its own scores, and the scores that its selector makes of them with the preceding
token. Writes `demo-dflash2.gguf` and `dflash2-log.jsonl`. The learning rate follows the clock, so that training always
ends inside `--time-limit`. Needs torch, numpy, gguf and tokenizers only.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from . import data, export, prepare
from . import tokenizer as tok
from .answers import answer_all, plain_prompts
from .corpus import build
from .data import ANSWER, Documents
from .head_run import begun, end_now, head_options, rounded
from .loop import Clock, batches, schedule
from .mtp import documents, shipped_tokenizer
from .optim import Optimiser
from .pieces import use_compile
from .rounding import effective, quantised
from .selector_head import SelectorHead
from .shapes import TargetConfig, Weights, draft_shapes, import_form, initialise, target_shapes
from .sizes import dflash2_config, target_config
from .target_net import target_forward
from .train import answered_prompts


def main(argv: Sequence[str] | None = None) -> None:
    parser = head_options(__doc__, seconds=330, documents=100_000)
    parser.add_argument("--block", type=int, default=8, help="positions of a block, its anchor included")
    parser.add_argument("--anchors", type=int, default=96, help="draft blocks per row")
    parser.add_argument("--decode-batch", type=int, default=8192)
    parser.add_argument("--checks", type=int, default=160, help="held-out prompts at the end")
    a = parser.parse_args(argv)
    log, device, deadline = begun(a, "dflash2-log.jsonl")
    c, tokenizer = target_config(), shipped_tokenizer(a.target, a.out)
    dc, kind = dflash2_config(c, a.block)
    made = documents(tokenizer, a.documents, a.length, a.seed, a.workers)
    held = prepare.encode(tok.load(tokenizer), build.generated(4 * a.checks, "held", a.seed), a.length)
    log(documents=len(made), tokens=len(made.tokens))

    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    target = {name: w.to(device) for name, w in import_form(export.read_weights(a.target)).items()}
    w = effective(target, target_shapes(c), 0.0, dtype)
    model = SelectorHead(
        dc, lambda ids, seg: target_forward(c, w, ids, seg, dc.captured_layers)[1], w["token_embd.weight"],
        w["output.weight"],
    )  # fmt: skip
    texts = answered_prompts(
        c, w, {"made": made, "known": Documents.of([])}, log, prompts=a.documents, batch=a.decode_batch,
        seed=a.seed, deadline=deadline,
    )  # fmt: skip
    checked = _held(c, w, held, a.checks)

    shapes = draft_shapes(dc, kind)
    weights = {n: x.to(device).requires_grad_() for n, x in initialise(shapes, dc.layers, a.seed).items()}
    optimiser, clock = Optimiser(weights), Clock(deadline, device)
    draws = torch.Generator(device=device).manual_seed(a.seed)
    log(parameters=sum(w.numel() for w in weights.values()), block=dc.block)
    rows = batches(lambda _: texts, batch=a.batch, length=a.length, seed=a.seed, device=device)
    step, running = 0, torch.zeros(2, device=device)
    while clock.progress < 1 and (step >= 3 or time.monotonic() < deadline):
        epoch, tokens, seg = next(rows)
        head = effective(weights, shapes, 1.0 if clock.progress > 0.5 else 0.0, dtype)
        total, losses = model.losses(head, tokens, seg, a.anchors, draws)
        torch.autograd.backward(total)
        optimiser.step(schedule(step, clock.progress, 60))
        running += losses
        step += 1
        clock.stepped(step)
        if step % 100 == 0:
            log(step=step, epoch=epoch, progress=round(clock.progress, 3), loss=rounded(running / 100))
            running.zero_()
    use_compile(False)
    final = quantised({name: w.detach() for name, w in weights.items()}, shapes)
    export.write_draft(
        a.out / "demo-dflash2.gguf", dc, final, None, c.context, kind, name="DFlash demo DFlash 2 drafter"
    )
    packed = data.pack(checked, a.length, a.seed)
    sample, head = min(a.batch, len(packed)), effective(final, shapes, 0.0, dtype)
    tokens, seg = packed.tokens[:sample].to(device), packed.seg[:sample].to(device)
    plain, path = model.accepted(head, tokens, seg, a.anchors, draws)
    with torch.no_grad():
        _, losses = model.losses(head, tokens, seg, a.anchors, draws)
    log(held=True, steps=step, loss=rounded(losses), chain=round(plain, 3), path=round(path, 3))
    end_now()


def _held(c: TargetConfig, w: Weights, held: Documents, count: int) -> Documents:
    """Held-out prompts with the target's own answers."""
    prompts = plain_prompts(held, range(len(held)), 400)[:count]
    answers = answer_all(c, w, prompts, batch=len(prompts), most=128, temperature=0.0, seed=0)
    rows = [
        torch.cat([torch.from_numpy(p), torch.from_numpy(a.astype("int64") | ANSWER)]) for p, a in zip(prompts, answers)
    ]
    return Documents.of([row.numpy().astype("int32") for row in rows])


if __name__ == "__main__":
    main()
