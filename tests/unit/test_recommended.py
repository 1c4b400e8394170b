"""Sampling as the makers of a model recommend it: what is found, and what it may change."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_core.arch.recommended import FAMILIES, NOTHING, SAMPLING, Recommended, recommended
from dflash_core.demo import demo_target_path
from dflash_core.formats.gguf import open_gguf
from dflash_core.knobs import SPEC, Knobs, Value
from dflash_tui.application.settings.presets import BUILT_IN, Preset, changed
from dflash_tui.cli import command_line as cli
from support.gguf_copy import stored, write_copy
from support.golden import golden

TINY = golden("targets/q3-F16.gguf")
QWEN3 = recommended({"general.name": "Qwen3 8B"})
FOUND = [NOTHING, *(found for _, found in FAMILIES)]


@pytest.mark.parametrize(
    ("name", "plain", "thinking"),
    [
        ("Qwen3-8B", {"temperature": 0.7, "top_p": 0.8, "top_k": 20}, {"temperature": 0.6, "top_p": 0.95, "top_k": 20}),
        ("Qwen3 4B Thinking 2507", {"temperature": 0.6}, {"temperature": 0.6}),
        ("Qwen3-Coder-30B-A3B-Instruct", {"repetition_penalty": 1.05}, {"temperature": 0.7}),
        ("qwen3.5_27b", {"temperature": 0.7, "presence_penalty": 1.5}, {"temperature": 1.0, "presence_penalty": 1.5}),
        ("Qwen3.5 0.8B", {"temperature": 1.0, "top_p": 1.0, "presence_penalty": 2.0}, {"top_p": 0.95}),
        ("Qwen3.5-2B", {"temperature": 0.0}, {"temperature": 0.0}),
        ("Qwen3.6-35B-A3B", {"temperature": 0.7, "top_p": 0.8}, {"temperature": 1.0, "presence_penalty": 0.0}),
        ("Gemma 3 270m It", {"temperature": 1.0, "top_k": 64, "top_p": 0.95}, {"top_k": 64}),
        ("gpt-oss-20b", {"temperature": 1.0, "top_p": 1.0, "top_k": 0}, {"temperature": 1.0}),
        ("Meta Llama 3.1 8B Instruct", {"temperature": 0.6, "top_p": 0.9}, {"temperature": 0.6}),
        ("Smollm2 135M 8k Lc100K Mix1 Ep2", {"temperature": 0.2, "top_p": 0.9}, {"top_p": 0.9}),
        ("DeepSeek R1 0528 Qwen3 8B", {"temperature": 0.6, "top_p": 0.95}, {"temperature": 0.6}),
        ("TinyLlama 1.1B", {"temperature": 0.0}, {"temperature": 0.0}),
    ],
)
def test_a_family_by_its_name(name: str, plain: dict[str, Value], thinking: dict[str, Value]) -> None:
    found = recommended({"general.name": name})
    assert found.defaults(thinking=False).items() >= plain.items()
    assert found.defaults(thinking=True).items() >= thinking.items()


def test_a_model_that_was_tuned_further_has_what_its_base_has() -> None:
    assert recommended({"general.name": "Nightly", "general.base_model.0.name": "Qwen3 8B"}) == QWEN3


def test_every_value_is_one_that_a_knob_takes() -> None:
    for _, found in FAMILIES:
        for values in (found.plain, found.thinking):
            assert {name: SPEC[name].check(value) for name, value in values.items()} == values
            assert set(values) <= set(SAMPLING)


def test_the_demo_pair_stays_greedy() -> None:
    assert recommended(open_gguf(demo_target_path()).metadata) == NOTHING


def test_the_file_is_before_the_table() -> None:
    file = {"general.sampling.temp": float(np.float32(0.85)), "general.sampling.top_k": -1}
    found = recommended({"general.name": "Qwen3 8B", **file})
    assert found.plain == found.thinking == {"temperature": 0.85, "top_k": 0}
    assert found.by == "as the file recommends"


def test_a_value_of_the_file_that_is_out_of_range_is_named() -> None:
    for value in (float("nan"), -3.0, "hot", True, [1]):
        found = recommended({"general.name": "Qwen3 8B", "general.sampling.temp": value})
        assert found.plain == QWEN3.plain
        assert [line.partition(" is left out: ")[0] for line in found.problems] == ["general.sampling.temp"]
        assert "expected 0 to 5" in found.problems[0]


def test_what_the_user_has_chosen_stays() -> None:
    assert QWEN3.applied(Knobs()) == Knobs(temperature=0.7, top_p=0.8, top_k=20)
    assert QWEN3.applied(Knobs(thinking=True)).temperature == 0.6
    warm = QWEN3.applied(Knobs(temperature=1.2), {"temperature"})
    assert (warm.temperature, warm.top_k) == (1.2, 20)
    assert QWEN3.applied(Knobs(), {"temperature"}) == Knobs()  # a chosen 0 is greedy, with nothing else of sampling
    assert QWEN3.applied(Knobs(max_tokens=7)).max_tokens == 7


def test_measurements_are_greedy_unless_the_temperature_was_changed() -> None:
    assert QWEN3.greedy(QWEN3.applied(Knobs(max_tokens=7))) == Knobs(max_tokens=7)
    assert QWEN3.greedy(Knobs(temperature=0.3, top_k=20)) == Knobs(temperature=0.3, top_k=20)


@given(
    found=st.sampled_from(FOUND),
    thinking=st.booleans(),
    values=st.fixed_dictionaries(
        {}, optional={"temperature": st.sampled_from([0.0, 0.6, 0.7]), "top_k": st.sampled_from([0, 20]),
                      "presence_penalty": st.sampled_from([0.0, 1.5]), "drafting": st.just("tree 8")},
    ),
)  # fmt: skip
def test_a_saved_preset_brings_back_the_parameters(found: Recommended, thinking: bool, values: dict[str, Any]) -> None:
    knobs = found.applied(Knobs(thinking=thinking)).replace(**values)
    assert Preset("mine", changes=changed(knobs, found)).over(found) == knobs


def test_presets_leave_the_models_sampling_but_what_they_name() -> None:
    by_name = {preset.name: preset.over(QWEN3) for preset in BUILT_IN}
    assert by_name["default"] == QWEN3.applied(Knobs())
    assert by_name["plain"].top_p == 0.8
    assert (by_name["sampled"].temperature, by_name["sampled"].top_p) == (0.6, 0.95)


@pytest.fixture
def warm(tmp_path: Path) -> Path:
    """A model whose file recommends sampling."""
    reader = gguf.GGUFReader(TINY)
    return write_copy(tmp_path / "warm.gguf", reader, stored(reader), {"general.sampling.temp": 0.85})


def _answer(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[dict[str, Any], str]:
    assert cli.main(["ask", "hello", "--json", "--device", "cpu", "--set", "max_tokens=2", *words]) == 0
    shown = capsys.readouterr()
    return json.loads(shown.out), shown.err


def test_ask_samples_and_says_so(warm: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer, said = _answer(capsys, "--target", str(warm))
    assert answer["knobs"]["temperature"] == 0.85
    assert "note: sampling as the file recommends: temperature 0.85; --set temperature=0 decodes greedily" in said
    answer, said = _answer(capsys, "--target", str(warm), "--set", "temperature=0")
    assert answer["knobs"]["temperature"] == 0
    assert "recommends" not in said


def test_sampling_of_the_settings_file_wins(
    warm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "dflash-tui.toml").write_text("[knobs]\ntemperature = 0.3\n")
    monkeypatch.chdir(tmp_path)
    assert _answer(capsys, "--target", str(warm))[0]["knobs"]["temperature"] == 0.3


def test_a_bench_is_greedy(warm: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["sweep", "max_tokens=3,4", "--prompt", "hello", "--target", str(warm), "--device", "cpu", "--json"]
    assert cli.main([*words, "--repeats", "1"]) == 0
    assert {setting["temperature"] for setting in json.loads(capsys.readouterr().out)["settings"]} == {0.0}


def test_inspect_shows_it(warm: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["inspect", str(warm)]) == 0
    assert "sampling      temperature 0.85 (as the file recommends)" in capsys.readouterr().out
    assert cli.main(["inspect", str(warm), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["model"]["sampling"]["plain"] == {"temperature": 0.85}
