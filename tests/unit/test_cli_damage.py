"""Damaged files on the command line: one line on stderr and exit code 1, never a traceback."""

from __future__ import annotations

import math
import random
import struct
from pathlib import Path

import pytest

from dflash_core.formats.gguf import open_gguf
from dflash_tui.cli import command_line as cli
from support.mutation import damaged
from support.random_model import Shape, hugging_face, write_gguf

SMALL = Shape(2, 32, 2, 1, 16, 1, 2, 8, 8, 4, 2, 8, True)
FILES = 120


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("sound") / "small.gguf"
    write_gguf(hugging_face(SMALL, 1), SMALL, path)
    return path.read_bytes()


def run(path: Path, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    code = cli.main([*words, "--set", "max_tokens=3", "--target", str(path)])
    return code, capsys.readouterr().err


def test_the_sound_file_answers(sound: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "sound.gguf").write_bytes(sound)
    code, _ = run(tmp_path / "sound.gguf", capsys, "ask", "hi")
    assert code == 0


@pytest.mark.parametrize("where", ["header", "weights", "cut"])
def test_damage_anywhere(where: str, sound: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = tmp_path / "whole.gguf"
    whole.write_bytes(sound)
    data = min(info.offset for info in open_gguf(whole).tensors.values())
    rng = random.Random(where)
    refused = 0
    for _ in range(FILES if where != "weights" else FILES // 3):
        path = tmp_path / "damaged.gguf"
        if where == "header":
            path.write_bytes(damaged(rng, sound, 0, data))
        elif where == "cut":
            path.write_bytes(sound[: rng.randrange(len(sound))])
        else:
            wrong = bytearray(sound)
            for _ in range(rng.randint(1, 3)):
                at = rng.randrange(data, len(sound) - 4) // 4 * 4
                wrong[at : at + 4] = struct.pack("<f", rng.choice((math.nan, math.inf, 1e38)))
            path.write_bytes(wrong)
        code, err = run(path, capsys, "ask", "hi")
        assert code in (0, 1)
        assert "Traceback" not in err
        if code:
            refused += 1
            assert [line for line in err.splitlines() if line.startswith("dflash-tui: ")] == [err.splitlines()[-1]]
    assert refused > 5
