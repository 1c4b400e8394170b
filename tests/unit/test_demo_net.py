"""The trainable twins against independent implementations: Hugging Face, the golden drafters, one token at a time."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf.quants import dequantize, quantize
from safetensors.torch import load_file
from tools.train_demo import delta, export
from tools.train_demo.decode import decode_state, target_step
from tools.train_demo.draft_net import draft_forward
from tools.train_demo.rounding import fake_quant
from tools.train_demo.shapes import (
    DraftConfig,
    TargetConfig,
    Weights,
    default_captured_layers,
    draft_shapes,
    initialise,
    target_shapes,
)
from tools.train_demo.target_net import target_forward

from support.golden import golden, goldens

DRAFTERS = [folder for folder in goldens("tiny-dflash*") if folder.is_dir()]
SMALL = TargetConfig(vocab=320, hidden=64, layers=4, ffn=96, heads=2, kv_heads=1, v_heads=6)


def small_target(seed: int = 0) -> Weights:
    """Random weights with norms other than one, so that a missing norm would be noticed."""
    weights = initialise(target_shapes(SMALL), SMALL.layers, seed)
    rng = torch.Generator().manual_seed(seed)
    return {
        n: w + 0.2 * torch.randn(w.shape, generator=rng) if n.endswith("norm.weight") else w for n, w in weights.items()
    }


def grouped(x: torch.Tensor, size: int) -> torch.Tensor:
    """Rows of V heads from tiled order to the order of Hugging Face."""
    repeat = SMALL.v_heads // SMALL.k_heads
    return x.view(repeat, SMALL.k_heads, size, -1).transpose(0, 1).reshape(SMALL.v_heads * size, -1)


def hugging_face(weights: Weights) -> torch.nn.Module:
    """A Qwen3_5ForCausalLM that holds `weights`."""
    modeling = pytest.importorskip("transformers.models.qwen3_5.modeling_qwen3_5")
    c, w = SMALL, weights
    config = modeling.Qwen3_5TextConfig(
        vocab_size=c.vocab, hidden_size=c.hidden, intermediate_size=c.ffn, num_hidden_layers=c.layers,
        num_attention_heads=c.heads, num_key_value_heads=c.kv_heads, head_dim=c.head_dim,
        linear_num_key_heads=c.k_heads, linear_num_value_heads=c.v_heads, linear_key_head_dim=c.state,
        linear_value_head_dim=c.state, linear_conv_kernel_dim=c.conv, tie_word_embeddings=False,
        layer_types=["full_attention" if c.is_full(i) else "linear_attention" for i in range(c.layers)],
        rope_parameters={"rope_type": "default", "rope_theta": c.rope_theta, "mrope_section": [11, 11, 10],
                         "partial_rotary_factor": c.rope_dim / c.head_dim, "mrope_interleaved": True},
    )  # fmt: skip
    model = modeling.Qwen3_5ForCausalLM(config).eval().float()
    state = {
        "model.embed_tokens.weight": w["token_embd.weight"],
        "model.norm.weight": w["output_norm.weight"] - 1,
        "lm_head.weight": w["output.weight"],
    }
    keys = 2 * c.k_heads * c.state
    for i in range(c.layers):
        b, h = f"blk.{i}.", f"model.layers.{i}."
        state[h + "input_layernorm.weight"] = w[b + "attn_norm.weight"] - 1
        state[h + "post_attention_layernorm.weight"] = w[b + "post_attention_norm.weight"] - 1
        for x in ("gate", "up", "down"):
            state[h + f"mlp.{x}_proj.weight"] = w[b + f"ffn_{x}.weight"]
        if c.is_full(i):
            for x, y in (("q", "attn_q"), ("k", "attn_k"), ("v", "attn_v"), ("o", "attn_output")):
                state[h + f"self_attn.{x}_proj.weight"] = w[b + y + ".weight"]
            for x in "qk":
                state[h + f"self_attn.{x}_norm.weight"] = w[b + f"attn_{x}_norm.weight"] - 1
            continue
        g = h + "linear_attn."
        qkv, conv = w[b + "attn_qkv.weight"], w[b + "ssm_conv1d.weight"]
        state[g + "in_proj_qkv.weight"] = torch.cat([qkv[:keys], grouped(qkv[keys:], c.state)])
        state[g + "in_proj_z.weight"] = grouped(w[b + "attn_gate.weight"], c.state)
        state[g + "in_proj_b.weight"] = grouped(w[b + "ssm_beta.weight"], 1)
        state[g + "in_proj_a.weight"] = grouped(w[b + "ssm_alpha.weight"], 1)
        state[g + "conv1d.weight"] = torch.cat([conv[:keys], grouped(conv[keys:], c.state)])[:, None]
        state[g + "A_log"] = grouped(w[b + "ssm_a"][:, None], 1).squeeze(-1)  # the trained form is the logarithm
        state[g + "dt_bias"] = grouped(w[b + "ssm_dt.bias"][:, None], 1).squeeze(-1)
        state[g + "norm.weight"] = w[b + "ssm_norm.weight"]
        state[g + "out_proj.weight"] = grouped(w[b + "ssm_out.weight"].T.contiguous(), c.state).T.contiguous()
    model.load_state_dict(state)
    return model


def logits(weights: Weights, ids: torch.Tensor, seg: torch.Tensor | None = None) -> torch.Tensor:
    hidden, _ = target_forward(SMALL, weights, ids, torch.zeros_like(ids) if seg is None else seg)
    return hidden @ weights["output.weight"].T


@torch.no_grad()
def test_the_target_equals_hugging_face() -> None:
    weights = small_target()
    ids = torch.randint(0, SMALL.vocab, (2, 150), generator=torch.Generator().manual_seed(1))
    reference = hugging_face(weights)(ids, output_hidden_states=True)
    torch.testing.assert_close(logits(weights, ids), reference.logits, atol=1e-4, rtol=0)
    _, captured_layers = target_forward(SMALL, weights, ids, torch.zeros_like(ids), (0, 2))
    expected = torch.cat([reference.hidden_states[1], reference.hidden_states[3]], dim=-1)
    torch.testing.assert_close(captured_layers, expected, atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_documents_in_one_row_do_not_see_each_other() -> None:
    weights = small_target()
    ids = torch.randint(0, SMALL.vocab, (1, 190), generator=torch.Generator().manual_seed(2))
    seg = torch.tensor([[0] * 70 + [1] * 120])
    apart = torch.cat([logits(weights, ids[:, :70]), logits(weights, ids[:, 70:])], dim=1)
    torch.testing.assert_close(logits(weights, ids, seg), apart, atol=1e-4, rtol=0)


@torch.no_grad()
def test_one_token_at_a_time_equals_the_whole_text() -> None:
    weights = small_target()
    ids = torch.randint(0, SMALL.vocab, (2, 70), generator=torch.Generator().manual_seed(3))
    state = decode_state(SMALL, 2, 70, torch.device("cpu"), torch.float32)
    stepped = torch.stack([target_step(SMALL, weights, state, ids[:, t]) for t in range(70)], dim=1)
    torch.testing.assert_close(stepped, logits(weights, ids), atol=1e-4, rtol=0)


def test_gradients_of_the_sequential_parts() -> None:
    rng = torch.Generator().manual_seed(4)
    u, w, tail = (torch.randn(3, 2, 4, 5, generator=rng, dtype=torch.float64).requires_grad_() for _ in range(3))
    decay = torch.rand(3, 2, 1, 1, generator=rng, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(delta._Scan.apply, (u, w, tail, decay), fast_mode=True)
    a = torch.randn(2, 32, 32, generator=rng, dtype=torch.float64).mul(0.1).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: delta._Inverse.apply(x.tril(-1)), (a,), fast_mode=True)
    inverse = delta.unit_lower_inverse(a.detach().tril(-1))
    torch.testing.assert_close(inverse, (torch.eye(32) + a.detach().tril(-1)).inverse())


def drafter_name(name: str) -> str:
    """The GGUF name of a tensor of a z-lab checkpoint."""
    swaps = {
        "hidden_norm": "enc.output_norm", "layers": "blk", "input_layernorm": "attn_norm", "self_attn.": "", "mlp.": "",
        "post_attention_layernorm": "ffn_norm", "q_proj": "attn_q", "k_proj": "attn_k", "v_proj": "attn_v",
        "o_proj": "attn_output", "q_norm": "attn_q_norm", "k_norm": "attn_k_norm", "gate_proj": "ffn_gate",
        "up_proj": "ffn_up", "down_proj": "ffn_down",
    }  # fmt: skip
    if name == "norm.weight":
        return "output_norm.weight"
    for old, new in swaps.items():
        name = name.replace(old, new)
    return name


@pytest.mark.parametrize("folder", DRAFTERS, ids=lambda folder: folder.name)
@torch.no_grad()
def test_the_drafter_equals_the_golden_logits(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    kinds = config.get("layer_types") or ["full_attention"] * config["num_hidden_layers"]
    c = DraftConfig(
        hidden=config["hidden_size"], layers=config["num_hidden_layers"], ffn=config["intermediate_size"],
        heads=config["num_attention_heads"], kv_heads=config["num_key_value_heads"],
        captured_layers=tuple(config["dflash_config"]["target_layer_ids"]), window=config.get("sliding_window") or 0,
        sliding=tuple(kind == "sliding_attention" for kind in kinds),
    )  # fmt: skip
    weights = {drafter_name(n): w.float() for n, w in load_file(folder / "model.safetensors").items()}
    target = export.read_weights(golden("tiny-F16.gguf"))
    assert {n: tuple(w.shape) for n, w in weights.items()} == {n: s for n, (s, _) in draft_shapes(c).items()}
    z = np.load(folder.with_suffix(".npz"))
    features = torch.from_numpy(z["features"]).float()[None]
    zero = torch.zeros(1, 1, dtype=torch.long)
    noise = torch.nn.functional.embedding(torch.from_numpy(z["block"]).long(), target["token_embd.weight"])[None, None]
    seg = torch.zeros(features.shape[:2], dtype=torch.long)
    out = draft_forward(c, weights, features, seg, zero + features.shape[1], zero, noise)
    found = out[0, 0, 1:] @ target["output.weight"].T
    torch.testing.assert_close(found, torch.from_numpy(z["draft_logits"]), atol=1e-4, rtol=0)


@pytest.mark.parametrize("kind", ["Q4_0", "Q5_0", "Q8_0"])
def test_rounding_in_training_is_the_rounding_of_the_file(kind: str) -> None:
    x = torch.randn(40, 96, generator=torch.Generator().manual_seed(5))
    x[0, :32] = 0
    quant = gguf.GGMLQuantizationType[kind]
    stored = dequantize(quantize(x.numpy(), quant), quant)
    found = fake_quant(x.reshape(-1, 32), kind).view(x.shape)
    assert np.array_equal(found.numpy(), stored)
    assert torch.equal(fake_quant(found.reshape(-1, 32), kind).view(x.shape), found)


def test_default_captured_layers_follow_the_published_rule() -> None:
    assert default_captured_layers(64, 5) == (1, 16, 31, 46, 61)
    assert default_captured_layers(8, 5) == (1, 2, 3, 4, 5)
    assert default_captured_layers(8, 1) == (4,)
