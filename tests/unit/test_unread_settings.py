"""Settings that no reader asks for: refused by name, noted where they change nothing, silent where harmless."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from dflash_core.arch.architecture import Head
from dflash_core.arch.registry import ARCHITECTURES
from dflash_core.arch.spec import ModelSpec
from dflash_core.config import check_pair, target_config, unusual
from dflash_core.drafters.dflash import open_drafter
from dflash_core.drafters.kinds import KINDS
from dflash_core.drafters.mtp import find_head
from dflash_core.errors import UnsupportedError
from dflash_core.formats.gguf import GGUFFile, open_gguf
from support import draft_files
from support.draft_files import PLAIN, SPARK, TWO, changed, gguf_keys, write_drafter, zlab_config
from support.formats import ARCHITECTURES as FLAVOURS
from support.formats import (
    TARGET_KEYS,
    ZLAB,
    draft_keys,
    refused,
    without,
    write_draft,
    write_gguf,
    write_target,
    write_zlab,
)
from support.golden import as_architecture, golden, target_path
from support.mtp_files import HEAD

TARGETS = {
    "qwen35": "tiny-F16.gguf",
    "qwen35moe": "q35moe-F16.gguf",
    "qwen3": "q3-F16.gguf",
    "qwen3moe": "q3moe-Q8_0.gguf",
    "qwen3vl": "q3-F16.gguf",
    "qwen3vlmoe": "q3moe-Q8_0.gguf",
    **dict.fromkeys(
        ("qwen2", "qwen2vl", "mistral3", "smollm3", "granite", "seed_oss", "phi3", "glm4"), "llama-mistral-F16.gguf"
    ),
    "llama": "llama-mistral-F16.gguf",
    "gemma3": "gemma3-Q8_0.gguf",
    "gemma4": "gemma4-e-F16.gguf",
    "gpt-oss": "gptoss-MXFP4.gguf",
    "laguna": "laguna-Q8_0.gguf",
}
NORMS = {
    "seed_oss": {"ffn_norm": ("post_attention_norm",)},
    "glm4": {"attn_norm": ("attn_norm", "post_attention_norm"), "ffn_norm": ("ffn_norm", "post_ffw_norm")},
}
"""The names that norms have in files of an architecture that are otherwise like those of another."""
CHANGING = {
    "attention.scale": 0.5,
    "attention.causal": False,
    "attention.sliding_window": 16,
    "logit_scale": 0.5,
    "final_logit_softcapping": 30.0,
    "attn_logit_softcapping": 50.0,
    "embedding_scale": 12.0,
    "residual_scale": 0.25,
    "rope.scaling.attn_factor": 1.5,
    "use_parallel_residual": True,
    "a_key_of_tomorrow": [0, 3],
}
NEUTRAL = {
    "attention.sliding_window": 1 << 20,
    "attention.causal": True,
    "logit_scale": 1.0,
    "final_logit_softcapping": 0.0,
    "residual_scale": 1.0,
    "expert_group_count": 1,
    "use_parallel_residual": False,
    "a_key_of_tomorrow": [0, 0],
}
# What llama.cpp's converter and ollama's write, beside what is read.
WRITTEN: dict[str, Any] = {
    "vocab_size": 4, "rope.scaling.type": "none", "rope.scaling.original_context_length": 32768,
    "rope.scaling.finetuned": True, "attention.layer_norm_epsilon": 1e-6, "feed_forward_length": 64,
    "rope.dimension_sections": [11, 11, 10, 0], "mrope_sections": [11, 11, 10], "rope.mrope_section": [11, 11, 10],
    "rope.mrope_interleaved": True, "image_token_id": 248056, "vision_start_token_id": 248053,
    "vision_end_token_id": 248054, "vision.block_count": 27, "vision.image_mean": [0.5, 0.5, 0.5],
    "full_attention_interval": 4,
}  # fmt: skip
OTHER_NAMES = {
    "general.quantized_by": "someone", "general.sampling.temp": 1.0, "quantize.imatrix.file": "a.dat",
    "split.count": 1, "tokenizer.ggml.add_sep_token": False, "someone.quantize_version": 2,
}  # fmt: skip


def opened(architecture: str) -> GGUFFile:
    """A golden file of an architecture, or of one with the same tensors."""
    file = as_architecture(open_gguf(target_path(TARGETS[architecture])), architecture)
    tensors = dict(file.tensors)
    for norm, names in NORMS.get(architecture, {}).items():
        for one in [tensors.pop(name) for name in file.tensors if f".{norm}." in name]:
            copies = (dataclasses.replace(one, name=one.name.replace(norm, name)) for name in names)
            tensors |= {copy.name: copy for copy in copies}
    return dataclasses.replace(file, tensors=tensors)


def with_keys(of: Path | GGUFFile, keys: dict[str, Any]) -> GGUFFile:
    """The open file with further settings, which are named without its architecture."""
    file = of if isinstance(of, GGUFFile) else open_gguf(of)
    prefix = file.metadata["general.architecture"]
    return dataclasses.replace(file, metadata={**file.metadata, **{f"{prefix}.{key}": keys[key] for key in keys}})


def unread(file: GGUFFile, keys: dict[str, Any]) -> dict[str, Any]:
    """Those of `keys` that the file's architecture does not follow."""
    architecture = ARCHITECTURES[str(file.metadata["general.architecture"])]
    settings = architecture.settings(str(file.path), file.metadata)
    architecture.read(settings, Head.of(file.tensors))
    return {key: keys[key] for key in keys if settings.prefix + key not in settings.read}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_target_with_a_setting_that_is_not_followed_is_refused_by_name(architecture: str) -> None:
    file = opened(architecture)
    for key, value in unread(file, CHANGING).items():
        with pytest.raises(UnsupportedError, match=rf"{key.rpartition('.')[2]} is .*, expected .*; "):
            target_config(with_keys(file, {key: value}))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_values_that_change_nothing_are_noted(architecture: str) -> None:
    golden_file = opened(architecture)
    plain = target_config(golden_file)
    for key, value in unread(golden_file, NEUTRAL).items():
        file = with_keys(golden_file, {key: value})
        config = target_config(file)
        assert config == plain
        assert any(key in note for note in unusual(file, config)), key


