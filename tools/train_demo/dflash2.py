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
import torch.nn.functional as F
from torch import Tensor

from . import data, export, prepare
from . import tokenizer as tok
from .answers import answer_all, plain_prompts
from .corpus import build
from .data import ANSWER, Documents
from .draft_net import draft_forward, selected_losses
from .head_run import begun, end_now, head_options, rounded
from .loop import Clock, batches, schedule, split_tokens
from .mtp import documents, shipped_tokenizer
from .optim import Optimiser
from .pieces import linear, use_compile
from .rounding import effective, quantised
from .shapes import DraftConfig, TargetConfig, Weights, draft_shapes, import_form, initialise, target_shapes
from .sizes import dflash2_config, target_config
from .target_net import target_forward
from .train import answered_prompts, pick_blocks

GAMMA = 7.0  # position i of a block has weight exp(-i / GAMMA): a draft is of use only if all before it were accepted


class Head:
    """The head under training beside the frozen target."""

    def __init__(self, c: TargetConfig, dc: DraftConfig, target: Weights, dtype: torch.dtype) -> None:
        self.c, self.dc, self.w = c, dc, effective(target, target_shapes(c), 0.0, dtype)

    def rows(
        self, head: Weights, tokens: Tensor, seg: Tensor, count: int, draws: torch.Generator
    ) -> tuple[Tensor, ...]:
        """For `count` blocks of each row: hidden rows (B, count, block - 1, hidden), the true tokens (B, count, block),
        and which of the drafted ones (B, count, block - 1) lie in the anchor's document."""
        c, dc, w = self.c, self.dc, self.w
        with torch.no_grad():
            _, features = target_forward(c, w, split_tokens(tokens, seg)[0], seg, dc.captured_layers)
            anchor, anchor_seg, block, inside = pick_blocks(tokens, seg, count, dc.block, draws)
            asks = torch.full_like(block, dc.mask_id)
            asks[..., 0] = block[..., 0]
            noise = F.embedding(asks, w["token_embd.weight"])
        hidden = draft_forward(dc, head, features, seg, anchor, anchor_seg, noise)[:, :, 1:]
        return hidden, block, inside[..., 1:]

    def losses(self, head: Weights, tokens: Tensor, seg: Tensor, count: int, draws: torch.Generator) -> Tensor:
        """Weighted mean cross-entropies: of the plain scores, and of the selector's scores after the true token."""
        hidden, block, inside = self.rows(head, tokens, seg, count, draws)
        decay = torch.exp(-torch.arange(self.dc.block - 1, device=hidden.device) / GAMMA)
        weight = inside * decay
        plain, scored = selected_losses(
            hidden.reshape(-1, self.c.hidden), self.w["output.weight"], block[..., :-1].reshape(-1),
            block[..., 1:].reshape(-1), head["selector_hidden.weight"], head["selector_predecessor.weight"],
            head["selector_successor.weight"],
        )  # fmt: skip
        return torch.stack([(one.view(weight.shape) * weight).sum() / weight.sum() for one in (plain, scored)])

    @torch.no_grad()
    def accepted(self, head: Weights, tokens: Tensor, seg: Tensor, count: int, draws: torch.Generator) -> list[float]:
        """Mean number of leading tokens that are right: of the best plain scores, and of the selector's greedy path."""
        hidden, block, inside = self.rows(head, tokens, seg, count, draws)
        logits = linear(hidden, self.w["output.weight"]).float()
        best = logits.topk(self.dc.selector.top_k if self.dc.selector else 1, dim=-1)
        gates = linear(hidden, head["selector_hidden.weight"])
        path, before = [], block[..., 0]
        for depth in range(self.dc.block - 1):
            gate = F.embedding(before, head["selector_predecessor.weight"]) * gates[:, :, depth]
            pairs = F.embedding(best.indices[:, :, depth], head["selector_successor.weight"]) @ gate[..., None]
            scores = best.values[:, :, depth] + pairs[..., 0].float()
            before = best.indices[:, :, depth].gather(-1, scores.argmax(-1, keepdim=True))[..., 0]
            path.append(before)
        whole = inside.all(-1)
        right = [(one == block[..., 1:]).cumprod(-1).sum(-1) for one in (logits.argmax(-1), torch.stack(path, -1))]
        return [float((one * whole).sum() / whole.sum().clamp(min=1)) for one in right]


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
    model = Head(c, dc, target, dtype)
    texts = answered_prompts(
        c, model.w, {"made": made, "known": Documents.of([])}, log, prompts=a.documents, batch=a.decode_batch,
        seed=a.seed, deadline=deadline,
    )  # fmt: skip
    checked = _held(c, model.w, held, a.checks)

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
        losses = model.losses(head, tokens, seg, a.anchors, draws)
        torch.autograd.backward(losses.sum())
        optimiser.step(schedule(step, clock.progress, 60))
        running += losses.detach()
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
        losses = model.losses(head, tokens, seg, a.anchors, draws)
    log(held=True, steps=step, loss=rounded(losses), chain=round(plain, 3), path=round(path, 3))
    end_now()


def _held(c: TargetConfig, w: Weights, held: Documents, count: int) -> Documents:
    """Held-out prompts with the target's own answers."""
    prompts = plain_prompts(held, range(len(held)), 400)[:count]
    answers = answer_all(c, w, prompts, batch=len(prompts), most=128, temperature=0.0, seed=0)
    rows = [
        torch.cat([torch.from_numpy(p), torch.from_numpy(a.astype("int64") | ANSWER)]) for p, a in zip(prompts, answers)
    ]
    return Documents.of([row.numpy().astype("uint16") for row in rows])


if __name__ == "__main__":
    main()
