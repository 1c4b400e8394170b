"""Folders of Hugging Face models against Hugging Face: random models, saved as bf16."""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from dflash_core import load_draft, load_target
from dflash_core.arch.folders.opening import open_model
from dflash_core.config import read_target, unusual
from dflash_core.errors import FormatError
from support import random_family, random_model
from support.folders import PRE, WIDE, changed, in_shards, quantised, saved, wide, with_fused_experts
from support.grids import full
from support.mtp_logits import mtp_logits
from support.quantised import LAYOUTS, mxfp4
from support.random_files import drawn, head, trunk
from support.random_model import VOCAB
from support.random_rope import Scaled

NAMES = ("qwen35", *random_family.MODELS)


def made(name: str, seed: int, **more: Any) -> Any:
    of = drawn(seed, **more)
    if name == "qwen35":
        return random_model.hugging_face(of.shape, seed)
    return random_family.hugging_face(name, of, seed)


def logits(model: Any, ids: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        found: np.ndarray = model(torch.tensor(ids[None]), use_cache=False).logits[0].numpy()
    return found


def check(folder: Path, model: Any, seed: int) -> None:
    """The folder's logits are those of `model`, up to rounding and a near tie of a router."""
    target = load_target(folder)
    ids = np.random.default_rng(seed).integers(0, VOCAB, 60)
    expected, ours = logits(model, ids), target.logits(ids)
    assert expected.std() > 0.1, "a model that says nothing would pass any test"
    rows = random_family.first_close(target, ids)
    assert rows > 10
    assert np.abs(ours - expected)[:rows].max() < 2e-3


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", [0, 1, *map(full, range(2, 8))])
def test_random_models(name: str, seed: int, tmp_path: Path) -> None:
    model = saved(made(name, seed), tmp_path, PRE.get(name, "qwen2"))
    check(tmp_path if seed % 2 else in_shards(tmp_path), model, seed)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("turn", range(3))
def test_quantised_models(name: str, turn: int, tmp_path: Path) -> None:
    """Layouts mixed per matrix; a third of them in each turn."""
    model = saved(wide(name, turn), tmp_path, PRE.get(name, "qwen2"))
    layouts = [layout for layout in LAYOUTS if layout != "gptq-v2"][turn::3]
    assert len(quantised(tmp_path, model, layouts, turn)) > 2
    check(tmp_path, model, turn)


def test_zeros_as_they_are(tmp_path: Path) -> None:
    """The second version of GPTQ, which the config names."""
    model = saved(wide("qwen3", 0), tmp_path)
    quantised(tmp_path, model, ["gptq-v2"], 0)
    method = {"quant_method": "gptq", "bits": 4, "checkpoint_format": "gptq_v2"}
    check(changed(tmp_path, config=lambda found: found | {"quantization_config": method}), model, 0)


def test_experts_of_a_layer_as_one_tensor(tmp_path: Path) -> None:
    model = saved(wide("qwen35moe", 1), tmp_path, "qwen35")
    check(changed(tmp_path, with_fused_experts), model, 1)


def test_a_language_model_within_another(tmp_path: Path) -> None:
    """As published: the prefix of a model of images, its tower, and nested settings."""
    model = saved(wide("qwen35", 1), tmp_path, "qwen35")

    def renamed(found: dict[str, Tensor]) -> dict[str, Tensor]:
        kept = {name.replace("model.", "model.language_model.", 1): one for name, one in found.items()}
        attention = "model.language_model.layers.2.self_attn."
        unread = {attention + name: torch.ones(1) for name in ("k_proj.k_scale", "attn.kv_scale")}
        return kept | unread | {"model.visual.patch_embed.proj.weight": torch.zeros(4, 3, 2, 2, 2)}

    def nested(found: dict[str, Any]) -> dict[str, Any]:
        return {"model_type": "qwen3_5", "text_config": found, "vision_config": {"depth": 2}, "image_token_id": 3}

    check(changed(tmp_path, renamed, nested), model, 1)


@pytest.mark.parametrize(
    ("name", "kind", "more"),
    [
        ("qwen3", "qwen3_vl", {}),
        ("qwen2", "qwen2_5_vl", {}),
        ("mistral3", "mistral3", {"spatial_merge_size": 2, "projector_hidden_act": "gelu"}),
    ],
)
def test_models_for_images_are_read_for_text(name: str, kind: str, more: dict[str, Any], tmp_path: Path) -> None:
    model = saved(wide(name, 1), tmp_path)

    def renamed(found: dict[str, Tensor]) -> dict[str, Tensor]:
        kept = {key.replace("model.", "model.language_model.", 1): one for key, one in found.items()}
        return kept | {"model.visual.deepstack_merger_list.0.norm.weight": torch.zeros(4)}

    def nested(found: dict[str, Any]) -> dict[str, Any]:
        rope = found["rope_parameters"]
        if kind == "qwen2_5_vl":  # flat, and as older configs have it
            return {key: value for key, value in found.items() if key != "rope_parameters"} | {
                "model_type": kind, "rope_theta": rope["rope_theta"], "vision_config": {},
                "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
            }  # fmt: skip
        return {"model_type": kind, "text_config": found, "vision_config": {}, "image_token_id": 3} | more

    check(changed(tmp_path, renamed, nested), model, 1)


@pytest.mark.parametrize("layout", ["", "gptq-64-zeros"])
def test_rows_of_a_part_of_a_module(layout: str, tmp_path: Path) -> None:
    """Some rows at a time, as large matrices are read."""
    model = saved(wide("phi3", 1), tmp_path)
    if layout:
        quantised(tmp_path, model, [layout], 1)
    file = read_target(open_model(tmp_path))[0].settled()
    fused = model.state_dict()["model.layers.1.mlp.gate_up_proj.weight"].numpy()
    width = len(fused) // 2
    for name, rows in (("ffn_gate", fused[:width]), ("ffn_up", fused[width:])):
        for some in (slice(0, 3), slice(40, 77), slice(width - 1, width)):
            assert np.array_equal(file.float32(f"blk.1.{name}.weight", some), rows[some])


def test_longrope_of_phi(tmp_path: Path) -> None:
    model = saved(random_family.hugging_face("phi3", replace(drawn(1), shape=WIDE), 1, Scaled.random(1)), tmp_path)
    check(tmp_path, model, 1)

    def shorter(found: dict[str, Any]) -> dict[str, Any]:
        rope = found["rope_parameters"]
        older = {"rope_scaling": {**rope, "long_factor": rope["long_factor"][1:], "type": "longrope"}}
        return {key: value for key, value in found.items() if key != "rope_parameters"} | older

    with pytest.raises(FormatError, match=r"config.json: long_factor is \[.*, expected \d+ numbers; download it again"):
        open_model(changed(tmp_path, config=shorter))


@pytest.mark.parametrize("name", ["activation_scale", "input_scale", "input_scale_ub"])
def test_scales_of_activations_are_not_used(name: str, tmp_path: Path) -> None:
    model = saved(wide("mistral3", 1), tmp_path)
    quantised(tmp_path, model, ["fp8-tensor"], 1)

    def with_scales(found: dict[str, Tensor]) -> dict[str, Tensor]:
        modules = [key.removesuffix(".weight_scale") for key in found if key.endswith(".weight_scale")]
        assert modules
        kept = {key.replace(".weight_scale", ".weight_scale_inv"): one for key, one in found.items()}
        return kept | {f"{module}.{name}": torch.ones(()) for module in modules}

    check(changed(tmp_path, with_scales), model, 1)


def test_settings_of_generation_change_nothing(tmp_path: Path) -> None:
    """Configs within others list all that their class knows."""
    more: dict[str, Any] = {
        "temperature": 1.0, "top_k": 50, "top_p": 1.0, "typical_p": 1.0, "num_beams": 1, "num_beam_groups": 1,
        "num_return_sequences": 1, "do_sample": False, "repetition_penalty": 1.0, "length_penalty": 1.0,
        "no_repeat_ngram_size": 0, "max_length": 20, "pruned_heads": {}, "bad_words_ids": None, "return_dict": True,
    }  # fmt: skip
    model = saved(wide("qwen3", 1), tmp_path)
    nested = {"model_type": "qwen3_vl", "vision_config": {}}
    check(changed(tmp_path, config=lambda found: nested | {"text_config": found | more}), model, 1)


def of_class(module: str, name: str, **sizes: Any) -> Any:
    """A small model of a class of Hugging Face's, random in float32."""
    models = importlib.import_module(f"transformers.models.{module}.modeling_{module}")
    torch.manual_seed(0)
    config = getattr(models, f"{name}Config")(**sizes)
    model = getattr(models, f"{name.removesuffix('Text')}ForCausalLM")(config).eval().float()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.08 * torch.randn_like(parameter))
    return model