def test_a_scale_of_attention_that_is_the_usual_one_changes_nothing(tmp_path: Path) -> None:
    path = write_target(tmp_path / "a.gguf", TARGET_KEYS | {"qwen35.attention.scale": 16**-0.5})
    assert target_config(open_gguf(path)).notes == ("settings without effect: qwen35.attention.scale (0.25)",)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_what_converters_write_is_taken_in_silence(architecture: str) -> None:
    file = opened(architecture)
    written = {key: value for key, value in WRITTEN.items() if f"{architecture}.{key}" not in file.metadata}
    if architecture == "glm4":
        del written["rope.dimension_sections"]  # of its models for images, whose rows are in another order
    more = with_keys(file, written)
    config = target_config(dataclasses.replace(more, metadata={**more.metadata, **OTHER_NAMES}))
    assert config == target_config(file)
    assert config.notes == ()


def test_a_count_of_experts_is_read_or_refused(tmp_path: Path) -> None:
    """Only converters of Llama write it into dense files."""
    path = write_target(tmp_path / "a.gguf", TARGET_KEYS | {"qwen35.expert_used_count": 8})
    assert "qwen35.expert_used_count is 8" in refused(
        lambda path: target_config(open_gguf(path)), path, UnsupportedError
    )


def test_transformed_weights_are_refused(tmp_path: Path) -> None:
    rotated = {"prism.hadamard.enabled": True, "prism.hadamard.block_size": 1024}
    message = "weights are transformed (prism.hadamard.enabled, prism.hadamard.block_size), expected plain ones"
    path = write_target(tmp_path / "a.gguf", TARGET_KEYS | rotated)
    assert message in refused(lambda path: target_config(open_gguf(path)), path, UnsupportedError)
    assert message in refused(
        open_drafter, write_draft(tmp_path / "b.gguf", 0, draft_keys(0) | rotated), UnsupportedError
    )


