"""What files of the families may say, and what is refused: patterns of windows, lists per layer, unused tensors."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_core import load_target
from dflash_core.arch.architecture import Head
from dflash_core.arch.kinds import Attention, Experts, SwiGLU
from dflash_core.arch.registry import ARCHITECTURES
from dflash_core.arch.rope import UNROTATED
from dflash_core.arch.spec import ModelSpec
from dflash_core.config import read_target, unusual
from dflash_core.drafters import assistant
from dflash_core.drafters.draft import TargetHeader
from dflash_core.drafters.registry import open_draft
from dflash_core.errors import Code, DFlashError, FormatError, MismatchError, UnsupportedError
from dflash_core.formats.gguf import open_gguf
from dflash_core.formats.metadata import Settings
from dflash_tui.application import advice
from support.gguf_copy import Stored, stored, write_copy
from support.golden import as_architecture, golden, other_models, other_targets, target_path
from support.mtp_files import HEAD

LLAMA, GEMMA3, GEMMA4 = "llama-mistral-F16.gguf", "gemma3-Q8_0.gguf", "gemma4-e-F16.gguf"
MTP = "q35moe-mtp-Q8_0.gguf"
GPT_OSS, LAGUNA = "gptoss-MXFP4.gguf", "laguna-Q8_0.gguf"
ASSISTANT = "gemma4-e-assistant-F16.gguf"


def spec(name: str, changes: dict[str, Any] | None = None, without: tuple[str, ...] = ()) -> ModelSpec:
    """The model of a golden file with some settings changed, which are named without the architecture."""
    file = open_gguf(target_path(name))
    prefix = file.metadata["general.architecture"]
    keys = {**file.metadata, **{f"{prefix}.{key}": value for key, value in (changes or {}).items()}}
    for key in without:
        del keys[f"{prefix}.{key}"]
    return read_target(dataclasses.replace(file, metadata=keys))[1]


def windows(found: ModelSpec) -> str:
    """w for a layer with a window, f for one that sees all."""
    return "".join("w" if layer.window else "f" for layer in found.of(Attention))


@pytest.mark.parametrize(
    ("pattern", "layers"),
    [
        (None, "wwwwwfw"),
        (6, "wwwwwfw"),
        ([6], "wwwwwfw"),
        (2, "wfwfwfw"),
        ([1], "fffffff"),
        (0, "wwwwwww"),
        (True, "wwwwwww"),
        (False, "fffffff"),
        ([True], "wwwwwww"),
        ([False], "fffffff"),
        ([True, False, True, True, False, True, True], "wfwwfww"),
        ([1, 0, 1, 1, 0, 1, 1], "wfwwfww"),
    ],
)
def test_patterns_of_windows(pattern: object, layers: str) -> None:
    """As flags, as 1 and 0, one for all, or as a period of which the last layer sees all."""
    assert windows(spec(GEMMA3, {"attention.sliding_window_pattern": pattern} if pattern is not None else {})) == layers


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ([True, False], "sliding_window_pattern is [True, False], expected true or false, or a list of 7 of them"),
        ([0, 1, 2, 0, 0, 0, 0], "sliding_window_pattern is [0, 1, 2, 0, 0, 0, 0], expected true or false, or a list"),
        (-1, "sliding_window_pattern is -1, expected a whole number from 0 to 1,024"),
        ("x", "sliding_window_pattern is 'x', expected a whole number from 0 to 1,024"),
        ([], "sliding_window_pattern is [], expected true or false, or a list of 7 of them"),
    ],
)
def test_patterns_that_are_none(pattern: object, words: str) -> None:
    with pytest.raises(FormatError) as caught:
        spec(GEMMA3, {"attention.sliding_window_pattern": pattern})
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_fixed_patterns() -> None:
    assert windows(spec(GPT_OSS)) == "wfwf"
    assert windows(spec(LAGUNA)) == "fwwwf"
    assert windows(spec(GEMMA4)) == "wwfwwf"


def test_numbers_may_be_lists_with_an_entry_per_layer() -> None:
    """Of equal entries where layers are alike, and of their own where they are not."""
    plain = spec(LLAMA)
    more = {"attention.head_count": [6] * 3, "attention.head_count_kv": [2] * 3, "feed_forward_length": [96] * 3}
    assert spec(LLAMA, more) == plain
    for odd in ([6, 6, 4], [6, 6], [6] * 4):
        with pytest.raises(FormatError, match=r"head_count is \[6, 6.*\], expected one whole number, the same for all"):
            spec(LLAMA, {"attention.head_count": odd})
    assert [layer.heads for layer in spec(LAGUNA).of(Attention)] == [4, 6, 6, 6, 4]
    widths = [layer.ffn.width for layer in spec(GEMMA4).layers if isinstance(layer.ffn, SwiGLU)]
    assert widths == [64, 64, 64, 128, 128, 128]
    with pytest.raises(FormatError, match=r"head_count is \[4, 6\], expected a whole number, or a list of 5 of them"):
        spec(LAGUNA, {"attention.head_count": [4, 6]})
    with pytest.raises(FormatError, match="a layer has 5 heads over 2 heads of keys, expected a multiple"):
        spec(LAGUNA, {"attention.head_count": [4, 6, 5, 6, 4]})
    with pytest.raises(FormatError, match="a layer has 0 heads"):
        spec(LAGUNA, {"attention.head_count": 0})


@pytest.mark.parametrize("fewer", [0, 1])
def test_lists_with_and_without_the_mtp_blocks(fewer: int) -> None:
    """Of block_count entries, or of as many as the trunk has layers; those without attention may have 0 heads."""
    plain = spec(MTP)
    count = plain.block_count + plain.nextn_predict_layers - fewer
    heads, key_heads = plain.of(Attention)[0].heads, plain.of(Attention)[0].kv_heads
    more: dict[str, Any] = {"attention.head_count": [heads] * count, "feed_forward_length": [64] * count}
    more["attention.head_count_kv"] = [key_heads if (at + 1) % 4 == 0 else 0 for at in range(count)]
    assert spec(MTP, more) == plain


@pytest.mark.parametrize("name", [LLAMA, GEMMA3, GEMMA4, GPT_OSS, LAGUNA])
def test_mtp_blocks_of_a_family_without_any(name: str) -> None:
    with pytest.raises(UnsupportedError, match="nextn_predict_layers is 1, expected a file without it"):
        spec(name, {"nextn_predict_layers": 1})


def test_what_llama_files_leave_out() -> None:
    """The key length where heads fill a row, the base and the heads of keys of Llama 2."""
    found = spec(LLAMA, without=("rope.freq_base",)).of(Attention)[0]
    assert (found.rope_base, found.interleaved, found.qk_norm) == (1e4, True, False)
    with pytest.raises(FormatError, match=r"rope.dimension_count is 32, expected 64, all of a head"):
        spec(LLAMA, {"rope.dimension_count": 32})
    with pytest.raises(DFlashError, match=r"shape \[384, 64\], expected \[60, 64\] from the file's own settings"):
        spec(LLAMA, without=("attention.key_length", "attention.value_length", "rope.dimension_count"))


def test_experts_of_mixtral_are_as_wide_as_a_feed_forward() -> None:
    file = open_gguf(target_path(LLAMA))
    keys = {"expert_count": 8, "expert_used_count": 2}
    for more, width in (({}, 96), ({"expert_feed_forward_length": 32}, 32)):
        mixtral = as_architecture(file, "llama", **keys, **more)
        ffn = (
            ARCHITECTURES["llama"]
            .read(Settings("a.gguf", mixtral.metadata, "llama."), Head.of(file.tensors))
            .layers[0]
            .ffn
        )
        assert isinstance(ffn, Experts)
        assert (ffn.count, ffn.used, ffn.width) == (8, 2, width)


def test_scaling_of_rotary_positions() -> None:
    """Gemma 3 scales layers that see all, GPT-OSS all of them, without rounding YaRN's range to whole pairs."""
    scaled = spec(GEMMA3, {"rope.scaling.type": "linear", "rope.scaling.factor": 8.0}).of(Attention)
    assert {(bool(layer.window), layer.scaling is not None) for layer in scaled} == {(True, False), (False, True)}
    for layer in spec(GPT_OSS).of(Attention):
        assert layer.scaling is not None
        assert not layer.scaling.truncate  # type: ignore[union-attr]


