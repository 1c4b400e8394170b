"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from dflash_core.files import write_whole, writing


@pytest.mark.parametrize("sync", [False, True])
def test_a_file_is_replaced_with_its_folder_made(sync: bool, tmp_path: Path) -> None:
    path = tmp_path / "folder" / "file"
    for data in (b"one", b"another"):
        write_whole(path, data, sync=sync)
        assert path.read_bytes() == data
    assert os.listdir(path.parent) == ["file"]


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
@pytest.mark.parametrize("before", [b"before", None])
def test_what_breaks_off_changes_nothing(error: type[BaseException], before: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "file"
    if before is not None:
        path.write_bytes(before)

    def broken() -> None:
        with writing(path) as file:
            file.write(b"half")
            raise error

    with pytest.raises(error):
        broken()
    assert [one.read_bytes() for one in tmp_path.iterdir()] == ([before] if before is not None else [])


def test_a_place_that_takes_no_file(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError):
        write_whole(tmp_path / "folder", b"data")
    with pytest.raises((FileExistsError, NotADirectoryError)):
        write_whole(Path("/dev/null/file"), b"data")
    assert [one.name for one in tmp_path.iterdir()] == ["folder"]


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o666])
def test_a_link_and_permissions_stay(mode: int, tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    with writing(real, mode=0o600) as file:
        file.write(b"1")
    assert stat.S_IMODE(real.stat().st_mode) == 0o600
    real.chmod(mode)
    link.symlink_to(real)
    write_whole(link, b"2")
    assert link.is_symlink()
    assert real.read_bytes() == b"2"
    assert stat.S_IMODE(real.stat().st_mode) == mode
