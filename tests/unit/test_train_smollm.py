"""The recipe of SmolLM2's drafter, on small sizes."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tools.train_demo.data import ANSWER as OWN
from tools.train_demo.vocabulary_loss import selected_losses
from tools.train_smollm import evaluate, measure, state
from tools.train_smollm.llama import (
    LlamaCache,
    LlamaConfig,
    halves,
    llama_forward,
    llama_step,
    prepared,
    random_weights,
)
from tools.train_smollm.prompts import Encoder
from tools.train_smollm.scripts import ANSWER, Scripts
from tools.train_smollm.writing import Manner, Writer

from support import demo_pair
from support.real_models import smollm2

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM

SMALL = LlamaConfig(vocab=96, hidden=32, layers=2, ffn=48, heads=4, kv_heads=2, head_dim=8, context=64)
CPU = torch.device("cpu")


def weights(seed: int = 0) -> dict[str, torch.Tensor]:
    return prepared(SMALL, random_weights(SMALL, seed), torch.float32, CPU)


def theirs(c: LlamaConfig, seed: int = 0) -> LlamaForCausalLM:
    """The same weights in Hugging Face's model, whose q and k have halves where the file has neighbours."""
    from transformers import LlamaConfig as TheirConfig
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM(
        TheirConfig(
            vocab_size=c.vocab, hidden_size=c.hidden, num_hidden_layers=c.layers, intermediate_size=c.ffn,
            num_attention_heads=c.heads, num_key_value_heads=c.kv_heads, rms_norm_eps=c.eps, tie_word_embeddings=True,
            rope_parameters={"rope_type": "default", "rope_theta": c.rope_theta},
        )
    )  # fmt: skip
    w = random_weights(c, seed)
    found = {"model.embed_tokens.weight": w["token_embd.weight"], "model.norm.weight": w["output_norm.weight"]}
    names = {
        "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj", "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
    }  # fmt: skip
    for layer in range(c.layers):
        for ours, their in names.items():
            one = w[f"blk.{layer}.{ours}.weight"]
            if ours in ("attn_q", "attn_k"):
                one = halves(one, c.heads if ours == "attn_q" else c.kv_heads)
            found[f"model.layers.{layer}.{their}.weight"] = one
    model.load_state_dict(found, strict=False)
    return model.eval()


