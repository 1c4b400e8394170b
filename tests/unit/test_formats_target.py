"""Target configurations: what golden files say, what is accepted, and every refusal in its own words."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dflash_core.arch.kinds import Attention, DeltaNet, SwiGLU
from dflash_core.arch.spec import LayerSpec, ModelSpec
from dflash_core.config import (
    DraftConfig,
    check_pair,
    paired,
    target_config,
    unusual,
)
from dflash_core.drafters.dflash import open_drafter
from dflash_core.errors import DFlashError, FormatError, MismatchError, UnsupportedError
from dflash_core.formats.gguf import GGUFFile, open_gguf
from dflash_core.formats.groups import types_by_group
from support.formats import ATTENTION, EVERY, NEXTN, TARGET_KEYS, TARGET_SHAPES, blocks, without, write_target
from support.golden import golden, goldens

FULL = Attention(heads=2, kv_heads=1, head_dim=256, rotary=64, rope_base=1e7, eps=1e-6, gate="sigmoid")
LINEAR = DeltaNet(key_heads=2, value_heads=4, key_dim=128, value_dim=128, conv_kernel=4, eps=1e-6)
TINY = ModelSpec(
    name="Tiny", architecture="qwen35", context_length=4096, embedding_length=256, vocab_size=768, rms_eps=1e-6,
    layers=tuple(LayerSpec(mixer, SwiGLU(512), "post_attention_norm.weight") for mixer in (*(LINEAR,) * 3, FULL)),
    file_type="F16",
)  # fmt: skip


def config_of(path: Path, keys: dict[str, Any] = TARGET_KEYS, shapes: Any = TARGET_SHAPES) -> ModelSpec:
    return target_config(open_gguf(write_target(path / "a.gguf", keys, shapes)))


def refusal(path: Path, error: type[DFlashError], keys: Any = TARGET_KEYS, shapes: Any = TARGET_SHAPES) -> str:
    with pytest.raises(error) as caught:
        config_of(path, keys, shapes)
    return str(caught.value).removeprefix(f"{path}/")


@pytest.mark.parametrize("path", goldens("tiny-[!dlm]*.gguf"), ids=lambda path: path.stem)
def test_golden_configurations(path: Path) -> None:
    file_type = path.stem.removeprefix("tiny-")
    assert target_config(open_gguf(path)) == dataclasses.replace(TINY, file_type=file_type)


def test_derived_sizes() -> None:
    config = target_config(open_gguf(golden("tiny-Q4_K_M.gguf")))
    assert (len(config.of(DeltaNet)), len(config.of(Attention)), LINEAR.channels, LINEAR.inner) == (3, 1, 1024, 512)
    assert config.mixers == {LINEAR: (0, 1, 2), FULL: (3,)}
    assert config.tensors().keys() == open_gguf(golden("tiny-Q4_K_M.gguf")).tensors.keys()


def test_what_inspect_shows_of_a_golden_file() -> None:
    opened = open_gguf(golden("tiny-Q4_K_M.gguf"))
    assert unusual(opened, target_config(opened)) == ("mixed types: Q4_K 28, Q6_K 5",)
    groups = types_by_group(opened)
    assert groups["output"] == {"Q6_K": (1, 161_280)}
    assert groups["delta net"] == {"Q4_K": (14, 740_736), "F32": (9, 49_248), "Q6_K": (1, 215_040)}
    assert groups.keys() == {"norms", "embedding", "output", "feed-forward", "delta net", "attention"}
    assert sum(size for types in groups.values() for _, size in types.values()) == sum(
        info.n_bytes for info in opened.tensors.values()
    )


# A file of the same model with a multi-token-prediction block

MTP_KEYS = TARGET_KEYS | {"qwen35.block_count": 3, "qwen35.nextn_predict_layers": 1}
CONTROL = ("qwen35.attention.recurrent_layers", "qwen35.rope.scaling.type", "tokenizer.ggml.token_type")
MTP_SHAPES = TARGET_SHAPES | blocks(2, EVERY, ATTENTION, NEXTN)


def test_mtp_tensors_are_accepted_and_counted(tmp_path: Path) -> None:
    plain = config_of(tmp_path)
    config = config_of(tmp_path, MTP_KEYS, MTP_SHAPES)
    assert config == dataclasses.replace(plain, nextn_predict_layers=1, nextn=plain.layers[1])
    opened = open_gguf(tmp_path / "a.gguf")
    assert "1 MTP block(s), 14 tensors, 48.6 KiB: what the mtp drafter runs" in unusual(opened, config)
    assert types_by_group(opened)["MTP"] == {"F32": (14, 49_792)}


def test_a_layer_of_the_trunk_is_no_mtp_block(tmp_path: Path) -> None:
    """If it counted as one, it would be left out, and the model would run without it."""
    shapes = {name: shape for name, shape in MTP_SHAPES.items() if ".nextn." not in name}
    assert refusal(tmp_path, FormatError, MTP_KEYS, shapes) == (
        "a.gguf: nextn_predict_layers is 1 and block 2 has no nextn tensors, expected an MTP block after the layers;"
        " convert the model again"
    )
    without_any = without(TARGET_SHAPES, *(name for name in TARGET_SHAPES if name.startswith("blk.2.")))
    assert config_of(tmp_path, MTP_KEYS, without_any).nextn_predict_layers == 1


def test_a_file_of_mtp_blocks_only(tmp_path: Path) -> None:
    shapes = {name: shape for name, shape in MTP_SHAPES.items() if not name.startswith(("blk.0.", "blk.1."))}
    assert refusal(tmp_path, UnsupportedError, MTP_KEYS, shapes) == (
        "a.gguf holds only the MTP blocks of a model; give it as the draft, together with the model's own file"
    )


def test_tied_head_padding_and_missing_tokenizer(tmp_path: Path) -> None:
    config = config_of(tmp_path, shapes=without(TARGET_SHAPES, "output.weight"))
    assert config.tied_output
    keys = TARGET_KEYS | {"tokenizer.ggml.tokens": ["a", "b", "c"], "tokenizer.ggml.token_type": [1, 1, 5]}
    opened = open_gguf(write_target(tmp_path / "b.gguf", keys, without(TARGET_SHAPES, "output.weight")))
    assert unusual(opened, config) == (
        "tied head: the embedding is also the output matrix",
        "2 of 4 vocabulary rows are padding",
    )
    bare = open_gguf(write_target(tmp_path / "c.gguf", without(TARGET_KEYS, "tokenizer.ggml.tokens")))
    assert unusual(bare, target_config(bare)) == ("no tokenizer in the file",)


def test_the_file_may_choose_its_attention_layers(tmp_path: Path) -> None:
    linear = {name.replace("blk.0.", "blk.1."): shape for name, shape in TARGET_SHAPES.items() if "blk.0." in name}
    attention = {name.replace("blk.1.", "blk.0."): shape for name, shape in TARGET_SHAPES.items() if "blk.1." in name}
    rest = {name: shape for name, shape in TARGET_SHAPES.items() if not name.startswith("blk.")}
    keys = TARGET_KEYS | {"qwen35.attention.recurrent_layers": [False, True]}
    config = config_of(tmp_path, keys, rest | linear | attention)
    assert [type(layer.mixer) for layer in config.layers] == [Attention, DeltaNet]
    assert "the file itself names its full-attention layers: 0" in unusual(open_gguf(tmp_path / "a.gguf"), config)
    assert refusal(tmp_path, FormatError, keys | {"qwen35.attention.recurrent_layers": [True]}) == (
        "a.gguf: qwen35.attention.recurrent_layers is [True], expected true or false, or a list of 2 of them;"
        " convert the model again"
    )


def test_per_layer_head_counts_are_accepted_where_they_agree(tmp_path: Path) -> None:
    assert config_of(tmp_path, TARGET_KEYS | {"qwen35.attention.head_count_kv": [0, 1]}) == config_of(tmp_path)
    assert "head_count is [2, 4], expected one whole number, the same for all layers" in refusal(
        tmp_path, FormatError, TARGET_KEYS | {"qwen35.attention.head_count": [2, 4]}
    )


def test_default_interval_is_four(tmp_path: Path) -> None:
    message = refusal(tmp_path, FormatError, without(TARGET_KEYS, "qwen35.full_attention_interval"))
    assert "11 of 33 tensors are missing: blk.1.attn_qkv.weight" not in message
    assert "tensors are missing: blk.1.attn_qkv.weight, blk.1.attn_gate.weight" in message


KNOWN = (
    "qwen35, qwen35moe, qwen3, qwen3moe, qwen3vl, qwen3vlmoe, qwen2, qwen2vl, llama, mistral3, smollm3, granite,"
    " seed_oss, phi3, glm4, gemma3, gemma4, gpt-oss, laguna"
)


@pytest.mark.parametrize(
    ("architecture", "message"),
    [
        ("glm4moe", f"a.gguf has the architecture glm4moe, expected {KNOWN}"),
        ("gptoss", f"a.gguf has the architecture gptoss, expected {KNOWN}"),
        ("dflash", f"a.gguf is a DFlash drafter (dflash), expected a target model ({KNOWN}); give it as the"),
        ("dflash-draft", f"a.gguf is a DFlash drafter (dflash-draft), expected a target model ({KNOWN}); give it as"),
        ("gemma4-assistant", "a.gguf is an assistant of Gemma's (gemma4-assistant), expected a target model"),
    ],
)  # fmt: skip
def test_other_architectures(tmp_path: Path, architecture: str, message: str) -> None:
    assert refusal(tmp_path, UnsupportedError, TARGET_KEYS | {"general.architecture": architecture}).startswith(message)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"block_count": 0}, "a.gguf: qwen35.block_count is 0, expected a whole number from 1 to 1,024; convert the"),
        ({"block_count": "2"}, "a.gguf: qwen35.block_count is '2', expected a whole number from 1 to 1,024"),
        ({"block_count": 4_000_000_000}, "qwen35.block_count is 4000000000, expected a whole number from 1 to 1,024"),
        ({"nextn_predict_layers": 2}, "qwen35.nextn_predict_layers is 2, expected a whole number from 0 to 1"),
        ({"rope.freq_base": 0.0}, "qwen35.rope.freq_base is 0.0, expected a positive number"),
        ({"rope.freq_base": float("nan")}, "qwen35.rope.freq_base is nan, expected a positive number"),
        ({"attention.layer_norm_rms_epsilon": 7}, "qwen35.attention.layer_norm_rms_epsilon is 7, expected a positive "
         "number under 1; convert"),
        ({"rope.dimension_count": 32}, "qwen35.rope.dimension_count is 32, expected a whole number from 2 to 16"),
        ({"rope.dimension_count": 5}, "a.gguf: rope.dimension_count is 5, expected an even number"),
        ({"attention.head_count": 3, "attention.head_count_kv": 2}, "expected a multiple of attention.head_count_kv"),
        ({"ssm.time_step_rank": 5}, "ssm.time_step_rank is 5, expected a multiple of ssm.group_count (2)"),
        ({"ssm.inner_size": 50}, "ssm.inner_size is 50, expected a multiple of ssm.time_step_rank (6)"),
        ({"embedding_length": 16}, "tensor token_embd.weight has shape [4, 32], expected [4, 16] from the file's own"),
        ({"context_length": [1, 2]}, "qwen35.context_length is [1, 2], expected a whole number"),
    ],
)  # fmt: skip
def test_settings_out_of_range(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    keys = TARGET_KEYS | {"qwen35." + key: value for key, value in change.items()}
    assert message in refusal(tmp_path, FormatError, keys)


OPTIONAL = ("qwen35.attention.value_length", "qwen35.full_attention_interval")


@pytest.mark.parametrize("key", [key for key in TARGET_KEYS if key.startswith("qwen35.") and key not in OPTIONAL])
def test_every_setting_is_needed(tmp_path: Path, key: str) -> None:
    message = refusal(tmp_path, FormatError, without(TARGET_KEYS, key))
    assert message.startswith(f"a.gguf has no {key}, expected ")
    assert message.endswith("; convert it again")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rope.scaling.type": "dynamic"}, "a.gguf scales its rotary positions by dynamic, expected none, linear or"),
        ({"pooling_type": 1}, "a.gguf holds no model to chat with: embedding or reranker model, expected one that"),
        ({"attention.value_length": 32}, "a.gguf: attention.value_length is 32, expected 16, the key length"),
    ],
)
def test_settings_nothing_here_implements(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    keys = TARGET_KEYS | {"qwen35." + key: value for key, value in change.items()}
    assert message in refusal(tmp_path, UnsupportedError, keys)


@pytest.mark.parametrize(
    ("stated", "said"),
    [
        ({"general.type": "adapter"}, "LoRA adapter, expected one that generates text; merge it into its model"),
        ({"general.type": "mmproj"}, "vision encoder, expected one that generates text; give the model's own file"),
        ({"general.architecture": "clip"}, "vision encoder, expected one that"),
        ({"general.type": "imatrix"}, "imatrix file, expected one that"),
        ({"general.architecture": "nomic-bert"}, "embedding or reranker model, expected one that"),
        ({"general.type": "da\nta"}, "da ta file, expected one that"),
    ],
)
def test_files_that_are_no_model_are_named(tmp_path: Path, stated: dict[str, str], said: str) -> None:
    """Before their settings are read: an adapter has its model's architecture and few of its settings."""
    keys = without(TARGET_KEYS, "qwen35.attention.layer_norm_rms_epsilon") | stated
    assert f"a.gguf holds no model to chat with: {said}" in refusal(tmp_path, UnsupportedError, keys)