def test_routers() -> None:
    experts = [layer.ffn for layer in spec(LAGUNA).layers[1:]]
    assert all(isinstance(one, Experts) and one.router == "sigmoid" and one.choice_bias for one in experts)
    with pytest.raises(UnsupportedError, match="expert_gating_func is 1, expected 2, a sigmoid over all experts"):
        spec(LAGUNA, {"expert_gating_func": 1})
    with pytest.raises(UnsupportedError, match="expert_gating_func is 2, expected 1, a softmax over all experts"):
        spec(GPT_OSS, {"expert_gating_func": 2})


def test_layers_that_share_keys() -> None:
    assert [layer.kv_from for layer in spec(GEMMA4).of(Attention)] == [None, None, None, 1, 1, 2]
    with pytest.raises(FormatError, match="shared_kv_layers leaves 2 layers with keys of their own, expected a"):
        spec(GEMMA4, {"attention.shared_kv_layers": 4})


DRAFTERS = [
    golden("tiny-dflash"), HEAD,
    *(path for pattern in ("*dflash*", "*assistant*.gguf") for path in other_targets(pattern) if path.suffix != ".npz"),
]  # fmt: skip


@pytest.mark.parametrize("path", DRAFTERS, ids=lambda path: path.name)
def test_a_drafter_of_another_family_is_refused(path: Path) -> None:
    """Whatever kind it is, offered for a target of each family, before weights are read; each in one line."""
    fitting, refusals = set(), list[str]()
    for target in [golden("tiny-F16.gguf"), *other_models()]:
        header = open_gguf(target)
        try:
            open_draft(path, TargetHeader(header, read_target(header)[1]))
        except MismatchError as error:
            refusals.append(str(error))
        else:
            fitting.add(read_target(header)[1].architecture.removesuffix("moe"))  # a sibling's is noted
    assert len(fitting) <= 1
    assert refusals
    assert all("does not fit target" in one and "\n" not in one for one in refusals)


