"""Configurations with experts, and of attention alone: what files say, and every refusal in its own words."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dflash_core.arch.kinds import Attention, DeltaNet, Experts, SwiGLU
from dflash_core.arch.spec import LayerSpec, ModelSpec
from dflash_core.config import read_target, target_config, unusual
from dflash_core.errors import DFlashError, FormatError, UnsupportedError
from dflash_core.formats.gguf import GGUFFile, open_gguf
from support.formats import ATTENTION, LINEAR, TARGET_KEYS, blocks, weights, without, write_gguf
from support.gguf_copy import with_fused_qkv
from support.golden import other_targets

HIDDEN, VOCABULARY = 32, 4
DENSE = {"ffn_gate": (64, HIDDEN), "ffn_up": (64, HIDDEN), "ffn_down": (HIDDEN, 64)}
ROUTED = {
    "ffn_gate_inp": (6, HIDDEN), "ffn_gate_exps": (6, 16, HIDDEN), "ffn_up_exps": (6, 16, HIDDEN),
    "ffn_down_exps": (6, HIDDEN, 16),
}  # fmt: skip
SHARED = {
    "ffn_gate_inp_shexp": (HIDDEN,), "ffn_gate_shexp": (24, HIDDEN), "ffn_up_shexp": (24, HIDDEN),
    "ffn_down_shexp": (HIDDEN, 24),
}  # fmt: skip
PLAIN = ATTENTION | {"attn_q": (HIDDEN, HIDDEN)}
EXPERT_KEYS = {"expert_count": 6, "expert_used_count": 2, "expert_feed_forward_length": 16}
SHARED_KEY = {"expert_shared_feed_forward_length": 24}
OUTSIDE = {
    "token_embd.weight": (VOCABULARY, HIDDEN), "output_norm.weight": (HIDDEN,), "output.weight": (VOCABULARY, HIDDEN),
}  # fmt: skip

GATED = Attention(heads=2, kv_heads=1, head_dim=16, rotary=4, rope_base=1e7, eps=1e-6, gate="sigmoid")
UNGATED = dataclasses.replace(GATED, rotary=16, gate="none")
DELTA = DeltaNet(key_heads=2, value_heads=6, key_dim=8, value_dim=8, conv_kernel=4, eps=1e-6)
EXPERTS = Experts(count=6, used=2, width=16)


def keys_of(name: str, **more: Any) -> dict[str, Any]:
    """TARGET_KEYS as `name` has them, with `more` under its prefix; None takes a key out."""
    known = {key.removeprefix("qwen35."): value for key, value in TARGET_KEYS.items() if key.startswith("qwen35.")}
    if "35" not in name:
        known = {key: value for key, value in known.items() if not key.startswith(("ssm.", "full_", "rope.dim"))}
    if "moe" in name:
        known = without(known, "feed_forward_length") | EXPERT_KEYS | (SHARED_KEY if "35" in name else {})
    known |= {key.replace("__", "."): value for key, value in more.items()}
    rest = {key: value for key, value in TARGET_KEYS.items() if not key.startswith("qwen35.")}
    told = {f"{name}.{key}": value for key, value in known.items() if value is not None}
    return rest | {"general.architecture": name} | told


def shapes_of(name: str, **more: tuple[int, ...] | None) -> dict[str, tuple[int, ...]]:
    """The tensors that belong to `keys_of`, those of both layers changed by `more`."""
    norm = {"attn_norm": (HIDDEN,), ("post_attention_norm" if "35" in name else "ffn_norm"): (HIDDEN,)}
    ffn = (ROUTED | (SHARED if "35" in name else {})) if "moe" in name else DENSE
    ffn = {key: shape for key, shape in (ffn | more).items() if shape is not None}
    if "35" in name:
        first = blocks(0, norm, LINEAR, ffn) | {"blk.0.ssm_dt.bias": (6,), "blk.0.ssm_a": (6,)}
        return OUTSIDE | first | blocks(1, norm, ATTENTION, ffn)
    return OUTSIDE | blocks(0, norm, PLAIN, ffn) | blocks(1, norm, PLAIN, ffn)


def config_of(path: Path, keys: dict[str, Any], shapes: dict[str, tuple[int, ...]]) -> ModelSpec:
    return target_config(open_gguf(write_gguf(path / "a.gguf", keys, weights(shapes))))


def refusal(path: Path, error: type[DFlashError], keys: dict[str, Any], shapes: dict[str, tuple[int, ...]]) -> str:
    with pytest.raises(error) as caught:
        config_of(path, keys, shapes)
    return str(caught.value).removeprefix(f"{path}/")


def layers(name: str) -> tuple[LayerSpec, ...]:
    if name == "qwen35moe":
        ffn = dataclasses.replace(EXPERTS, shared=24)
        return tuple(LayerSpec(mixer, ffn, "post_attention_norm.weight") for mixer in (DELTA, GATED))
    return (LayerSpec(UNGATED, EXPERTS if name == "qwen3moe" else SwiGLU(64)),) * 2


MOE = ("qwen35moe", "qwen3moe")


@pytest.mark.parametrize("name", [*MOE, "qwen3"])
def test_configurations(tmp_path: Path, name: str) -> None:
    assert config_of(tmp_path, keys_of(name), shapes_of(name)) == ModelSpec(
        name="Small", architecture=name, context_length=128, embedding_length=HIDDEN, vocab_size=VOCABULARY,
        rms_eps=1e-6, layers=layers(name),
    )  # fmt: skip
    assert config_of(tmp_path, keys_of(name), without(shapes_of(name), "output.weight")).tied_output


@pytest.mark.parametrize("name", MOE)
def test_gate_and_up_may_be_one_tensor(tmp_path: Path, name: str) -> None:
    shapes = shapes_of(name, ffn_gate_exps=None, ffn_up_exps=None, ffn_gate_up_exps=(6, 32, HIDDEN))
    spec = config_of(tmp_path, keys_of(name), shapes)
    assert [layer.ffn for layer in spec.layers] == [dataclasses.replace(one.ffn, fused=True) for one in layers(name)]
    assert "gate and up of the experts are one tensor" in unusual(open_gguf(tmp_path / "a.gguf"), spec)
    # Layer by layer: a file may mix them.
    split = shapes_of(name)
    mixed = {key: shape for key, shape in shapes.items() if "blk.1." not in key}
    mixed |= {key: shape for key, shape in split.items() if "blk.1." in key}
    spec = config_of(tmp_path, keys_of(name), mixed)
    assert [layer.ffn.fused for layer in spec.layers if isinstance(layer.ffn, Experts)] == [True, False]
    assert "gate and up of the experts are one tensor in 1 of 2 layers" in unusual(open_gguf(tmp_path / "a.gguf"), spec)
    both = split | {"blk.0.ffn_gate_up_exps.weight": (6, 32, HIDDEN)}
    assert "2 tensors have no meaning here: blk.0.ffn_gate_exps.weight, blk.0.ffn_up_exps.weight" in refusal(
        tmp_path, UnsupportedError, keys_of(name), both
    )


def test_a_shared_expert_is_there_or_not(tmp_path: Path) -> None:
    name, none = "qwen35moe", dict.fromkeys(SHARED)
    for absent in (None, 0):
        keys = keys_of(name, expert_shared_feed_forward_length=absent)
        spec = config_of(tmp_path, keys, shapes_of(name, **none))
        assert {layer.ffn for layer in spec.layers} == {EXPERTS}
        assert "no shared expert" in unusual(open_gguf(tmp_path / "a.gguf"), spec)
    # Its width is that of a dense layer where the file gives none of its own.
    keys = keys_of(name, expert_shared_feed_forward_length=None, feed_forward_length=24)
    assert config_of(tmp_path, keys, shapes_of(name)).layers == layers(name)
    message = refusal(tmp_path, FormatError, keys_of(name), shapes_of(name, ffn_up_shexp=None))
    assert "2 of 38 tensors are missing: blk.0.ffn_up_shexp.weight, blk.1.ffn_up_shexp.weight;" in message


def test_how_chosen_experts_are_weighted(tmp_path: Path) -> None:
    name = "qwen3moe"

    def experts(**more: Any) -> Any:
        return config_of(tmp_path, keys_of(name, **more), shapes_of(name)).layers[0].ffn

    assert experts(expert_weights_scale=0.0) == experts(expert_weights_scale=1.0) == EXPERTS
    assert experts(expert_weights_scale=2.5) == dataclasses.replace(EXPERTS, scale=2.5)
    assert experts(expert_weights_norm=True, expert_gating_func=1) == EXPERTS
    assert experts(expert_weights_norm=False) == dataclasses.replace(EXPERTS, normalised=False)
    assert experts(expert_feed_forward_length=None, feed_forward_length=32) == EXPERTS


@pytest.mark.parametrize("name", MOE)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"expert_count": None}, "a.gguf has no {}.expert_count, expected a whole number from 1 to 65,536"),
        ({"expert_count": 0}, "a.gguf: {}.expert_count is 0, expected a whole number"),
        ({"expert_used_count": None}, "a.gguf has no {}.expert_used_count"),
        ({"expert_used_count": 0}, "a.gguf: {}.expert_used_count is 0, expected a whole number"),
        ({"expert_used_count": 7}, "a.gguf: expert_used_count is 7, expected at most expert_count (6); convert it"),
        ({"expert_feed_forward_length": None}, "a.gguf has no {}.expert_feed_forward_length"),
        ({"expert_weights_scale": -1.0}, "a.gguf: {}.expert_weights_scale is -1.0, expected a positive number"),
        ({"expert_count": 8}, "blk.0.ffn_gate_inp.weight has shape [6, 32], expected [8, 32] from the file's own"),
        ({"rope__dimension_count": 5}, "a.gguf: rope.dimension_count is 5, expected an even number"),
    ],
)
def test_settings_out_of_range(tmp_path: Path, name: str, change: dict[str, Any], message: str) -> None:
    assert message.format(name) in refusal(tmp_path, FormatError, keys_of(name, **change), shapes_of(name))


@pytest.mark.parametrize("name", MOE)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ffn_down_exps": None}, "tensors are missing: blk.0.ffn_down_exps.weight, blk.1.ffn_down_exps.weight;"),
        ({"ffn_gate_inp": None}, "tensors are missing: blk.0.ffn_gate_inp.weight, blk.1.ffn_gate_inp.weight;"),
        ({"ffn_up_exps": (5, 16, 32)}, "tensor blk.0.ffn_up_exps.weight has shape [5, 16, 32], expected [6, 16, 32]"),
        ({"ffn_down_exps": (6, 32, 8)}, "tensor blk.0.ffn_down_exps.weight has shape [6, 32, 8], expected [6, 32, 16]"),
    ],
)
def test_expert_tensors_that_do_not_fit(tmp_path: Path, name: str, change: dict[str, Any], message: str) -> None:
    assert message in refusal(tmp_path, FormatError, keys_of(name), shapes_of(name, **change))


@pytest.mark.parametrize("name", ["qwen3", "qwen3moe"])
@pytest.mark.parametrize("pooling", [0, 3])
def test_models_that_write_no_text(tmp_path: Path, name: str, pooling: int) -> None:
    said = (
        "a.gguf holds no model to chat with: embedding or reranker model, expected one that generates text;"
        " use the chat model of the family"
    )
    assert refusal(tmp_path, UnsupportedError, keys_of(name, pooling_type=pooling), shapes_of(name)) == said
    reranker = shapes_of(name) | {"cls.output.weight": (2, HIDDEN)}
    assert refusal(tmp_path, UnsupportedError, keys_of(name), reranker) == said


@pytest.mark.parametrize("name", ["qwen3", *MOE])
def test_what_nothing_here_implements(tmp_path: Path, name: str) -> None:
    for change, message in (
        ({"rope__scaling__type": "longrope"}, "a.gguf scales its rotary positions by longrope, expected none, linear"),
        ({"attention__value_length": 32}, "attention.value_length is 32, expected 16, the key length"),
    ):
        assert message in refusal(tmp_path, UnsupportedError, keys_of(name, **change), shapes_of(name))
    fused = shapes_of(name) | {"blk.1.attn_qkv.weight": (64, HIDDEN)}
    message = "1 tensors have no meaning here: blk.1.attn_qkv.weight; running without them would change"
    assert message in refusal(tmp_path, UnsupportedError, keys_of(name), fused)


@pytest.mark.parametrize("name", ["qwen35", "qwen3", *MOE])
def test_queries_keys_and_values_may_be_one_tensor(tmp_path: Path, name: str) -> None:
    shapes = shapes_of(name)
    parts = [f"blk.1.attn_{part}.weight" for part in "qkv"]
    rows = sum(shapes[part][0] for part in parts)
    fused = {key: shape for key, shape in shapes.items() if key not in parts}
    fused["blk.1.attn_qkv.weight"] = (rows, HIDDEN)
    expected = config_of(tmp_path, keys_of(name), shapes)
    file, spec = read_target(open_gguf(write_gguf(tmp_path / "a.gguf", keys_of(name), weights(fused))))
    assert spec == expected
    assert file.tensors.keys() == shapes.keys()
    whole = weights(fused)["blk.1.attn_qkv.weight"]
    assert np.array_equal(np.concatenate([file.float32(part) for part in parts]), whole)
    fused["blk.1.attn_qkv.weight"] = (rows + 8, HIDDEN)
    assert refusal(tmp_path, FormatError, keys_of(name), fused) == (
        f"a.gguf: tensor blk.1.attn_qkv.weight has shape [{rows + 8}, 32], expected [{rows}, 32] (attn_q, attn_k,"
        " attn_v) from the file's own settings; convert the model again"
    )


def test_quantised_rows_are_split_as_they_are_stored(tmp_path: Path) -> None:
    fewer = []
    for path in (*other_targets("q3*-Q8_0.gguf"), *other_targets("q35moe-Q4_K.gguf")):
        plain = read_target(open_gguf(path))[0]
        stored = open_gguf(with_fused_qkv(tmp_path / "fused.gguf", path))
        fused, spec = read_target(stored)
        assert len(plain.tensors) == len(fused.tensors)
        fewer.append(len(stored.tensors) < len(plain.tensors))  # not where each of the three has a type of its own
        for name in spec.tensors():
            assert fused.tensors[name].type == plain.tensors[name].type
            assert np.array_equal(fused.raw(name), plain.raw(name))
    assert any(fewer)


def test_another_way_of_scoring_is_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path, UnsupportedError, keys_of("qwen3moe", expert_gating_func=2), shapes_of("qwen3moe")) == (
        "a.gguf: expert_gating_func is 2, expected 1, a softmax over all experts; use a model that chooses its"
        " experts so"
    )


JUNK = st.one_of(
    st.booleans(), st.integers(-(2**31), 2**32 - 1), st.floats(), st.text(max_size=4),
    st.lists(st.integers(), max_size=3), st.lists(st.booleans(), max_size=3),
)  # fmt: skip
OPTIONAL = {
    "expert_weights_scale": 1.0, "expert_weights_norm": True, "expert_gating_func": 1, "feed_forward_length": 64,
    "nextn_predict_layers": 0, "rope__scaling__type": "yarn", "pooling_type": 1,
}  # fmt: skip


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(name=st.sampled_from(["qwen3", *MOE]), data=st.data())
def test_fuzz_metadata(tmp_path: Path, name: str, data: st.DataObject) -> None:
    """For any metadata: a configuration or a refusal, never another error."""
    if not (path := tmp_path / f"{name}.gguf").exists():
        write_gguf(path, keys_of(name), weights(shapes_of(name)))
    opened = open_gguf(path)
    known = sorted({*keys_of(name), *keys_of(name, **OPTIONAL)} - {"general.architecture"})
    changes = data.draw(st.dictionaries(st.sampled_from(known), JUNK, max_size=3))
    changed = GGUFFile(path, opened.tensors, opened.shards, 3, {**opened.metadata, **changes})
    with contextlib.suppress(DFlashError):
        unusual(changed, target_config(changed))


def test_active_parameters_are_those_that_one_token_meets(tmp_path: Path) -> None:
    spec = config_of(tmp_path, keys_of("qwen3moe"), shapes_of("qwen3moe"))
    expert, embedding = 3 * 16 * HIDDEN, VOCABULARY * HIDDEN
    assert spec.parameters == sum(info.n_elements for info in open_gguf(tmp_path / "a.gguf").tensors.values())
    assert spec.active_parameters == spec.parameters - 2 * 4 * expert - embedding
    tied = config_of(tmp_path, keys_of("qwen3moe"), without(shapes_of("qwen3moe"), "output.weight"))
    assert tied.active_parameters == spec.active_parameters