def test_missing_tensors_are_listed(tmp_path: Path) -> None:
    assert refusal(tmp_path, FormatError, shapes=without(TARGET_SHAPES, "blk.0.ssm_a", "token_embd.weight")) == (
        "a.gguf: 2 of 28 tensors are missing: token_embd.weight, blk.0.ssm_a;"
        " the file is incomplete or made for another program"
    )
    few = {name: shape for name, shape in TARGET_SHAPES.items() if not name.startswith("blk.1.ffn")}
    assert "3 of 28 tensors are missing: blk.1.ffn_gate.weight, blk.1.ffn_up.weight, blk.1.ffn_down.weight;" in refusal(
        tmp_path, FormatError, shapes=few
    )


def test_wrong_shapes_are_named(tmp_path: Path) -> None:
    assert refusal(tmp_path, FormatError, shapes=TARGET_SHAPES | {"blk.1.attn_q.weight": (32, 32)}) == (
        "a.gguf: tensor blk.1.attn_q.weight has shape [32, 32], expected [64, 32] from the file's own settings;"
        " convert the model again"
    )


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"blk.0.ffn_up.scale": (1,)}, "blk.0.ffn_up.scale multiplies a tensor of type F32, expected NVFP4; "),
        ({"blk.1.attn_qkv.weight": (96, 32)}, "1 tensors have no meaning here: blk.1.attn_qkv.weight; running without"),
        ({"blk.0.attn_q.bias": (8,)}, "1 tensors have no meaning here: blk.0.attn_q.bias; running without them would"),
        ({"blk.2.attn_norm.weight": (32,)}, "1 tensors have no meaning here: blk.2.attn_norm.weight"),
        ({"evil\x1b[2J": (8,)}, r"no meaning here: 'evil\x1b[2J'"),
    ],
    ids=lambda value: value[:30] if isinstance(value, str) else "file",
)
def test_unknown_tensors(tmp_path: Path, extra: dict[str, tuple[int, ...]], message: str) -> None:
    assert message in refusal(tmp_path, UnsupportedError, shapes=TARGET_SHAPES | extra)


