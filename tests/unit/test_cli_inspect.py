"""`inspect`: what it says of golden files, in both shapes, and of drafters that do and do not fit."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dflash_core.formats.gguf import open_gguf
from dflash_tui.cli import command_line as cli
from support.golden import COMMITTED as DATA

TARGET, DRAFT = DATA / "tiny-Q4_K_M.gguf", DATA / "tiny-dflash"


def test_a_target_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["inspect", str(TARGET)]) == 0
    text = capsys.readouterr().out
    assert "qwen35: 3 gated delta net and 1 full-attention layers" in text
    assert "4 V heads of 128 over 2 K heads of 128" in text
    assert "feed-forward: Q4_K x10" in text
    assert "mixed types" in text
    assert "fits" not in text


FAMILY = DATA / "targets"


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("q35moe-F16", [
            "architecture  qwen35moe: 3 gated delta net and 1 full-attention layers",
            "width         hidden 32, 4 of 16 experts of 32 and a shared one of 64",
            "active        0.43 million parameters a token, of 0.59 million",
            "drafters      q35moe-dflash, beside it: DFlash",
            "a DFlash drafter made for hidden size 32, 4 layers, a vocabulary of 384",
        ]),
        ("q35moe-mtp-Q8_0", [
            "width         hidden 32, 3 of 16 experts of 32 and a shared one of 32",
            "unusual       1 MTP block(s), 20 tensors, 180.1 KiB: what the mtp drafter runs",
            "drafters      mtp: the MTP head in the target's own file",
        ]),
        ("q3-F16", ["qwen3: 3 full-attention layers", "width         hidden 64, feed-forward 128",
                    "tied head: the embedding is also", "drafters      q3-dflash, beside it: DFlash"]),
        ("q3-Q8_0", ["attention     6 heads over 2 KV heads of 128", "drafters      a DFlash drafter made for hidden"]),
        ("q3moe-Q8_0", ["width         hidden 64, 4 of 16 experts of 32\n", "active        0.40 million parameters"]),
    ],
)  # fmt: skip
def test_what_other_architectures_are(name: str, lines: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["inspect", str(FAMILY / f"{name}.gguf")]) == 0
    text = capsys.readouterr().out
    for line in lines:
        assert line in text
    assert ("active" in text) == ("moe" in name)
    assert cli.main(["inspect", str(FAMILY / f"{name}.gguf"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["model"]
    assert found["config"]["active_parameters"] <= found["parameters"]
    assert ("expert_count" in found["config"]) == ("moe" in name)
    assert found["drafters"]


def test_drafters_beside_a_file_are_those_that_belong_to_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Others, damaged ones and the model's own shards are passed over."""
    target = shutil.copy(FAMILY / "q3-F16.gguf", tmp_path / "q3-dflash-00001-of-00001.gguf")
    for name in ("q3-dflash", "q35moe-dflash"):
        shutil.copytree(FAMILY / name, tmp_path / name)
    shutil.copytree(FAMILY / "q3-dflash", tmp_path / "unnamed")
    (tmp_path / "draft.gguf").write_bytes(b"GGUF broken")
    shutil.copy(FAMILY / "q35moe-mtp-Q8_0.gguf", tmp_path / "other-mtp.gguf")
    assert cli.main(["inspect", str(target), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["model"]["drafters"]
    assert [line for line in found if "beside it" in line] == ["q3-dflash, beside it: DFlash"]


def test_a_pair_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["inspect", str(TARGET), "--draft", str(DRAFT), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    model, draft = found["model"], found["draft"]
    assert model["config"]["architecture"] == "qwen35"
    assert model["bytes"] == sum(kind["bytes"] for group in model["types"].values() for kind in group.values())
    assert model["tensors"] == sum(kind["tensors"] for group in model["types"].values() for kind in group.values())
    assert draft["fits"] is True
    assert draft["reason"] == ""
    assert draft["config"]["block_size"] == 16


def test_a_drafter_with_heads_says_what_it_has(capsys: pytest.CaptureFixture[str]) -> None:
    """Its kind, block, selector and target; with its target given, whether it fits."""
    two = FAMILY / "q35moe-dflash2"
    assert cli.main(["inspect", str(two)]) == 0
    alone = capsys.readouterr().out
    assert cli.main(["inspect", str(FAMILY / "q35moe-F16.gguf"), "--draft", str(two)]) == 0
    beside = capsys.readouterr().out
    for line in (
        "drafter       DFlash 2, z-lab layout: 2 layers, 2 of them over a window of 24",
        "block         8 positions for 7 drafts, mask token 381",
        "heads         convolutions of 2 taps over groups of 16 channels",
        "              candidate selector of rank 16 over the best 16 tokens",
        "made for      a target of hidden size 32, 4 layers, vocabulary of 384",
    ):
        assert line in alone, alone
        assert line in beside, beside
    assert "fits          yes" in beside
    assert cli.main(["inspect", str(two), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["draft"]["kind"] == "dflash2"


@pytest.fixture
def stranger(tmp_path: Path) -> Path:
    """A drafter that says it reads a layer which the target does not have."""
    folder = tmp_path / "stranger"
    shutil.copytree(DRAFT, folder)
    path = folder / "config.json"
    path.chmod(0o644)
    config = json.loads(path.read_text())
    config["dflash_config"]["target_layer_ids"][-1] = 40
    path.write_text(json.dumps(config))
    return folder


def test_a_drafter_that_does_not_fit(stranger: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["inspect", str(TARGET), "--draft", str(stranger)]) == 1
    captured = capsys.readouterr()
    assert "fits          no" in captured.out
    [line] = captured.err.splitlines()
    assert "reads target layer 40" in line
    assert cli.main(["inspect", str(TARGET), "--draft", str(stranger), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)["draft"]
    assert found["fits"] is False
    assert "reads target layer 40" in found["reason"]


def test_a_drafter_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["inspect", str(DRAFT), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found) == ["draft"]
    assert "fits" not in found["draft"]


def test_a_wrong_file_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = tmp_path / "x.gguf"
    wrong.write_bytes(b"PK\3\4 not a model")
    assert cli.main(["inspect", str(wrong)]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.splitlines()) == 1


def test_inspect_does_not_import_torch() -> None:
    code = (
        "import sys\nfrom dflash_tui.cli import main\n"
        f"assert main(['inspect', {str(TARGET)!r}, '--draft', {str(DRAFT)!r}]) == 0\n"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr


def spoilt(path: Path, to: Path, name: str, *, nan: bool) -> Path:
    """A copy of a GGUF file whose tensor `name`, of Q8_0, is zero; with `nan`, only the scale of a block is changed."""
    info, data = open_gguf(path).tensors[name], bytearray(path.read_bytes())
    new = b"\x00\x7e" if nan else bytes(info.n_bytes)
    data[info.offset : info.offset + len(new)] = new
    to.write_bytes(data)
    return to


@pytest.mark.parametrize("large", [False, True])
def test_tensors_that_cannot_be_right_are_named(
    large: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a drafter, and of the MTP head in a target's file, with and without naming it."""
    source, name = FAMILY / "q35moe-mtp-Q8_0.gguf", "blk.8.nextn.eh_proj.weight"
    if large:
        monkeypatch.setattr("dflash_core.formats.suspects.WHOLE_BYTES", 1000)
    zeroed = spoilt(source, tmp_path / "zeroed.gguf", name, nan=False)
    broken = spoilt(source, tmp_path / "broken.gguf", name, nan=True)
    seen = "16 rows of" if large else "all numbers of"
    for path, said in ((source, ""), (zeroed, f"{name}: every number is 0"), (broken, f"{name}: holds numbers that")):
        for args in ([str(path)], [str(path), "--draft", "mtp"]):
            assert cli.main(["inspect", *args]) == 0
            text = capsys.readouterr().out
            assert seen in text
            assert ("  warning " in text) == bool(said)
            assert said in text
            assert cli.main(["inspect", *args, "--json"]) == 0
            facts = json.loads(capsys.readouterr().out)
            for part in facts.values():
                assert [one.startswith(said) for one in part["warnings"]] == [True] * bool(said)