def test_a_head_in_a_file_of_its_own() -> None:
    """A file with MTP blocks alone is read by its architecture, and so are its settings."""
    own, head = open_gguf(golden("tiny-F16.gguf")), with_keys(HEAD, {"attention.scale": 0.5})
    with pytest.raises(UnsupportedError, match=r"attention\.scale is 0\.5"):
        ARCHITECTURES["qwen35"].spec(head)
    assert find_head(HEAD, own, target_config(own))[0].index == 4


# Drafters


@pytest.mark.parametrize("flavour", range(3), ids=FLAVOURS)
def test_settings_of_a_drafter_in_gguf(tmp_path: Path, flavour: int) -> None:
    prefix = FLAVOURS[flavour]
    for key, value in {"attention.scale": 0.5, "residual_scale": 2.0, "swa_sinks": True, "new.size": 3}.items():
        path = write_draft(tmp_path / "a.gguf", flavour, draft_keys(flavour) | {f"{prefix}.{key}": value})
        assert f"a.gguf: {prefix}.{key} is {value!r}, expected a file without it" in refused(
            open_drafter, path, UnsupportedError
        )
    harmless = {"context_length": 64, "target_hidden_size": 32, "rope.dimension_sections": [8, 0, 0, 0]}
    keys = draft_keys(flavour) | {f"{prefix}.{key}": value for key, value in harmless.items()}
    assert open_drafter(write_draft(tmp_path / "a.gguf", flavour, keys))[0].notes == ()
    path = write_draft(tmp_path / "a.gguf", flavour, draft_keys(flavour) | {f"{prefix}.residual_scale": 1.0})
    config, _ = open_drafter(path)
    assert config.notes == (f"settings without effect: {prefix}.residual_scale (1.0)",)


@pytest.mark.parametrize("heads", [{}, TWO, SPARK], ids=["dflash", "dflash2", "dspark"])
@pytest.mark.parametrize("form", draft_files.FORMS)
def test_files_of_every_kind_open_without_a_note(tmp_path: Path, form: str, heads: dict[str, Any]) -> None:
    config, _ = open_drafter(write_drafter(tmp_path / "d", changed(PLAIN, **heads), form))
    assert config.notes == ()


# What public folders hold, beside what is read.
PUBLIC: dict[str, Any] = {
    "model_type": "qwen3", "auto_map": {"AutoModel": "dflash.DFlashDraftModel"}, "attention_dropout": 0.0,
    "dtype": "bfloat16", "torch_dtype": "bfloat16", "bos_token_id": None, "eos_token_id": 248046,
    "pad_token_id": 248044, "initializer_range": 0.02, "max_position_embeddings": 262144, "max_window_layers": 8,
    "tie_word_embeddings": False, "transformers_version": "5.10.2", "use_cache": True, "_name_or_path": "x",
    "mlp_bias": False, "pretraining_tp": 1, "return_dict": True, "output_attentions": False, "hidden_act": "silu",
}  # fmt: skip


def test_settings_of_a_folder(tmp_path: Path) -> None:
    folder = write_zlab(tmp_path / "small", ZLAB | PUBLIC)
    assert open_drafter(folder)[0].notes == ()
    inner = ZLAB["dflash_config"]
    for change in (
        {"quantization_config": {"quant_method": "fp8"}},
        {"residual_multiplier": 0.5},
        {"attention_sink_bias": True},
        {"dflash_config": inner | {"swa_window_size": 512}},
        {"dflash_config": inner | {"projector_type": "domino"}},
        {"sample_from_anchor": True},
    ):
        (folder / "config.json").write_text(json.dumps(ZLAB | change))
        key = list(change["dflash_config"])[-1] if "dflash_config" in change else next(iter(change))
        assert f"small/config.json: {key} is " in refused(open_drafter, folder, UnsupportedError)
    same = {"dflash_config": inner | {"projector_type": "dflash"}, "residual_multiplier": 1.0}
    (folder / "config.json").write_text(json.dumps(ZLAB | same | {"run_name": "a"}))
    assert open_drafter(folder)[0].notes == ("settings that are not known and not followed: run_name",)