def test_names_from_a_file_cannot_drive_the_terminal(tmp_path: Path) -> None:
    assert config_of(tmp_path, TARGET_KEYS | {"general.name": "A\x1b[2J\nB"}).name == "A[2JB"
    assert config_of(tmp_path, without(TARGET_KEYS, "general.name")).name == "a"


JUNK = st.one_of(
    st.booleans(), st.integers(-(2**31), 2**32 - 1), st.floats(), st.text(max_size=4),
    st.lists(st.integers(), max_size=3), st.lists(st.text(max_size=3), max_size=3), st.lists(st.booleans(), max_size=3),
)  # fmt: skip


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(changes=st.dictionaries(st.sampled_from([*TARGET_KEYS, *MTP_KEYS, *CONTROL]), JUNK, max_size=3))
def test_fuzz_metadata(tmp_path: Path, changes: dict[str, Any]) -> None:
    """For any metadata: a configuration or a refusal, never another error."""
    if not (path := tmp_path / "a.gguf").exists():
        write_target(path)
    opened = open_gguf(path)
    changed = GGUFFile(path, opened.tensors, opened.shards, 3, {**opened.metadata, **changes})
    with contextlib.suppress(DFlashError):
        unusual(changed, target_config(changed))


# Target and drafter together


@pytest.fixture
def drafter() -> DraftConfig:
    return open_drafter(golden("tiny-dflash"))[0]


