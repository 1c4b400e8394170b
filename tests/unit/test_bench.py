"""`bench` and the tools that measure on a card: synthetic files, forced acceptance, modes side by side, refusals."""

from __future__ import annotations

import dataclasses
import errno
import json
import math
import re
import runpy
from pathlib import Path

import numpy as np
import pytest
from tools.bench import kernels, sampled, steps, synthetic, timeline
from tools.bench.step_bench import StepReport, Timed, acceptance_pattern, default_cases, spine
from tools.bench.variants import cut, mtp_config

from dflash_core.backends.cuda.step_graphs import StepKind
from dflash_core.bench import family_models, synthetic_models
from dflash_core.bench.statistics import summary
from dflash_core.config import target_config
from dflash_core.drafters import assistant
from dflash_core.drafters.dflash import open_drafter
from dflash_core.drafters.draft import TargetHeader
from dflash_core.drafters.mtp import find_head
from dflash_core.errors import DeviceError, DFlashError, KernelError, KnobError
from dflash_core.events import STAGES
from dflash_core.formats.gguf import open_gguf
from dflash_core.formats.quants import BY_NAME
from dflash_core.knobs import Knobs
from dflash_tui.cli import bench, main
from dflash_tui.terminal import output


def sizes(shapes: dict[str, tuple[int, ...]], types: dict[str, str]) -> tuple[int, int]:
    """Parameters and bytes of a file."""
    params = sum(math.prod(shape) for shape in shapes.values())
    return params, sum(math.prod(shapes[n]) // BY_NAME[k].block * BY_NAME[k].size for n, k in types.items())


@pytest.mark.parametrize(
    ("name", "parameters", "active", "target_gib", "draft_gb"),
    [
        ("27b", 26.90e9, 25.62e9, 15.58, 1.84),
        ("35b-a3b", 34.66e9, 2.94e9, 19.88, 0.40),
        ("8b", 8.19e9, 7.57e9, 4.68, 1.12),
        ("4b", 4.02e9, 4.02e9, 2.33, 0.57),
        ("smollm2-135m", 134.5e6, 134.5e6, 0.09, 0.02),
        ("llama-3.1-8b", 8.03e9, 7.50e9, 4.58, 1.25),
        ("gemma-4-31b", 30.70e9, 30.70e9, 17.40, 0.50),
        ("gemma-4-26b-a4b", 25.23e9, 3.822e9, 15.62, 0.45),
        ("gpt-oss-20b", 20.91e9, 3.614e9, 11.27, 0.60),
    ],
)
def test_made_up_pairs_have_the_sizes_of_real_files(
    name: str, parameters: float, active: float, target_gib: float, draft_gb: float
) -> None:
    model = family_models.MODELS[name]
    spec = model.target()
    params, total = sizes(spec.tensors(), synthetic_models.target_types(spec, model))
    assert params == spec.parameters == pytest.approx(parameters, rel=1e-3)
    assert spec.active_parameters == pytest.approx(active, rel=3e-3)
    assert total / 2**30 == pytest.approx(target_gib, abs=0.02)
    drafter = model.drafter()
    _, total = sizes(drafter.tensors(), synthetic_models.draft_types(drafter))
    assert total / 1e9 == pytest.approx(draft_gb, abs=0.02)


TOOLS = (
    "attention",
    "chosen",
    "depths",
    "kernels",
    "memory",
    "recurrence",
    "replay",
    "resume",
    "sampled",
    "start",
    "steps",
    "timeline",
    "ui",
)


@pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")
@pytest.mark.parametrize("tool", TOOLS)
def test_a_refusal_of_a_tool_is_one_line(tool: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise KnobError("way is much, expected 1")

    monkeypatch.setattr("argparse.ArgumentParser.parse_args", refuse)
    with pytest.raises(SystemExit, match=r"^way is much, expected 1$"):  # printed on stderr, with exit code 1
        runpy.run_module(f"tools.bench.{tool}", run_name="__main__")


def test_every_kind_of_sampling_is_timed_beside_greedy() -> None:
    greedy, *others = [case for case in sampled.cases("tree 23", "") if case.top is None]
    kinds = [StepKind.holding(case.knobs.budget, case.knobs, 248_320, drafts=True) for case in (greedy, *others)]
    assert kinds[0] == StepKind((24,), drafts=True, sampled=False)
    assert set(kinds[1:]) == {StepKind((24,), drafts=True, sampled=True, listed=listed) for listed in (False, True)}
    for name in ("top_k", "top_p", "min_p", *sampled.PENALTIES):
        off = Knobs.__dataclass_fields__[name].metadata["default"]
        assert any(getattr(case.knobs, name) != off for case in others), name


@pytest.mark.parametrize("kind", ["Q4_K", "Q5_K", "Q6_K", "Q8_0", "Q5_0"])
def test_made_up_blocks_are_weights_of_unit_gain(kind: str) -> None:
    from dflash_core.formats.quants import to_float32

    columns = 1024
    blocks = synthetic._Random().tensor("blk.0.ffn_up.weight", (64, columns), kind)
    values = to_float32(blocks, kind)
    assert values.shape == (64, columns)
    assert values.std() * math.sqrt(columns) == pytest.approx(1, rel=0.02)
    assert abs(values.mean()) * math.sqrt(columns) < 0.06


SMALL = {
    "block_count": 4, "embedding_length": 256, "feed_forward_length": 256, "attention.head_count": 2,
    "attention.head_count_kv": 1, "ssm.group_count": 1, "ssm.time_step_rank": 2, "ssm.inner_size": 256,
    "expert_count": 6, "expert_used_count": 2, "expert_feed_forward_length": 256,
    "expert_shared_feed_forward_length": 256,
}  # fmt: skip


FEW_WORDS = {"size": 1000, "end_of_text": 900, "im_start": 901, "im_end": 902, "think": 910, "end_think": 911}


@pytest.mark.parametrize("name", family_models.MODELS)
def test_a_made_up_pair_opens(tmp_path: Path, name: str) -> None:
    """One pair keeps its whole vocabulary, which takes most of the time."""
    model = cut(family_models.MODELS[name], 4)
    draft = dataclasses.replace(
        model.draft, block_count=2, embedding_length=256, feed_forward_length=256, head_count=2,
        head_count_kv=1, target_layers=(1, 3), sliding=model.draft.sliding[-2:], causal=(False, False),
    )  # fmt: skip
    settings = {**model.settings, **{key: value for key, value in SMALL.items() if key in model.settings}}
    if draft.heads.markov:
        sized = dataclasses.replace(draft.heads.markov, confidence=256 + draft.heads.markov.rank)
        draft = dataclasses.replace(draft, heads=dataclasses.replace(draft.heads, markov=sized))
    model = dataclasses.replace(model, settings=settings, draft=draft)
    if name != "27b":
        size = draft.vocab_size and FEW_WORDS["size"]
        draft = dataclasses.replace(draft, mask_token_id=draft.mask_token_id and 920, vocab_size=size)
        words = dataclasses.replace(model.vocabulary, **FEW_WORDS)
        model = dataclasses.replace(model, vocabulary=words, draft=draft)
    synthetic.write_target(tmp_path / "t", model, lambda phase, done: None)
    assert target_config(open_gguf(tmp_path / "t")) == model.target()
    if model.head == "assistant":
        keys = {key: settings[key] for key in model.assistant if key in settings and key != "block_count"}
        own = {**model.assistant, **keys, "attention.head_count_kv": 1, "embedding_length_out": 256}
        own |= {"attention.sliding_window_pattern": [True] * 4, "feed_forward_length": 256}
        model = dataclasses.replace(model, assistant=own)
        synthetic.write_assistant(tmp_path / "a", model, lambda phase, done: None)
        found = assistant.open_assistant(tmp_path / "a", TargetHeader(open_gguf(tmp_path / "t"), model.target()))
        assert found.config.layers == model.drafter().layers
    synthetic.write_draft(tmp_path / "d", model, lambda phase, done: None)
    config, _ = open_drafter(tmp_path / "d")
    assert (config.block_size, config.mask_token_id) == (draft.block_size, draft.mask_token_id)
    assert config.target_layers == (1, 3)
    assert config.heads == draft.heads
    assert (config.sliding_window, config.sliding) == (draft.sliding_window, draft.sliding)
    if model.head == "mtp":
        synthetic.write_mtp(tmp_path / "m", model, lambda phase, done: None)
        head, _ = find_head(tmp_path / "m", open_gguf(tmp_path / "t"), model.target())
        assert head == mtp_config(model)
    assert not list(tmp_path.glob("*.part"))  # nothing half-written is left


def timed(monkeypatch: pytest.MonkeyPatch, *words: str) -> str:
    """How the tool that times steps refuses a command line."""
    monkeypatch.setattr("sys.argv", ["steps", *words])
    with pytest.raises((DFlashError, OSError)) as refused:
        steps.main()
    return str(refused.value)


def test_without_a_card_no_synthetic_files_are_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def none(index: int) -> None:
        raise DeviceError("no NVIDIA driver")

    monkeypatch.setattr("tools.bench.steps.open_device", none)
    assert timed(monkeypatch, "--synthetic", "27b", "--folder", str(tmp_path / "made")) == "no NVIDIA driver"
    assert not (tmp_path / "made").exists()


def test_kernels_are_not_timed_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dflash_core.backends.cuda.driver.LIBRARY", "libthat-is-not-there.so.1")
    monkeypatch.setattr("sys.argv", ["kernels"])
    with pytest.raises(DeviceError, match=r"^no NVIDIA driver \(libthat-is-not-there.so.1 was not found\)"):
        kernels.main()


def test_a_folder_that_cannot_be_written_is_said_in_a_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tools.bench.steps.open_device", lambda index: None)
    blocked = tmp_path / "file"
    blocked.write_text("")
    error = timed(monkeypatch, "--synthetic", "27b", "--folder", str(blocked))
    assert str(blocked) in error
    assert "\n" not in error


@pytest.mark.parametrize("mean", [1.0, 2.5, 8.3, 15.99])
def test_a_forced_pattern_has_the_mean_that_was_asked_for(mean: float) -> None:
    pattern = acceptance_pattern(mean)
    assert np.mean(pattern) == pytest.approx(mean, abs=1 / len(pattern))
    assert set(pattern) <= {int(mean), int(mean) + 1}
    assert [len(spine(length)) + 1 for length in pattern] == list(pattern)


def test_the_table_of_steps_says_plain_where_files_say_ar() -> None:
    one, stages = summary([1.0]), dict.fromkeys(STAGES, 0.1)
    names = [case.name for case in default_cases(16)]
    cases = tuple(Timed(name, "tree", 1, 200, False, 1.0, one, stages, 0.01) for name in names)
    report = StepReport(cases, one, 2048, one, 4e12, 1 << 30, ())
    table = "\n".join(steps.step_lines(report, {}))
    assert re.search(r"^plain +1 ", table, re.MULTILINE)
    assert re.search(r"^plain at 32,768 ", table, re.MULTILINE)
    assert "\nar" not in table
    assert {"plain", "plain at 32,768"} <= {case["name"] for case in report.to_json()["cases"]}


def test_the_cases_are_those_of_the_bars() -> None:
    names = [case.name for case in default_cases(16, (8,))]
    assert names[:6] == ["plain", "chain 15", "tree 15", "tree 23", "tree 39", "tree 63"]
    assert {case.name for case in default_cases(16, (8,)) if case.trace} == {"forced chain", "forced tree 23"}
    one_by_one = default_cases(9, depths=(1, 3))
    assert [case.name for case in one_by_one[:4]] == ["plain", "chain 1", "chain 3", "tree 15"]
    assert (one_by_one[2].knobs.budget, one_by_one[2].knobs.mtp_depth) == (3, 3)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["--synthetic", "13b"],
            "--synthetic 13b: expected one of 27b 27b-mtp 27b-dflash2 27b-dspark 35b-a3b 35b-a3b-mtp 8b 4b",
        ),
        (["--accept-trace", "many"], "--accept-trace many: expected a mean acceptance length"),
        (["--accept-trace", "99"], "--accept-trace 99: expected"),
        ([], "step times need a target and its drafter"),
    ],
)
def test_what_cannot_be_measured_is_refused(words: list[str], said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert said in timed(monkeypatch, *words)


def test_modes_side_by_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prompts, out = tmp_path / "p.txt", tmp_path / "out.json"
    prompts.write_text("Hello! What can you do?\n")
    words = ["bench", "--prompts", str(prompts), "--repeats", "1", "--set", "max_tokens=16", "--out", str(out)]
    assert main(words) == 0
    table = capsys.readouterr().out
    for word in ("chain", "tree", "auto", "verify", "TTFT", "a plain one-row loop"):
        assert word in table
    assert "\nplain   " in table
    assert not re.search(r"\bar\b", table), "people read plain; ar is the word of files"
    found = json.loads(out.read_text())
    assert found["plain_loop_ms"] > 0
    assert sorted(row["setting"] for row in found["rows"]) == [0, 1, 2, 3]


def test_a_file_that_cannot_be_written_is_refused_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measures(*_: object, **__: object) -> int:
        raise AssertionError("it was measured")

    monkeypatch.setattr(bench, "measure", measures)
    monkeypatch.setattr(steps, "load_target", measures)
    for path, says in ((tmp_path / "no" / "out.json", "there is no folder"), (tmp_path, "is a folder")):
        assert main(["bench", "--out", str(path)]) == 1
        assert says in capsys.readouterr().err
        for option in ("--out", "--share"):
            assert says in timed(monkeypatch, "--target", "t", "--draft", "d", option, str(path))


def test_what_was_measured_is_printed_though_the_disk_refuses_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(output, "write_whole", full)
    (tmp_path / "p.txt").write_text("Hello!\n")
    words = ["--prompts", str(tmp_path / "p.txt"), "--repeats", "1", "--set", "max_tokens=2"]
    assert main(["bench", *words, "--out", str(tmp_path / "out.json")]) == 1
    out, err = capsys.readouterr()
    assert "a plain one-row loop" in out
    assert "out.json cannot be written: No space left on device; name another file" in " ".join(err.split())


def test_a_kernels_share_is_what_it_adds_to_the_step() -> None:
    """Kernels that begin early and wait: `product` of the second step begins before `norm` ends."""
    once = [("step_begin", 0, 1), ("norm", 1, 4), ("product", 2, 14), ("norm", 10, 16)]
    ran = [timeline.Ran(name, 20 * step + began, 20 * step + ended) for step in range(5) for name, began, ended in once]
    assert timeline.shares(ran) == [
        timeline.Share("product", 1, 10), timeline.Share("step_begin", 1, 5), timeline.Share("norm", 2, 5),
    ]  # fmt: skip
    with pytest.raises(KernelError, match="no whole step"):
        timeline.shares(ran[: 2 * len(once)])
