"""Drafters: all file formats of a drafter give the same configuration and weights; refusals and their messages."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dflash_core.arch.rope import Linear, Yarn
from dflash_core.config import DraftConfig
from dflash_core.drafters.dflash import open_drafter
from dflash_core.drafters.mtp import holds_mtp
from dflash_core.drafters.registry import open_draft
from dflash_core.errors import DFlashError, FormatError, UnsupportedError
from dflash_core.formats.groups import types_by_group
from support.formats import (
    ARCHITECTURES,
    ARRAY,
    DRAFT_SHAPES,
    STRING,
    TARGET_KEYS,
    ZLAB,
    array,
    draft_keys,
    entry,
    gguf_name,
    header,
    refused,
    text,
    weights,
    without,
    write_bytes,
    write_draft,
    write_gguf,
    write_target,
    write_zlab,
)
from support.golden import golden, goldens, target

SMALL = DraftConfig(
    name="small", flavour="z-lab", block_count=2, embedding_length=32, feed_forward_length=64, head_count=4,
    head_count_kv=2, key_length=16, rms_eps=1e-6, rope_freq_base=1e7, block_size=8, target_layers=(0, 1),
    mask_token_id=3, vocab_size=4, target_block_count=2, sliding_window=16, sliding=(True, False),
    causal=(True, False),
)  # fmt: skip
INNER = ZLAB["dflash_config"]


def like(config: DraftConfig, reference: DraftConfig) -> DraftConfig:
    """`config` with the names, and the fields that only a z-lab folder has, taken from `reference`."""
    return dataclasses.replace(
        config, name=reference.name, flavour=reference.flavour, target_block_count=reference.target_block_count
    )


@pytest.mark.parametrize(
    "folder", [path for path in goldens("tiny-dflash*") if path.is_dir()], ids=lambda path: path.name
)
def test_golden_drafters_are_the_same_in_every_wrapping(folder: Path) -> None:
    config, expected = open_drafter(folder)
    # tiny-dflash-*.gguf holds the files of tiny-dflash-swa as well.
    others = [path for path in goldens(f"{folder.name}-*.gguf") if ("swa" in path.name) == ("swa" in folder.name)]
    for path in [folder / "model.safetensors", *others]:
        found, opened = open_drafter(path)
        assert like(found, config) == config
        assert opened.tensors.keys() == expected.tensors.keys() == config.tensors().keys()
        half = {info.type for info in opened.tensors.values()} == {"F16", "F32"}
        for tensor, shape in config.tensors().items():
            ours, theirs = opened.float32(tensor), expected.float32(tensor)
            assert ours.shape == shape == opened.tensors[tensor].shape
            assert np.allclose(ours, theirs, rtol=0, atol=2**-20 if half else 0)


def test_small_drafter_in_every_wrapping(tmp_path: Path) -> None:
    folder = write_zlab(tmp_path / "small")
    paths = [folder, folder / "model.safetensors"]
    paths += [write_draft(tmp_path / f"{flavour}.gguf", flavour) for flavour in range(3)]
    random = weights(DRAFT_SHAPES)
    for path in paths:
        config, opened = open_drafter(path)
        assert like(config, SMALL) == SMALL
        for name, values in random.items():
            assert np.array_equal(opened.float32(gguf_name(name, 0)), values)
            assert np.array_equal(opened.float32(gguf_name(name, 0), slice(1, 9)), values[1:9])
            assert opened.raw(gguf_name(name, 0)).tobytes() == values.tobytes()
        assert opened.path == path
    flavours = [open_drafter(path)[0].flavour for path in paths]
    assert flavours == ["z-lab", "z-lab", "dflash", "dflash-draft", "lucebox"]


def test_groups_of_a_drafter(tmp_path: Path) -> None:
    groups = types_by_group(open_drafter(write_zlab(tmp_path / "small"))[1])
    assert {group: next(iter(types.values()))[0] for group, types in groups.items()} == {
        "feature fusion": 1, "norms": 10, "attention": 8, "feed-forward": 6,
    }  # fmt: skip


# z-lab folders


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, {}),
        ({"block_size": None, "dflash_config": INNER | {"block_size": 8}}, {}),
        ({"rope_theta": None, "rope_parameters": {"rope_theta": 1e7, "rope_type": "default"}}, {}),
        ({"rope_scaling": {"type": "linear", "factor": 4.0}}, {"rope_scaling": Linear(4.0)}),
        (
            {
                "rope_parameters": {
                    "rope_theta": 1e7,
                    "rope_type": "yarn",
                    "factor": 2.0,
                    "attention_factor": 1.25,
                    "original_max_position_embeddings": 64,
                }
            },
            {"rope_scaling": Yarn(2.0, 64, 1.25)},
        ),
        ({"is_causal": False}, {"causal": (False, False)}),
        ({"dflash_config": INNER | {"causal": True}}, {"causal": (True, True)}),
        ({"dflash_config": INNER | {"is_causal": [False, True]}}, {"causal": (False, True)}),
        ({"layer_types": None}, {"sliding": (False, False), "causal": (False, False), "sliding_window": 0}),
        ({"hidden_act": None, "attention_bias": None, "partial_rotary_factor": None}, {}),
        ({"use_sliding_window": False}, {"sliding": (False, False), "causal": (False, False), "sliding_window": 0}),
        (
            {"use_sliding_window": False, "sliding_window": None},
            {"sliding": (False, False), "causal": (False, False), "sliding_window": 0},
        ),
        (
            {"layer_types": None, "use_sliding_window": True},
            {"sliding": (False, False), "causal": (False, False), "sliding_window": 0},
        ),
        (
            {"layer_types": None, "use_sliding_window": True, "max_window_layers": 1},
            {"sliding": (False, True), "causal": (False, True)},
        ),
        ({"dflash_config": without(INNER, "mask_token_id")}, {"mask_token_id": None}),
        ({"vocab_size": None, "num_target_layers": None}, {"vocab_size": None, "target_block_count": None}),
    ],
    ids=lambda value: ",".join(value) or "plain",
)
def test_places_a_setting_may_be_in(tmp_path: Path, change: dict[str, Any], expected: dict[str, Any]) -> None:
    config, _ = open_drafter(write_zlab(tmp_path / "small", ZLAB | change))
    assert config == dataclasses.replace(SMALL, **expected)


@pytest.mark.parametrize(("layers", "expected"), [(64, (1, 61)), (4, (1, 1)), (33, (1, 30))])
def test_default_target_layers(tmp_path: Path, layers: int, expected: tuple[int, ...]) -> None:
    config = ZLAB | {"num_target_layers": layers, "dflash_config": without(INNER, "target_layer_ids")}
    assert open_drafter(write_zlab(tmp_path / "small", config))[0].target_layers == expected


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": 0}, "small/config.json: hidden_size is 0, expected a whole number from 1 to 16,777,216"),
        ({"head_dim": None}, "small/config.json has no head_dim, expected a whole number"),
        ({"block_size": 1}, "small/config.json: block_size is 1, expected a whole number from 2 to 256"),
        ({"block_size": None}, "small/config.json has no block_size"),
        ({"rope_theta": "1e7"}, "rope_theta is '1e7', expected a positive number"),
        ({"layer_types": ["full_attention"]}, "layer_types is ['full_attention'], expected 2 of full_attention or"),
        ({"layer_types": [["x"], {}]}, "layer_types is [['x'], {}], expected 2 of full_attention or sliding_attention"),
        (
            {"layer_types": None, "transformer_layer_config": {"layer_types": 5}, "sliding_window_non_causal": False},
            "layer_types is 5, expected 2 of full_attention or sliding_attention",
        ),
        ({"sliding_window": None}, "small/config.json has no sliding_window"),
        ({"use_sliding_window": "no"}, "use_sliding_window is 'no', expected true or false"),
        ({"rms_norm_eps": 1.5}, "rms_norm_eps is 1.5, expected a positive number under 1; convert"),
        ({"dflash_config": [1]}, "dflash_config is '[1]', expected an object"),
        ({"dflash_config": INNER | {"target_layer_ids": [-2, 3]}}, "target_layer_ids is [-2, 3], expected a list of"),
        ({"dflash_config": INNER | {"target_layer_ids": []}}, "target_layer_ids is [], expected a list of whole"),
        ({"dflash_config": {}, "num_target_layers": None}, "small/config.json has no target_layer_ids, expected"),
        ({"num_attention_heads": 3}, "num_attention_heads is 3, expected a multiple of num_key_value_heads (2)"),
        (
            {"dflash_config": INNER | {"target_layer_ids": [0, 1, 1]}},
            "small: tensor fc.weight has shape [32, 64], expected [32, 96] from the file's own settings",
        ),
        ({"num_hidden_layers": 1, "layer_types": ["full_attention"]}, "11 tensors have no meaning here"),
        ({"num_hidden_layers": 3, "layer_types": ["full_attention"] * 3}, "11 of 36 tensors are missing: blk.2.attn_n"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "config",
)  # fmt: skip
def test_damaged_configurations(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    assert message in refused(open_drafter, write_zlab(tmp_path / "small", ZLAB | change), DFlashError)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"architectures": ["Qwen3_5ForCausalLM"]},
            "small/config.json: architectures is ['Qwen3_5ForCausalLM'], expected one of DFlashDraftModel"
            " DFlash2DraftModel Qwen3DSparkModel DSparkDraftModel DFlashLagunaForCausalLM; give the folder of a drafter"
            " of those kinds",
        ),
        ({"architectures": ["DFlashDraftModel", "X"]}, "architectures is ['DFlashDraftModel', 'X'], expected"),
        ({"architectures": None}, "architectures is None, expected one of DFlashDraftModel"),
        ({"attention_bias": True}, "attention_bias is True, expected False; this drafter cannot run here"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu', expected 'silu'"),
        (
            {"rope_scaling": {"type": "dynamic", "factor": 4.0}},
            "scales its rotary positions by dynamic, expected",
        ),
        (
            {"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e7}},
            "scales its rotary positions by longrope, e",
        ),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5, expected 1.0"),
        ({"rope_parameters": {"rope_theta": 1e7, "partial_rotary_factor": 0.5}}, "partial_rotary_factor is 0.5, expec"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "config",
)
def test_drafters_that_cannot_run_here(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    assert message in refused(open_drafter, write_zlab(tmp_path / "small", ZLAB | change), UnsupportedError)


def test_a_folder_without_weights_is_said_to_have_none(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert refused(open_drafter, tmp_path / "empty") == (
        "empty has no model in it, expected a GGUF file, or a config.json and .safetensors files; check the path"
    )


def test_incomplete_folders(tmp_path: Path) -> None:
    folder = write_zlab(tmp_path / "small")
    config = folder / "config.json"
    config.write_text("{")
    assert "config.json is not valid JSON" in refused(open_drafter, folder)
    config.write_text(json.dumps([1]))
    assert "config.json is JSON of type list, expected an object" in refused(open_drafter, folder)
    config.unlink()
    for path in (folder, folder / "model.safetensors"):
        assert refused(open_drafter, path) == (
            f"{path.name} has no config.json next to its weights, which a safetensors drafter needs;"
            " download config.json as well"
        )
    write_draft(folder / "d.gguf", 0)
    assert refused(open_drafter, folder).endswith("; name the file d.gguf itself")
    (folder / "model.safetensors").rename(tmp_path / "model.safetensors")
    assert refused(open_drafter, folder).endswith(
        "is a folder, expected one of its GGUF files; name it, such as d.gguf"
    )
    (tmp_path / "model.safetensors").rename(folder / "model.safetensors")
    absent = "none.safetensors does not exist; check the path"
    assert refused(open_drafter, tmp_path / "none.safetensors") == absent
    config.write_text(json.dumps(ZLAB))
    (folder / "model.safetensors").unlink()
    assert "has 0 .safetensors files and no model.safetensors.index.json" in refused(open_drafter, folder)


JUNK = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=4), st.lists(st.integers(), max_size=3),
    st.lists(st.text(max_size=3), max_size=3), st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)  # fmt: skip


# What other drafters say; a rank makes it one with a Markov head, or a selector.
BESIDE = (
    "rope_scaling", "causal", "markov_rank", "markov_head_type", "enable_confidence_head", "sample_from_anchor",
    "confidence_head_with_markov", "selector_rank", "conv_kernel_size", "transformer_layer_config",
    "sliding_window_non_causal", "aux_hidden_state_layer_ids", "input_embedding_scale", "final_logit_softcapping",
)  # fmt: skip


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(changes=st.dictionaries(st.sampled_from([*ZLAB, *INNER, *BESIDE]), JUNK, max_size=3))
def test_fuzz_configurations(tmp_path: Path, changes: dict[str, Any]) -> None:
    """For any config.json: a drafter or a refusal, never another error."""
    folder = tmp_path / "small"
    if not folder.exists():
        write_zlab(folder)
    inner = INNER | {key: value for key, value in changes.items() if key in INNER}
    (folder / "config.json").write_text(json.dumps(ZLAB | {"dflash_config": inner} | changes))
    with contextlib.suppress(DFlashError):
        open_drafter(folder)


# GGUF flavours


@pytest.mark.parametrize("flavour", range(3), ids=ARCHITECTURES)
def test_what_each_flavour_may_leave_out(tmp_path: Path, flavour: int) -> None:
    keys, prefix = draft_keys(flavour), ARCHITECTURES[flavour]
    optional = [key for key in keys if key.endswith(("mask_token_id", "block_size", "vocab_size", "tokens"))]
    optional += [key for key in keys if "sliding" in key]
    config, _ = open_drafter(write_draft(tmp_path / "a.gguf", flavour, without(keys, *optional)))
    assert (config.mask_token_id, config.block_size, config.vocab_size) == (None, 16, None)
    assert (config.sliding_window, config.sliding, config.causal) == (0, (False, False), (False, False))
    path = write_draft(tmp_path / "a.gguf", flavour, without(keys, f"{prefix}.rope.freq_base"))
    if prefix == "qwen35-dflash-draft":  # its runtime takes the target's
        assert open_drafter(path)[0].rope_freq_base == 0.0
    else:
        assert refused(open_drafter, path).startswith(
            f"a.gguf has no {prefix}.rope.freq_base, expected a positive number"
        )


@pytest.mark.parametrize(
    ("flavour", "change", "error", "message"),
    [
        (0, {"target_layers": [-1, 1]}, FormatError, "dflash.target_layers is [-1, 1], expected a list of whole"),
        (0, {"target_layers": [1, 2, 3]}, FormatError, "tensor fc.weight has shape [32, 64], expected [32, 96]"),
        (1, {"dflash.n_target_features": 96}, UnsupportedError, "dflash.n_target_features is 96, expected 64"),
        (2, {"dflash.n_target_layers": 5}, UnsupportedError, "dflash.n_target_layers is 5, expected 2"),
        (1, {"rope.dimension_count": 8}, UnsupportedError, "rope.dimension_count is 8, expected 16"),
        (0, {"attention.value_length": 8}, UnsupportedError, "attention.value_length is 8, expected 16"),
        (0, {"attention.head_count": 5}, FormatError, "head_count is 5, expected a multiple of attention.head_count"),
        (0, {"attention.sliding_window_pattern": [True]}, FormatError, "[True], expected true or false, or a list"),
        (0, {"attention.sliding_window_pattern": 4}, FormatError, "pattern is 4, expected true or false, or a list"),
        (2, {"dflash.domino.enabled": True}, UnsupportedError, "a.gguf has a Domino or DSpark head of a"),
        (0, {"attention.causal": "yes"}, FormatError, "dflash.attention.causal is 'yes', expected true or false"),
        (1, {"sample_from_anchor": 3}, FormatError, "sample_from_anchor is 3, expected true or false"),
    ],
)  # fmt: skip
def test_gguf_settings_that_do_not_fit(
    tmp_path: Path, flavour: int, change: dict[str, Any], error: type[DFlashError], message: str
) -> None:
    keys = draft_keys(flavour) | {f"{ARCHITECTURES[flavour]}.{key}": value for key, value in change.items()}
    assert message in refused(open_drafter, write_draft(tmp_path / "a.gguf", flavour, keys), error)


@pytest.mark.parametrize("flavour", range(2), ids=ARCHITECTURES[:2])
def test_layers_that_slide_need_a_window(tmp_path: Path, flavour: int) -> None:
    """Without the window's length these layers would see everything, and silently draft worse."""
    key = f"{ARCHITECTURES[flavour]}.attention.sliding_window"
    path = write_draft(tmp_path / "a.gguf", flavour, without(draft_keys(flavour), key))
    assert refused(open_drafter, path).startswith(f"a.gguf has no {key}, expected a whole number")
    plain = draft_keys(flavour) | {key + "_pattern": [False, False]}
    assert open_drafter(write_draft(tmp_path / "a.gguf", flavour, without(plain, key)))[0].sliding == (False, False)