def test_a_pair_that_fits(drafter: DraftConfig) -> None:
    assert check_pair(TINY, drafter, None) == ()
    assert paired(TINY, drafter, None) == drafter


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"embedding_length": 512}, "hidden size 512, expected 256;"),
        ({"target_layers": (0, 4)}, "reads target layer 4, expected 0 to 3;"),
        ({"target_block_count": 64}, "made for 64 target layers, expected 4;"),
        ({"vocab_size": 248_320}, "vocabulary of 248,320 tokens, expected 768;"),
        ({"mask_token_id": 768}, "mask token 768, expected an id under 768;"),
        ({"mask_token_id": None}, "no mask token in its file nor in the target's;"),
    ],
)
def test_a_drafter_made_for_another_target(drafter: DraftConfig, change: dict[str, Any], message: str) -> None:
    with pytest.raises(MismatchError) as caught:
        check_pair(TINY, dataclasses.replace(drafter, **change), None)
    assert str(caught.value) == (
        f"drafter tiny-dflash does not fit target Tiny: {message} use the drafter that was made for this target"
    )


def test_a_rotary_base_comes_from_either_file(drafter: DraftConfig) -> None:
    """A target without attention layers has none to give."""
    recurrent = dataclasses.replace(TINY, layers=TINY.layers[:3])
    own = dataclasses.replace(drafter, flavour="lucebox", target_block_count=None, target_layers=(0,))
    assert paired(recurrent, own, None).rope_freq_base == drafter.rope_freq_base
    assert not check_pair(recurrent, own, None)
    with pytest.raises(MismatchError, match="no rotary base in its file, and no attention layer in the target to take"):
        check_pair(recurrent, dataclasses.replace(own, rope_freq_base=0.0), None)