@pytest.mark.parametrize(("heads", "usual"), [({}, 16), (TWO, 8), (SPARK, 7)], ids=["dflash", "dflash2", "dspark"])
def test_a_block_size_that_the_file_lacks_is_told(tmp_path: Path, heads: dict[str, Any], usual: int) -> None:
    made = changed(PLAIN, **heads)
    keys = without(gguf_keys(made), "dflash.block_size")
    weights = draft_files.random_weights(made)
    config, _ = open_drafter(write_gguf(tmp_path / "a.gguf", keys, weights))
    assert config.block_size == usual
    title = KINDS[config.kind].title
    assert config.notes == (f"the drafter's file has no block size: {usual} is taken, as usual for {title}",)
    target: ModelSpec = target_config(open_gguf(golden("tiny-F16.gguf")))
    fitting = dataclasses.replace(config, embedding_length=256, vocab_size=768)
    assert config.notes[0] in check_pair(target, fitting, None)


def test_a_refusal_names_the_key_of_the_files_own_converter(tmp_path: Path) -> None:
    for flavour, key in enumerate(("dflash.target_layers", "dflash-draft.dflash.target_layer_ids")):
        path = write_draft(tmp_path / "a.gguf", flavour, without(draft_keys(flavour), key))
        assert refused(open_drafter, path).startswith(f"a.gguf has no {key}, expected a list")


@pytest.mark.parametrize("flavour", range(2), ids=FLAVOURS[:2])
def test_a_pattern_of_windows_may_be_numbers(tmp_path: Path, flavour: int) -> None:
    key = f"{FLAVOURS[flavour]}.attention.sliding_window_pattern"
    config, _ = open_drafter(write_draft(tmp_path / "a.gguf", flavour, draft_keys(flavour) | {key: [1, 0]}))
    assert config.sliding == (True, False)
    assert "is [2, 0], expected true or false" in refused(
        open_drafter, write_draft(tmp_path / "a.gguf", flavour, draft_keys(flavour) | {key: [2, 0]})
    )


def test_a_list_of_layers_may_leave_out_the_mtp_blocks() -> None:
    keys = {"nextn_predict_layers": 1, "block_count": 3, "attention.recurrent_layers": [True, False]}
    file = with_keys(golden("tiny-F16.gguf"), keys)
    kinds = [type(layer.mixer).__name__ for layer in ARCHITECTURES["qwen35"].spec(file).layers]
    assert kinds == ["DeltaNet", "Attention"]


def test_yarn_beside_the_context_of_the_training() -> None:
    """The context is what YaRN scales to; a header that says more already stays."""
    yarn = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 2048}
    for context, expected in ((2048, 8192), (8192, 8192), (16384, 16384)):
        file = with_keys(target_path("q3-F16.gguf"), yarn | {"context_length": context})
        assert target_config(file).context_length == expected
    linear = {"rope.scaling.type": "linear", "rope.scaling.factor": 8.0}
    assert target_config(with_keys(target_path("q3-F16.gguf"), linear)).context_length == 4096


def test_the_config_of_a_folder_is_still_what_it_says(tmp_path: Path) -> None:
    """The tables of harmless names hide nothing that is read."""
    made = changed(PLAIN, **TWO, embedding_scale=2.0, logit_scale=0.5, softcap=30.0)
    assert zlab_config(made)["dflash_config"]["output_multiplier"] == 0.5
    config, _ = open_drafter(write_drafter(tmp_path / "d", made))
    assert (config.heads.embedding_scale, config.heads.logit_scale, config.heads.softcap) == (2.0, 0.5, 30.0)