def test_suppressed_tokens_have_no_probability(tmp_path: Path) -> None:
    reader = gguf.GGUFReader(target_path(GEMMA4))
    path = write_copy(tmp_path / "a.gguf", reader, stored(reader), {"tokenizer.ggml.suppress_tokens": [3, 300]})
    logits, plain = load_target(path).logits([5, 6, 7]), load_target(target_path(GEMMA4)).logits([5, 6, 7])
    assert np.isneginf(logits[:, [3, 300]]).all()
    rest = np.delete(np.arange(logits.shape[1]), [3, 300])
    np.testing.assert_array_equal(logits[:, rest], plain[:, rest])


@pytest.mark.parametrize("name", [GEMMA3, GEMMA4])
def test_tensors_for_images_and_of_shared_layers_are_left_out(name: str, tmp_path: Path) -> None:
    """Some files hold the image part too, older ones keys of layers that read those of others."""
    reader = gguf.GGUFReader(target_path(name))
    f32 = gguf.GGMLQuantizationType.F32
    more = [Stored("v.blk.0.attn_q.weight", np.ones((4, 8), np.float32), f32)]
    more += [Stored("mm.input_projection.weight", np.ones((4, 8), np.float32), f32)]
    if name == GEMMA4:
        more += [Stored("blk.4.attn_k.weight", np.ones((256, 32), np.float32), f32)]
    path = write_copy(tmp_path / "a.gguf", reader, [*stored(reader), *more])
    file, found = read_target(open_gguf(path))
    assert "2 tensors for images and sound are not used: the model reads only text" in unusual(file, found)
    ids = [5, 6, 7, 8]
    np.testing.assert_array_equal(load_target(path).logits(ids), load_target(target_path(name)).logits(ids))