def test_all_mismatches_are_said_at_once(drafter: DraftConfig) -> None:
    other = dataclasses.replace(drafter, embedding_length=5120, target_block_count=64, vocab_size=248_320)
    with pytest.raises(MismatchError) as caught:
        check_pair(TINY, other, None)
    assert str(caught.value) == (
        "drafter tiny-dflash does not fit target Tiny: hidden size 5120, expected 256; made for 64 target layers,"
        " expected 4; vocabulary of 248,320 tokens, expected 768; use the drafter that was made for this target"
    )


def test_what_a_pair_fills_in_is_said(drafter: DraftConfig) -> None:
    slower = LayerSpec(dataclasses.replace(FULL, rope_base=1e6), SwiGLU(512))
    target = dataclasses.replace(TINY, nextn_predict_layers=1, layers=(*TINY.layers[:3], slower))
    lucebox = dataclasses.replace(drafter, flavour="lucebox", mask_token_id=None)
    assert check_pair(target, lucebox, 700) == (
        "the drafter names no mask token: 700 is taken from the target",
        "the drafter's rope base is 1e+07: the target's 1e+06 is used",
        "the target's 1 MTP block(s) are not used",
    )
    whole = paired(target, lucebox, 700)
    assert (whole.mask_token_id, whole.rope_freq_base) == (700, 1e6)
    absent = dataclasses.replace(lucebox, rope_freq_base=0.0, sliding_window=24, sliding=(True, False))
    assert check_pair(TINY, absent, 700)[1:] == (
        "the drafter's rope base is absent: the target's 1e+07 is used",
        "1 of 2 drafter layers see only the last 24 positions",
    )
    assert check_pair(TINY, drafter, 700) == ("mask token: the drafter's 765 is used, the target's is 700",)
    assert paired(target, drafter, None).rope_freq_base == 1e7