@torch.no_grad()
def test_the_target_is_hugging_faces() -> None:
    ids = torch.randint(0, SMALL.vocab, (2, 24), generator=torch.Generator().manual_seed(1))
    hidden, _ = llama_forward(SMALL, weights(), ids, torch.zeros_like(ids))
    expected = theirs(SMALL)(ids, output_hidden_states=True)
    torch.testing.assert_close(hidden, expected.hidden_states[-1], atol=1e-4, rtol=1e-4)
    _, features = llama_forward(SMALL, weights(), ids, torch.zeros_like(ids), (0,))
    torch.testing.assert_close(features, expected.hidden_states[1], atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_documents_of_a_row_do_not_see_each_other() -> None:
    ids = torch.randint(0, SMALL.vocab, (1, 24), generator=torch.Generator().manual_seed(2))
    seg = torch.tensor([[0] * 10 + [1] * 14])
    hidden, _ = llama_forward(SMALL, weights(), ids, seg)
    alone, _ = llama_forward(SMALL, weights(), ids[:, 10:], seg[:, 10:])
    torch.testing.assert_close(hidden[:, 10:], alone, atol=1e-4, rtol=1e-4)  # RoPE is relative


@torch.no_grad()
def test_token_by_token_is_the_whole_row() -> None:
    ids = torch.randint(0, SMALL.vocab, (3, 20), generator=torch.Generator().manual_seed(3))
    w, cache = weights(), LlamaCache.empty(SMALL, 3, 20, torch.float32, CPU)
    expected, _ = llama_forward(SMALL, w, ids, torch.zeros_like(ids))
    for at in range(20):
        found = llama_step(SMALL, w, cache, ids[:, at], torch.zeros(3, dtype=torch.int32), torch.tensor([at]))
        torch.testing.assert_close(found, expected[:, at], atol=1e-4, rtol=1e-4)


def test_a_greedy_answer_is_the_best_token_of_each_place() -> None:
    w, prompts = weights(5), [[3, 40, 41, 42], [3, 50, 51]]
    rows = [(prompts[0], ANSWER)] * 2 + [(ids, ANSWER) for ids in prompts]
    manner = Manner(again=0.0, longest_answer=8)
    writer = Writer(SMALL, w, Scripts.of(rows, [2]), manner, batch=2, length=12, seed=0)
    writer.begin(torch.tensor([2, 3]), heat=0.0)
    tokens, seg = writer.fill()
    ids = (tokens & (OWN - 1)).long()
    hidden, _ = llama_forward(SMALL, w, ids, seg)
    best = (hidden @ w["token_embd.weight"].T).argmax(-1)
    for row, prompt in enumerate(prompts):
        assert ids[row, : len(prompt)].tolist() == prompt
        own = (tokens[row] >= OWN).nonzero()[:, 0].tolist()
        first = [at for at in own if seg[row, at] == 0]
        assert first[0] == len(prompt)
        assert [int(ids[row, at]) for at in first] == [int(best[row, at - 1]) for at in first]


def test_the_losses_are_cross_entropies_with_their_gradients() -> None:
    rng = torch.Generator().manual_seed(4)
    hidden = torch.randn(9, 16, generator=rng, requires_grad=True)
    head, tables = torch.randn(40, 16, generator=rng), [torch.randn(n, k, generator=rng) for n, k in ((8, 16), (40, 8))]
    successor = torch.randn(40, 8, generator=rng)
    leaves = [hidden, *(one.requires_grad_() for one in (*tables, successor))]
    before, labels = torch.randint(0, 40, (2, 9), generator=rng)
    weight = torch.rand(9, generator=rng)
    total, parts = selected_losses(hidden, head, before, labels, weight, tables[0], tables[1], successor)
    found = torch.autograd.grad(total, leaves)
    plain = hidden @ head.T
    scored = plain + (F.embedding(before, tables[1]) * (hidden @ tables[0].T)) @ successor.T
    losses = [(weight * F.cross_entropy(one, labels, reduction="none")).sum() for one in (plain, scored)]
    torch.testing.assert_close(parts, torch.stack(losses).detach(), atol=1e-4, rtol=1e-4)
    for ours, expected in zip(found, torch.autograd.grad(sum(losses), leaves), strict=True):
        torch.testing.assert_close(ours, expected, atol=1e-4, rtol=1e-4)


def test_a_state_comes_back_from_its_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "MOST", 4000)
    drawn = torch.Generator().manual_seed(1)
    kept = {f"w{n}": torch.randn(20, 40, generator=drawn).bfloat16().float() for n in range(5)}
    state.save(tmp_path, kept)
    assert len(list(tmp_path.glob("drafter-*.safetensors"))) == 3
    again = state.load(tmp_path)
    assert again.keys() == kept.keys()
    assert all(torch.equal(again[name], kept[name]) for name in kept)


def test_steps_over_an_answer() -> None:
    right = np.array([[True, True, False], [False, True, True], [True, True, True]])
    assert evaluate.leading(right).tolist() == [2, 0, 3]
    assert evaluate.walked([2, 9, 9, 0, 1, 9]) == [(2, 3), (0, 1), (1, 2)]
    assert evaluate.walked([7, 9, 9]) == [(7, 3)], "an answer that ends within its block"


def test_its_tokens_are_the_decoders() -> None:
    path = smollm2()
    encode = Encoder(path)
    from dflash_core import load_target
    from dflash_core.messages import Message
    from dflash_core.prompting import build_prompt
    from dflash_core.text.prompt import Prompting

    target = load_target(path, device="cpu", packed=True)
    for text in ("What is 12 + 34?", "def f(x):\n    return x  # 7", "Tom's  naïve\tplan"):
        assert encode.prompt(text) == list(
            build_prompt(Prompting(target.tokenizer, target.template, False), [Message("user", text)]).ids
        )


def test_answers_are_counted_and_compared() -> None:
    a = argparse.Namespace(drafting=["plain", "chain 7", "tree 12"], tokens=12, plain=None, top_p=0.9)
    found = measure.measured(dict.fromkeys(a.drafting, demo_pair.new_engine()), ["hi", "What is p_min?"], 0.0, a)
    assert found["plain"].tokens == found["plain"].steps == found["chain 7"].tokens
    assert found["chain 7"].steps < found["plain"].steps
    for drafting in ("chain 7", "tree 12"):
        assert (found[drafting].equal, found[drafting].compared) == (2, 2)
    row = found["tree 12"].row()
    assert row["tokens_a_step"] == round(sum(found["tree 12"].tokens) / sum(found["tree 12"].steps), 3)