def test_an_unknown_architecture_is_refused_in_a_short_line() -> None:
    file = open_gguf(target_path(LLAMA))
    with pytest.raises(UnsupportedError) as caught:
        read_target(dataclasses.replace(file, metadata=file.metadata | {"general.architecture": "falcon"}))
    assert caught.value.code == Code.UNKNOWN_ARCHITECTURE
    for text in (advice.on_command_line(caught.value), advice.in_app(caught.value)):
        assert text.endswith("(dflash-tui models lists what runs)")
        assert "Ctrl+R" not in text
        assert len(text.removeprefix(str(file.path))) < 240


VALUES = st.none() | st.booleans() | st.integers(-2, 1 << 33) | st.floats() | st.text(max_size=5)
VALUES |= st.lists(st.integers(-1, 9) | st.booleans() | st.floats() | st.text(max_size=2), max_size=8)


@settings(deadline=None, max_examples=150)
@given(st.sampled_from([LLAMA, GEMMA3, GEMMA4, GPT_OSS, LAGUNA, ASSISTANT]), st.data())
def test_any_setting_is_read_or_refused(name: str, data: st.DataObject) -> None:
    """In one line, whatever it is."""
    file = open_gguf(target_path(name))
    prefix = f"{file.metadata['general.architecture']}."
    keys = sorted(key for key in file.metadata if key.startswith(prefix))
    changed = data.draw(st.dictionaries(st.sampled_from(keys), VALUES, min_size=1, max_size=3))
    other = dataclasses.replace(file, metadata={**file.metadata, **changed})
    with contextlib.suppress(DFlashError):  # whose message is one line
        if name == ASSISTANT:
            header = open_gguf(target_path(GEMMA4))
            assistant.opened(other, TargetHeader(header, read_target(header)[1]))
        else:
            unusual(*read_target(other))


@pytest.mark.parametrize(("plain", "images"), [("q3-Q8_0.gguf", "qwen3vl"), ("q3moe-Q8_0.gguf", "qwen3vlmoe")])
def test_for_text_a_model_for_images_is_the_plain_one(plain: str, images: str) -> None:
    file = open_gguf(target_path(plain))
    more = as_architecture(file, images, rope__dimension_sections=[24, 20, 20, 0], n_deepstack_layers=3)
    own = str(file.metadata["general.architecture"])
    assert dataclasses.replace(read_target(more)[1], architecture=own) == read_target(file)[1]


def test_the_factors_of_granite() -> None:
    """The stream is stored without the factor of what is added to it; 0 stands for 1, and false for no positions."""
    scales = {"embedding_scale": 12.0, "residual_scale": 0.25, "attention__scale": 0.01, "logit_scale": 16.0}
    plain = open_gguf(target_path(LLAMA))
    eps = read_target(plain)[1].rms_eps

    def found(**keys: Any) -> tuple[float, float, float, float]:
        one = read_target(as_architecture(plain, "granite", **keys))[1]
        return one.embedding_scale, one.rms_eps, one.logit_scale, one.of(Attention)[0].score_scale

    assert found(**scales) == pytest.approx((48, eps * 16, 1 / 16, 0.01))
    assert found(**dict.fromkeys(scales, 0.0)) == found() == (1, eps, 1, 64**-0.5)
    for flag, scaling in ((True, None), (False, UNROTATED)):
        of = read_target(as_architecture(plain, "granite", rope__scaling__finetuned=flag))[1].of(Attention)
        assert {layer.scaling for layer in of} == {scaling}