def test_causal_key_of_gguf_flavours(tmp_path: Path) -> None:
    """Every converter writes false, so it says nothing about sliding layers; true is intended."""
    keys = draft_keys(1)
    assert open_drafter(write_draft(tmp_path / "a.gguf", 1, keys))[0].causal == (True, False)
    keys["dflash-draft.attention.causal"] = True
    assert open_drafter(write_draft(tmp_path / "a.gguf", 1, keys))[0].causal == (True, True)


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("dflash.domino.gru.weight_ih", "a Domino head (dflash.domino.gru.weight_ih)"),
        ("domino_head.W1", "a Domino head (domino_head.W1)"),
        ("dflash.dspark.markov.w1", "a DSpark head of another kind (dflash.dspark.markov.w1)"),
        ("mtp.2.markov_head.w", "a DSpark head of another kind (mtp.2.markov_head.w)"),
        ("markov_head.gate_proj.weight", "a gated Markov head (markov_head.gate_proj.weight)"),
        ("markov_gate.weight", "a gated Markov head (markov_gate.weight)"),
        ("markov_head.rnn.weight_ih_l0", "an rnn Markov head (markov_head.rnn.weight_ih_l0)"),
        ("markov_rnn_gate.weight", "an rnn Markov head (markov_rnn_gate.weight)"),
        ("dflash.aux_hidden_norm.0.weight", "per-layer feature norms"),
    ],
)
def test_other_heads_are_refused_by_name(tmp_path: Path, name: str, what: str) -> None:
    tensors = weights({gguf_name(key, 2): shape for key, shape in DRAFT_SHAPES.items()} | {name: (8,)})
    message = refused(open_drafter, write_gguf(tmp_path / "a.gguf", draft_keys(2), tensors), UnsupportedError)
    assert message.startswith(f"a.gguf has {what}")
    assert message.endswith(" or DSpark with a vanilla Markov head; use one of those")
    folder = write_zlab(tmp_path / "small", ZLAB, DRAFT_SHAPES | {name: (8,)})
    assert refused(open_drafter, folder, UnsupportedError).startswith(f"small has {what}")