SIZES: dict[str, Any] = {
    "vocab_size": VOCAB, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 512,
}  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 128}
GEMMA = {
    "full_attention": {"rope_type": "default", "rope_theta": 1e6},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}
OTHERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("llama", "Llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}),
    "llama-3": ("llama", "Llama", {"rope_parameters": LLAMA3, "head_dim": 32, "tie_word_embeddings": True}),
    "llama-biases": ("llama", "Llama", {"attention_bias": True, "rope_parameters": LLAMA3}),
    "mistral": ("mistral", "Mistral", {"sliding_window": None, "rope_parameters": YARN}),
    "gemma3": (
        "gemma3", "Gemma3Text",
        {"num_hidden_layers": 7, "sliding_window": 16, "head_dim": 32, "query_pre_attn_scalar": 32,
         "rope_parameters": GEMMA, "sliding_window_pattern": 3},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_other_architectures(name: str, tmp_path: Path) -> None:
    module, of, more = OTHERS[name]
    check(tmp_path, saved(of_class(module, of, **SIZES | more), tmp_path), 0)


GEMMA4: dict[str, Any] = SIZES | {
    "num_hidden_layers": 7, "head_dim": 32, "global_head_dim": 64, "sliding_window": 16, "num_attention_heads": 4,
    "final_logit_softcapping": 30.0, "hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": VOCAB,
    "layer_types": [*["sliding_attention"] * 2, "full_attention"] * 2 + ["full_attention"],
}  # fmt: skip
EXPERTS = {"enable_moe_block": True, "num_experts": 5, "top_k_experts": 2, "moe_intermediate_size": 32}
GEMMAS: dict[str, dict[str, Any]] = {
    "31B": {"attention_k_eq_v": True, "num_global_key_value_heads": 1},
    "E2B": {
        "hidden_size_per_layer_input": 16, "num_kv_shared_layers": 3, "use_double_wide_mlp": True,
        "num_key_value_heads": 1,
    },
    "26B-A4B": {**EXPERTS, "attention_k_eq_v": True, "num_global_key_value_heads": 1},
}  # fmt: skip


def softened(model: Any) -> Any:
    """Scores of Gemma 4 are not scaled: without this one key would take all of a query."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("q_norm.weight", "k_norm.weight")):
                parameter.mul_(0.4)
        for name, buffer in model.named_buffers():
            if name.endswith("layer_scalar"):
                buffer.copy_((0.8 + 0.4 * torch.rand(1)).to(torch.bfloat16))
    return model


def gemma4(name: str, **more: Any) -> Any:
    return softened(of_class("gemma4", "Gemma4Text", **GEMMA4 | GEMMAS[name] | more))


@pytest.mark.parametrize("published", [False, True])
@pytest.mark.parametrize("name", GEMMAS)
def test_gemma4(name: str, published: bool, tmp_path: Path) -> None:
    """As the class of today saves it, and as published: within a model of images, settings of full layers by name."""
    model = saved(gemma4(name), tmp_path)
    full = ("global_head_dim", "num_global_key_value_heads")

    def nested(found: dict[str, Any]) -> dict[str, Any]:
        text = {key: value for key, value in found.items() if key != "per_layer_config"}
        text |= {key: GEMMAS[name].get(key, GEMMA4.get(key)) for key in full}
        return {"model_type": "gemma4", "text_config": text, "vision_config": {}, "audio_token_id": 3}

    def within(found: dict[str, Tensor]) -> dict[str, Tensor]:
        towers = ("vision_tower.x.weight", "embed_vision.p.weight", "audio_tower.y.weight", "embed_audio.p.weight")
        unused = {"model.language_model.layers.6.self_attn.k_proj.weight": torch.ones(64, 64)} if name == "E2B" else {}
        renamed = {key.replace("model.", "model.language_model.", 1): one for key, one in found.items()}
        return renamed | unused | {f"model.{key}": torch.ones(3, 3) for key in towers}

    if published:
        changed(tmp_path, within, nested)
    check(tmp_path, model, 0)
    notes = unusual(*read_target(open_model(tmp_path)))
    assert ("4 tensors for images and sound are not used: the model reads only text" in notes) is published


def test_gemma4_unified(tmp_path: Path) -> None:
    """12B, a class of its own without per-layer inputs and experts."""
    sizes = {key: value for key, value in GEMMA4.items() if "per_layer_input" not in key}
    check(tmp_path, saved(softened(of_class("gemma4_unified", "Gemma4UnifiedText", **sizes)), tmp_path), 0)


LAGUNA: dict[str, Any] = SIZES | {
    "num_hidden_layers": 4, "head_dim": 32, "num_attention_heads_per_layer": [4, 6, 6, 4], "sliding_window": 16,
    "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
    "num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 64,
    "moe_routed_scaling_factor": 2.5, "mlp_layer_types": ["dense", "dense", "sparse", "sparse"],
    "rope_parameters": {
        "full_attention": YARN | {"partial_rotary_factor": 0.5, "attention_factor": 1.25, "beta_fast": 64.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 1.0},
    },
}  # fmt: skip


def laguna(**more: Any) -> Any:
    model = of_class("laguna", "Laguna", **LAGUNA | more)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("e_score_correction_bias"):
                parameter.copy_(0.3 * torch.randn_like(parameter))
    return model


@pytest.mark.parametrize("published", [False, True])
def test_laguna(published: bool, tmp_path: Path) -> None:
    """With the settings of the published XS too, that the class does not have."""
    model = saved(laguna(), tmp_path, "laguna")
    more = {
        "gating": "per-head", "gating_types": ["per_head"] * 4, "mlp_only_layers": [0, 1], "decoder_sparse_step": 1,
        "norm_topk_prob": True, "partial_rotary_factor": 0.5,
    }  # fmt: skip
    if published:
        changed(tmp_path, config=lambda found: {**found, **more})
    check(tmp_path, model, 0)


def test_laguna_without_windows(tmp_path: Path) -> None:
    kinds = {"layer_types": None, "sliding_window": 0, "num_attention_heads_per_layer": None, "mlp_layer_types": None}
    check(tmp_path, saved(laguna(**kinds), tmp_path, "laguna"), 0)


@pytest.mark.parametrize("turn", range(2))
@pytest.mark.parametrize("name", ["E2B", "26B-A4B", "laguna"])
def test_quantised_windows(name: str, turn: int, tmp_path: Path) -> None:
    """Layouts mixed per matrix, those of groups of 32 to 128 too; experts are tensors of their own."""
    widths = {"hidden_size": 256, "intermediate_size": 256, "head_dim": 64, "moe_intermediate_size": 128}
    if name == "laguna":
        model = saved(laguna(**widths, shared_expert_intermediate_size=128), tmp_path, "laguna")
    else:
        per_layer = {"hidden_size_per_layer_input": 128} if name == "E2B" else {}
        model = saved(gemma4(name, **widths, global_head_dim=128, **per_layer), tmp_path)
    layouts = [layout for layout in LAYOUTS if layout != "gptq-v2"][turn::2]
    changed(tmp_path, apart)
    assert len(quantised(tmp_path, model, layouts, turn)) > 2
    check(tmp_path, model, turn)


def apart(found: dict[str, Tensor]) -> dict[str, Tensor]:
    """Experts of a layer in one tensor as tensors of their own, as quantisers store them."""
    kept = dict[str, Tensor]()
    for name, stored in found.items():
        prefix, _, part = name.rpartition("experts.")
        if part not in ("gate_up_proj", "down_proj"):
            kept[name] = stored
            continue
        for index, one in enumerate(stored):
            halves = {"gate_proj": one[: len(one) // 2], "up_proj": one[len(one) // 2 :]}
            for key, half in halves.items() if part == "gate_up_proj" else [(part, one)]:
                kept[f"{prefix}experts.{index}.{key}.weight"] = half.clone()
    return kept


@pytest.mark.parametrize("packed", [False, True])
def test_gpt_oss(packed: bool, tmp_path: Path) -> None:
    """Experts as floats, and as MXFP4 as published."""
    kinds = ["sliding_attention", "full_attention"] * 2
    rope = YARN | {"truncate": False, "beta_fast": 32.0, "beta_slow": 1.0}
    more = {
        "num_local_experts": 5,
        "num_experts_per_tok": 2,
        "head_dim": 64,
        "sliding_window": 16,
        "layer_types": kinds,
    }
    model = of_class("gpt_oss", "GptOss", **SIZES | more | {"num_hidden_layers": 4, "rope_parameters": rope})
    saved(model, tmp_path, "gpt-4o")
    state = model.state_dict()

    def as_mxfp4(found: dict[str, Tensor]) -> dict[str, Tensor]:
        kept = dict[str, Tensor]()
        for name, stored in found.items():
            if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
                weight = state[name].transpose(1, 2)
                kept[f"{name}_blocks"], kept[f"{name}_scales"], values = mxfp4(weight.double().numpy())
                weight.copy_(torch.from_numpy(values))
            else:
                kept[name] = stored
        return kept

    method = {"quantization_config": {"quant_method": "mxfp4"}}
    if packed:
        with torch.no_grad():
            changed(tmp_path, as_mxfp4, lambda found: found | method)
    check(tmp_path, model, 0)
    types = {info.type for name, info in load_target(tmp_path).file.tensors.items() if name.endswith("exps.weight")}
    assert types == {"MXFP4" if packed else "BF16"}


def test_a_config_that_states_what_differs_from_its_class(tmp_path: Path) -> None:
    """As published for Gemma 3 of 4B and more: heads and epsilon are left out, scaling is stated in the old form."""
    rope = GEMMA | {"full_attention": GEMMA["full_attention"] | {"rope_type": "linear", "factor": 8.0}}
    sizes = {key: SIZES[key] for key in ("vocab_size", "hidden_size", "intermediate_size")}
    model = of_class(
        "gemma3", "Gemma3Text", num_hidden_layers=7, sliding_window=16, num_attention_heads=8, num_key_value_heads=4,
        rope_parameters=rope, **sizes,
    )  # fmt: skip
    stated = ("hidden_size", "intermediate_size", "num_hidden_layers", "sliding_window")

    def sparse(found: dict[str, Any]) -> dict[str, Any]:
        text = {key: found[key] for key in stated} | {"rope_scaling": {"factor": 8.0, "rope_type": "linear"}}
        return {"model_type": "gemma3", "text_config": {**text, "model_type": "gemma3_text"}, "eoi_token_index": 3}

    saved(model, tmp_path)
    check(changed(tmp_path, config=sparse), model, 0)


@pytest.mark.parametrize("name", ["qwen35", "qwen35moe"])
def test_mtp_tensors_draft(name: str, tmp_path: Path) -> None:
    """The last layer as an MTP block: logits for a text are those of Hugging Face's layer, and it drafts."""
    seed, rng = 2, np.random.default_rng(0)
    model = saved(wide(name, seed), tmp_path, PRE[name])
    hidden = WIDE.hidden
    made = {"fc": torch.from_numpy(rng.standard_normal((hidden, 2 * hidden)) * hidden**-0.5)}
    norms = ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")
    made |= {norm: torch.from_numpy(0.2 * rng.standard_normal(hidden)) for norm in norms}
    made = {key: one.to(torch.bfloat16) for key, one in made.items()}
    last = f"model.layers.{WIDE.layers - 1}."

    def moved(found: dict[str, Tensor]) -> dict[str, Tensor]:
        kept = {key.replace(last, "mtp.layers.0."): one for key, one in found.items()}
        return kept | {f"mtp.{key}.weight": one for key, one in made.items()}

    def fewer(found: dict[str, Any]) -> dict[str, Any]:
        kinds = found["layer_types"][:-1]
        return found | {"num_hidden_layers": WIDE.layers - 1, "layer_types": kinds, "mtp_num_hidden_layers": 1}

    target = load_target(changed(tmp_path, moved, fewer))
    ids = rng.integers(0, VOCAB, 30).tolist()
    names = dict(zip(("fc", *norms), ("eh_proj", "enorm", "hnorm", "shared_head_norm"), strict=True))
    beside = {names[key]: one.float() + (key != "fc") for key, one in made.items()}
    expected = head(model, beside, ids[1:], trunk(model, ids)[:-1])[1].numpy()
    rows = random_family.first_close(target, ids)
    assert rows > 8
    assert np.abs(mtp_logits(target, ids) - expected)[: rows - 1].max() < 2e-3
    assert target.own_draft == "mtp"
    assert load_draft("mtp", target).capabilities.kind == "mtp"


def test_an_assistant_as_a_folder(tmp_path: Path) -> None:
    """Its first draft is that of Hugging Face, from the keys and the hidden state of the target."""
    model = saved(gemma4("E2B"), tmp_path / "target")
    own = {
        "hidden_size": 32, "num_hidden_layers": 2, "num_kv_shared_layers": 2, "vocab_size_per_layer_input": 0,
        "num_key_value_heads": 1, "layer_types": ["sliding_attention", "full_attention"],
        "final_logit_softcapping": None,
    }  # fmt: skip
    of = importlib.import_module("transformers.models.gemma4_assistant.modeling_gemma4_assistant")
    text = importlib.import_module("transformers.models.gemma4.configuration_gemma4").Gemma4TextConfig(**GEMMA4 | own)
    torch.manual_seed(1)
    config = of.Gemma4AssistantConfig(text_config=text, backbone_hidden_size=SIZES["hidden_size"])
    theirs = saved(of.Gemma4AssistantForCausalLM(config).eval().float(), tmp_path / "draft")
    target = load_target(tmp_path / "target")
    session = target.session(load_draft(tmp_path / "draft", target))
    ids = np.random.default_rng(0).integers(0, VOCAB, 12)
    session.prefill(ids.tolist())
    with torch.no_grad():
        found = model.model(torch.tensor(ids[None]), return_shared_kv_states=True, use_cache=False)
        joined = (model.model.embed_tokens(torch.tensor([[7]])), found.last_hidden_state[:, -1:])
        expected = theirs(
            inputs_embeds=torch.cat(joined, -1), position_ids=torch.tensor([[12]]),
            shared_kv_states=found.shared_kv_states,
        ).logits  # fmt: skip
    assert np.abs(session.draft(7, 0)[0] - expected[0, 0].numpy()).max() < 1e-4