def test_the_rotary_pairs_of_glm4() -> None:
    """In turn, in models for images in halves. A head is a multiple of what turns."""

    def of(**keys: Any) -> Attention:
        file = as_architecture(open_gguf(target_path(LLAMA)), "glm4", **keys)
        return (
            ARCHITECTURES["glm4"]
            .read(Settings("a.gguf", file.metadata, "glm4."), Head.of(file.tensors))
            .of(Attention)[0]
        )

    for rotary, sections, interleaved in ((64, None, True), (32, None, True), (48, [8, 8, 8, 0], False)):
        found = of(rope__dimension_count=rotary, rope__dimension_sections=sections)
        assert (found.rotary, found.interleaved) == (rotary, interleaved)
    with pytest.raises(FormatError, match=r"key_length is 64, expected a multiple of rope.dimension_count \(48\)"):
        of(rope__dimension_count=48)


@pytest.mark.parametrize(("window", "found"), [(None, 0), (0, 0), (16, 16), (4096, 0)])
def test_the_window_of_phi3(window: int | None, found: int) -> None:
    """That of all layers, unless it is as long as the context."""
    keys = {"context_length": 4096} | ({} if window is None else {"attention__sliding_window": window})
    file = as_architecture(open_gguf(target_path(LLAMA)), "phi3", **keys)
    assert {layer.window for layer in read_target(file)[1].of(Attention)} == {found}


def test_gate_and_up_may_be_one_tensor(tmp_path: Path) -> None:
    reader = gguf.GGUFReader(target_path(LLAMA))
    tensors = {one.name: one for one in stored(reader)}
    for index in range(3):
        up, gate = (f"blk.{index}.ffn_{part}.weight" for part in ("up", "gate"))
        whole = np.concatenate([tensors.pop(gate).data, tensors[up].data])
        tensors[up] = tensors[up]._replace(data=whole)
    path = write_copy(tmp_path / "a.gguf", reader, [*tensors.values()])
    ids = [5, 6, 7, 8]
    np.testing.assert_array_equal(load_target(path).logits(ids), load_target(target_path(LLAMA)).logits(ids))
    tensors[up] = tensors[up]._replace(data=whole[:-1])
    with pytest.raises(
        FormatError, match=r"shape \[191, 64\], expected \[192, 64\] \(ffn_gate, ffn_up\) from the file's"
    ):
        read_target(open_gguf(write_copy(tmp_path / "b.gguf", reader, [*tensors.values()])))


def test_files_of_the_first_converters_name_the_layout_that_all_have() -> None:
    file = open_gguf(target_path(LLAMA))
    found = read_target(as_architecture(file, "llama", tensor_data_layout="Meta AI original pth"))[1]
    assert found == read_target(file)[1]


@pytest.mark.parametrize(
    ("keys", "growth"),
    [
        ({"rope__scaling__original_context_length": 64}, (0.1, 64)),
        ({"rope__scaling__original_context_length": 64, "attention__temperature_length": 32}, (0.1, 32)),
        ({"attention__temperature_scale": 0.0, "attention__temperature_length": 32}, None),
    ],
)
def test_queries_that_grow(keys: dict[str, Any], growth: tuple[float, int] | None) -> None:
    """Mistral 3 scales queries by their positions; without that it is Llama's."""
    yarn = {"rope__scaling__type": "yarn", "rope__scaling__factor": 4.0, "rope__scaling__yarn_log_multiplier": 1.0}
    more = yarn | {"attention__temperature_scale": 0.1} | keys
    file = as_architecture(open_gguf(target_path(LLAMA)), "mistral3", **more)
    assert {layer.query_growth for layer in read_target(file)[1].of(Attention)} == {growth}
    with pytest.raises(FormatError, match=r"has no mistral3\.attention\.temperature_length"):
        read_target(as_architecture(open_gguf(target_path(LLAMA)), "mistral3", attention__temperature_scale=0.1))