def test_one_tensor_under_two_names(tmp_path: Path) -> None:
    folder = write_zlab(tmp_path / "small", ZLAB, DRAFT_SHAPES | {"dflash_fc.weight": (32, 64)})
    assert "are the same tensor (fc.weight); convert the drafter again" in refused(open_drafter, folder)


def test_a_target_is_no_drafter(tmp_path: Path) -> None:
    assert refused(open_drafter, write_target(tmp_path / "t.gguf"), UnsupportedError) == (
        "t.gguf is a target model (architecture qwen35), expected a DFlash drafter (dflash, dspark,"
        " dflash-draft, qwen35-dflash-draft); give the drafter made for your target"
    )
    path = write_gguf(tmp_path / "t.gguf", TARGET_KEYS | {"general.architecture": "falcon"}, {})
    assert "t.gguf is not a DFlash drafter (architecture falcon), expected" in refused(
        open_drafter, path, UnsupportedError
    )
    assert "has no general.architecture, expected text" in refused(open_drafter, _bare(tmp_path / "b.gguf"))


def test_an_architecture_that_is_no_text(tmp_path: Path) -> None:
    names = entry("general.architecture", ARRAY, array(STRING, 1, text("qwen35")))
    path = write_bytes(tmp_path / "a.gguf", header([names]))
    assert not holds_mtp(path)
    message = refused(lambda draft: open_draft(draft, target()), path)
    assert message.startswith("a.gguf: general.architecture is ['qwen35'], expected text")


def _bare(path: Path) -> Path:
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 0))
    return path


def test_the_committed_drafter_opens_from_its_weights_alone() -> None:
    config, opened = open_drafter(golden("tiny-dflash") / "model.safetensors")
    assert config.target_layers == (0, 2)
    assert len(opened.tensors) == 25
