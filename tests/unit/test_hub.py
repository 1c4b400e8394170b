"""Downloads from a hub, against a local server with the same protocol: cut, resumed, refused, checked."""

from __future__ import annotations

import errno
import fcntl
import io
import json
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dflash_core.errors import DFlashError
from dflash_tui.application.conversations.history import data_folder
from dflash_tui.application.hub import catalogue as catalogues
from dflash_tui.application.hub import fetch as fetching
from dflash_tui.application.hub import files, fitting
from dflash_tui.application.hub.catalogue import Pair, Source, load_catalogue
from dflash_tui.application.hub.fetch import CancelledError, fetch, requested_files
from dflash_tui.application.hub.files import FileRequest, HubError, check_disk, here, part_of, place, received
from dflash_tui.application.hub.walk import downloads
from dflash_tui.cli import get, models
from dflash_tui.cli.command_line import main
from support.homes import move_home
from support.hub_server import BODY, Hub, serving


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serving() as it:
        yield it


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    move_home(tmp_path, monkeypatch)
    monkeypatch.setattr(fetching, "PAUSE_S", 0.01)
    monkeypatch.setattr(fetching, "CHUNK", 1 << 18)


def pair(repo: str) -> Pair:
    return Pair("p", "a pair", "mit", Source(f"o/{repo}", "m.gguf"), None)


def nothing(file: str, here: int, size: int, more: str) -> None:
    pass


def fetched(hub: Hub, repo: str, folder: Path) -> Path:
    [one] = requested_files(pair(repo), hub.endpoint)
    return fetch(one, folder, nothing, hub.endpoint)


def left(folder: Path) -> list[Path]:
    """Parts of files."""
    return list(folder.rglob("*.part"))


def test_sizes_first_then_the_file(hub: Hub, tmp_path: Path) -> None:
    [one] = requested_files(pair("good"), hub.endpoint)
    assert one.size == len(BODY)
    assert hub.gets == [], "not a byte"
    progress: list[tuple[int, int, str]] = []
    path = fetch(one, tmp_path, lambda file, here, size, more: progress.append((here, size, more)), hub.endpoint)
    assert path.read_bytes() == BODY
    assert path == place(one.source, tmp_path) / "m.gguf"
    assert len({here for here, _, more in progress if not more}) > 5, "progress, chunk by chunk"
    assert {more for _, _, more in progress} == {"", "checking"}
    assert progress[-1][:2] == (len(BODY), len(BODY))
    assert left(tmp_path) == []


def test_a_cut_connection_is_gone_on_with(hub: Hub, tmp_path: Path) -> None:
    assert fetched(hub, "cut", tmp_path).read_bytes() == BODY
    first, second = hub.gets
    assert first == "bytes=0-"
    assert int(second.removeprefix("bytes=").rstrip("-")) >= len(BODY) // 4, "not from the beginning again"


def test_what_is_here_outlives_the_program(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: the library discards the data of a broken download, so a second start began from zero."""
    hub.times = 1
    monkeypatch.setattr(fetching, "TRIES", 1)
    with pytest.raises(HubError) as refused:
        fetched(hub, "cut", tmp_path)
    assert "\n" not in str(refused.value)
    [one] = requested_files(pair("cut"), hub.endpoint)
    there = here(one, tmp_path)
    assert there >= len(BODY) // 4
    assert "saved" in received([one], tmp_path)
    hub.asked.clear()
    assert fetched(hub, "cut", tmp_path).read_bytes() == BODY
    assert hub.gets == [f"bytes={there}-"]


def test_leaving_keeps_what_is_here(hub: Hub, tmp_path: Path) -> None:
    [one] = requested_files(pair("good"), hub.endpoint)
    stop = threading.Event()

    def enough(file: str, here: int, size: int, more: str) -> None:
        if here > size // 2:
            stop.set()

    with pytest.raises(CancelledError):
        fetch(one, tmp_path, enough, hub.endpoint, stop)
    assert here(one, tmp_path) > len(BODY) // 2
    assert fetched(hub, "good", tmp_path).read_bytes() == BODY
    assert hub.gets[-1] != "bytes=0-"


@pytest.mark.parametrize("silent", ["HEAD", "GET", "bytes"])
def test_a_silent_hub_is_left_at_once(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, silent: str) -> None:
    """Wherever the server stops replying: before the file's details, before the file, and in the middle of it."""
    monkeypatch.setattr(fetching, "TIMEOUT_S", 3600.0)
    [one] = requested_files(pair("good"), hub.endpoint)
    hub.silent, stop, some = silent, threading.Event(), threading.Event()

    def enough() -> None:
        hub.fell_silent.wait()
        if silent == "bytes":  # what it has sent may still be on its way
            some.wait()
        stop.set()

    def progress(file: str, here: int, size: int, more: str) -> None:
        if here:
            some.set()

    threading.Thread(target=enough, daemon=True).start()
    with pytest.raises(CancelledError):
        [fetch(it, tmp_path, progress, hub.endpoint, stop) for it in requested_files(pair("good"), hub.endpoint, stop)]
    assert not hub.stalled.is_set(), "the hub still says nothing"
    hub.silent = ""
    there = here(one, tmp_path)
    assert (there > 0) == (silent == "bytes")
    assert fetched(hub, "good", tmp_path).read_bytes() == BODY, "nobody else holds the file"
    assert hub.gets[-1] == f"bytes={there}-", "gone on with"


def test_a_fault_of_the_program_is_no_broken_connection(hub: Hub, tmp_path: Path) -> None:
    """Regression: the file was requested ten times, and the user was told that the connection is bad."""
    [one] = requested_files(pair("good"), hub.endpoint)

    def faulty(file: str, here: int, size: int, more: str) -> None:
        if here:
            raise TypeError("a fault")

    with pytest.raises(HubError, match="a fault"):
        fetch(one, tmp_path, faulty, hub.endpoint)
    assert len(hub.gets) == 1


def test_a_file_that_is_here_is_not_asked_for(hub: Hub, tmp_path: Path) -> None:
    path = fetched(hub, "good", tmp_path)
    hub.asked.clear()
    assert fetched(hub, "good", tmp_path) == path
    assert hub.gets == []
    path.write_bytes(bytes(len(BODY)))  # the same size, other bytes
    assert fetched(hub, "good", tmp_path).read_bytes() == BODY


def test_another_file_on_the_hub_is_begun_from_nothing(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "TRIES", 1)
    with pytest.raises(HubError):
        fetched(hub, "cut", tmp_path)
    hub.body, hub.asked = BODY[::-1], []
    assert fetched(hub, "cut", tmp_path).read_bytes() == BODY[::-1]
    assert hub.gets == ["bytes=0-"]


@pytest.mark.parametrize(
    ("repo", "why"),
    [
        ("secret", "refused (401): the repository does not exist, or needs a token"),
        ("gone", "not on the hub (404)"),
        ("busy", "429: too many requests); try again in 7 s"),
        ("broken", "the hub has an error (500); the received part is saved; try again later"),
        ("page", "check HF_ENDPOINT"),
    ],
)
def test_refusals_are_one_line(hub: Hub, repo: str, why: str) -> None:
    with pytest.raises(HubError) as refused:
        requested_files(pair(repo), hub.endpoint)
    assert why in str(refused.value)
    assert "\n" not in str(refused.value)


def test_no_hub_at_all() -> None:
    with pytest.raises(HubError) as refused:
        requested_files(pair("good"), "http://127.0.0.1:9")
    assert "the hub cannot be reached" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_hub_that_asks_to_wait_is_waited_for_and_says_so(hub: Hub, tmp_path: Path) -> None:
    hub.status, hub.retry_after = 429, "0"
    progress: list[str] = []
    [one] = requested_files(pair("moody"), hub.endpoint)
    hub.retry_after = "1"
    path = fetch(one, tmp_path, lambda file, here, size, more: progress.append(more), hub.endpoint)
    assert path.read_bytes() == BODY
    assert "the hub answers 429; asking again in 1 s" in progress


def test_a_hub_that_asks_to_wait_long_is_left(hub: Hub, tmp_path: Path) -> None:
    hub.status, hub.retry_after, hub.times = 429, "3600", 99
    with pytest.raises(HubError, match=r"429.*try again in 3600 s"):
        fetched(hub, "moody", tmp_path)


def test_a_hub_that_asks_to_wait_again_and_again_is_left(hub: Hub, tmp_path: Path) -> None:
    hub.status, hub.retry_after, hub.times = 429, "0", 99
    with pytest.raises(HubError, match=r"429.*try again in"):
        fetched(hub, "moody", tmp_path)


@pytest.mark.parametrize("status", [500, 503])
def test_a_hub_in_trouble_is_asked_again(hub: Hub, tmp_path: Path, status: int) -> None:
    hub.status, hub.retry_after = status, "0"
    assert fetched(hub, "moody", tmp_path).read_bytes() == BODY


def test_a_hub_that_stops_in_the_middle(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "TIMEOUT_S", 2.0)  # in which a busy machine answers, too
    [one] = requested_files(pair("good"), hub.endpoint)
    one = FileRequest(Source("o/stall", "m.gguf"), one.file, one.size, one.commit, one.sum)
    progress: list[str] = []
    path = fetch(one, tmp_path, lambda file, here, size, more: progress.append(more), hub.endpoint)
    assert path.read_bytes() == BODY
    assert "nothing received for 2 s; asking again in 0 s" in progress
    hub.times = 99
    monkeypatch.setattr(fetching, "TRIES", 1)
    with pytest.raises(HubError) as refused:
        fetch(one, tmp_path / "other", nothing, hub.endpoint)
    assert "\n" not in str(refused.value)
    assert here(one, tmp_path / "other") > 0


def test_a_server_that_knows_no_ranges(hub: Hub, tmp_path: Path) -> None:
    [one] = requested_files(pair("deaf"), hub.endpoint)
    part = part_of(one, tmp_path)
    part.parent.mkdir(parents=True)
    part.write_bytes(BODY[:1000])
    assert fetched(hub, "deaf", tmp_path).read_bytes() == BODY


@pytest.mark.parametrize("repo", ["restless", "elsewhere"])
def test_a_server_that_does_not_send_the_rest(hub: Hub, tmp_path: Path, repo: str) -> None:
    """416, or another range than the one asked for: the download begins again, and no part is in its way for ever."""
    [one] = requested_files(pair(repo), hub.endpoint)
    part = part_of(one, tmp_path)
    part.parent.mkdir(parents=True)
    part.write_bytes(BODY[:1000])
    assert fetched(hub, repo, tmp_path).read_bytes() == BODY
    assert hub.gets == ["bytes=1000-", "bytes=0-"]


def test_parts_of_older_versions_do_not_stay(hub: Hub, tmp_path: Path) -> None:
    [one] = requested_files(pair("good"), hub.endpoint)
    folder = place(one.source, tmp_path)
    folder.mkdir(parents=True)
    older, used, other = (folder / name for name in ("m.gguf.0123.part", "m.gguf.4567.part", "n.gguf.0123.part"))
    for path in (older, used, other):
        path.write_bytes(b"some")
    with used.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        check_disk([one], tmp_path)
        assert not older.exists()
        assert used.exists(), "it is being fetched"
    assert fetched(hub, "good", tmp_path).read_bytes() == BODY
    assert {path.name for path in folder.glob("*.part")} == {"n.gguf.0123.part"}


@pytest.mark.parametrize("repo", ["liar", "portal"])
def test_a_wrong_checksum_is_thrown_away(hub: Hub, tmp_path: Path, repo: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`portal`: a login page of the network in place of the file."""
    monkeypatch.setattr(fetching, "TRIES", 2)
    with pytest.raises(HubError) as refused:
        fetched(hub, repo, tmp_path)
    assert "\n" not in str(refused.value)
    assert {"liar": "its checksum is not the hub's", "portal": "check HF_ENDPOINT"}[repo] in str(refused.value)
    [one] = requested_files(pair(repo), hub.endpoint)
    assert here(one, tmp_path) == 0, "nothing of it is gone on with"
    assert not (tmp_path / f"o--{repo}" / "m.gguf").exists()


def test_small_files_are_checked_too(hub: Hub, tmp_path: Path) -> None:
    hub.body = b'{"a": 1}'
    [one] = requested_files(pair("small"), hub.endpoint)
    assert fetch(one, tmp_path, nothing, hub.endpoint).read_bytes() == hub.body
    spoiled = FileRequest(one.source, one.file, one.size, one.commit, "0" * 40)
    with pytest.raises(HubError, match="checksum"):
        fetch(spoiled, tmp_path / "other", nothing, hub.endpoint)


def test_the_token_is_the_librarys_own(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_mine")
    fetched(hub, "good", tmp_path)
    assert {token for _, _, token in hub.asked} == {"Bearer hf_mine"}


def test_a_full_disk_is_said_before_a_byte_is_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files.shutil, "disk_usage", lambda path: type("Usage", (), {"free": 300 << 20})())
    one = FileRequest(Source("o/good", "m.gguf"), "m.gguf", 10**9, "", "a" * 64)
    with pytest.raises(HubError, match="free some space"):
        check_disk([one], tmp_path / "not" / "there")
    part = part_of(one, tmp_path)
    part.parent.mkdir(parents=True)
    part.touch()
    with part.open("r+b") as file:
        file.truncate(10**9 - 1000)
    check_disk([one], tmp_path)  # all but a thousand bytes is here


def test_a_disk_that_fills_up(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [one] = requested_files(pair("good"), hub.endpoint)
    complete = fetching._receive

    class Full(io.FileIO):
        def write(self, data: Any) -> int:
            if self.tell() > len(BODY) // 2:
                raise OSError(errno.ENOSPC, "No space left on device")
            return super().write(data)

    def onto_a_full_disk(url: str, one: FileRequest, file: Any, watch: Any) -> None:
        with Full(file.name, "a") as full:
            complete(url, one, full, watch)  # type: ignore[arg-type]

    monkeypatch.setattr(fetching, "_receive", onto_a_full_disk)
    with pytest.raises(HubError, match="no space left on the disk; the received part is saved"):
        fetch(one, tmp_path, nothing, hub.endpoint)
    assert here(one, tmp_path) > len(BODY) // 2
    monkeypatch.setattr(fetching, "_receive", complete)
    assert fetched(hub, "good", tmp_path).read_bytes() == BODY
    assert hub.gets[-1] != "bytes=0-"


def test_two_at_once_do_not_mix(hub: Hub, tmp_path: Path) -> None:
    [one] = requested_files(pair("good"), hub.endpoint)

    def another(file: str, here: int, size: int, more: str) -> None:
        with pytest.raises(HubError, match="another dflash-tui is fetching it"):
            fetch(one, tmp_path, nothing, hub.endpoint)

    assert fetch(one, tmp_path, another, hub.endpoint).read_bytes() == BODY


# The catalogue


def test_the_catalogue_of_the_program_is_sound() -> None:
    it = load_catalogue()
    assert it.problems == ()
    assert it.pairs
    with pytest.raises(DFlashError, match="did you mean qwen3-8b"):
        it["qwen38b"]


@pytest.mark.parametrize(
    "entry",
    [
        'target = { repo = "o/n", file = "../../.bashrc" }',
        'target = { repo = "o/n", file = "/etc/passwd" }',
        'target = { repo = "o/n", file = ".bashrc" }',
        'target = { repo = "../n", file = "m.gguf" }',
        'target = { repo = "o/..", file = "m.gguf" }',
        'target = { repo = "a--b/n", file = "m.gguf" }',
        'target = { repo = "o/n/x", file = "m.gguf" }',
        'target = { repo = "o/n", file = "a\\u001b[2Jb" }',
        'target = { repo = "o/n", file = "m-00001-of-90000.gguf" }',
        'target = { repo = "o/n", file = "m-00002-of-00003.gguf" }',
        'target = { repo = "o/n" }',
        'target = "o/n"',
        f'target = {{ repo = "o/n", file = "{"a" * 250}.gguf" }}',
        f'target = {{ repo = "o/n", file = "{"a/" * 40}m.gguf" }}',
        'about = 3\ntarget = { repo = "o/n", file = "m.gguf" }',
        'target = { repo = "o/n", file = "m.gguf", beside = ["..", "x"] }',
    ],
)
def test_hostile_entries_are_left_out_and_named(tmp_path: Path, entry: str) -> None:
    path = tmp_path / "catalogue.toml"
    path.write_text(f"# mine\n\n[pairs.bad]\n{entry}\n\n[pairs.good]\ntarget = {{ repo = 'o/n', file = 'm.gguf' }}\n")
    it = load_catalogue(path)
    assert "good" in it.pairs
    assert "bad" not in it.pairs
    [problem] = it.problems
    with pytest.raises(DFlashError) as refused:
        it["bad"]
    assert str(refused.value) == problem, "who asks for it hears why"
    assert f"{path}, line 3: 'bad'" in problem
    assert "\n" not in problem
    assert "\x1b" not in problem


@pytest.mark.parametrize("name", ["", "../up", "a b", "Large", "-f", "x\x1b[2Jy", "a\nb", "[bold]", "n" * 300])
def test_an_entry_with_a_hostile_name_is_left_out_and_named(tmp_path: Path, name: str) -> None:
    path = tmp_path / "catalogue.toml"
    target = "target = { repo = 'o/n', file = 'm.gguf' }\n"
    path.write_text(f"[pairs.{json.dumps(name)}]\n{target}\n[pairs.good]\n{target}")
    it = load_catalogue(path)
    assert "good" in it.pairs
    assert name not in it.pairs
    [problem] = it.problems
    assert "a name consists of a to z, 0 to 9, dots and dashes; the entry is left out" in problem
    assert problem.isprintable(), "it is one line that no terminal obeys"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("pairs = 3", "expected tables [pairs.NAME]"),
        ("[piars.x]\na = 1", "'piars': expected tables"),
        ('[pairs.x]\ntarget = { repo = "o/n", file = "m.gguf" }\ndarft = 3', "line 3: 'x': unknown 'darft'"),
        ("[pairs", "nothing of it is used"),
    ],
)
def test_nothing_in_it_is_passed_over_in_silence(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "catalogue.toml"
    path.write_text(text)
    [problem] = load_catalogue(path).problems
    assert why in problem


def test_a_split_model_has_all_its_parts() -> None:
    source = Source("o/n", "q/m-00001-of-00003.gguf", ("q/config.json",))
    assert source.files == (*(f"q/m-0000{part}-of-00003.gguf" for part in (1, 2, 3)), "q/config.json")
    assert source.opened == "q"
    assert Source("o/n", "d.gguf", ("readme.md",)).opened == "d.gguf"


# The command line


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = Pair(
        "tiny", "a tiny pair", "mit", Source("o/good", "m.gguf"), Source("o/also", "d.safetensors", ("config.json",))
    )
    for command in (get, models):
        monkeypatch.setattr(command, "load_catalogue", lambda: catalogues.Catalogue({"tiny": entry}, ()))
    monkeypatch.setattr("sys.stdin", io.StringIO())


@pytest.mark.usefixtures("tiny")
def test_get_on_the_command_line(hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert get.get("tiny", tmp_path / "to", yes=False, endpoint=hub.endpoint) == 1
    err = capsys.readouterr().err
    assert "licence: mit" in err
    assert "o/good/m.gguf  3.0 MiB" in err
    assert "\nfits: about 1.6 GiB of " in err
    assert "--yes fetches without asking" in err
    assert not (tmp_path / "to").exists()
    assert hub.gets == [], "not a byte"
    assert get.get("tiny", tmp_path / "to", yes=True, endpoint=hub.endpoint) == 0
    out = capsys.readouterr().out
    assert out == f"dflash-tui --target {tmp_path}/to/o--good/m.gguf --draft {tmp_path}/to/o--also\n"
    assert (tmp_path / "to" / "o--also" / "config.json").read_bytes() == BODY
    assert main(["get", "nothing-like-it"]) == 1
    assert "no pair 'nothing-like-it'" in capsys.readouterr().err


@pytest.mark.usefixtures("tiny")
def test_get_says_what_is_kept(
    hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        get, "requested_files", lambda pair, endpoint: requested_files(globals()["pair"]("cut"), endpoint)
    )
    monkeypatch.setattr(fetching, "TRIES", 1)
    with pytest.raises(HubError):
        get.get("tiny", tmp_path / "to", yes=True, endpoint=hub.endpoint)
    assert f"saved in {tmp_path / 'to'}; the next try continues there" in capsys.readouterr().err


@pytest.mark.usefixtures("tiny")
def test_the_list_says_what_of_a_pair_is_here(hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    def listed() -> tuple[str, dict[str, Any]]:
        assert main(["models"]) == 0
        text = next(line for line in capsys.readouterr().out.splitlines() if "a tiny pair" in line)
        assert main(["models", "--json"]) == 0
        [one] = json.loads(capsys.readouterr().out)["catalogue"]
        return text, one

    text, one = listed()
    assert text.endswith("a tiny pair; mit")
    assert (one["here"], one["complete"]) == (0, False)
    part = place(Source("o/good", "m.gguf"), downloads()) / "m.gguf.abc.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(bytes(1 << 20))
    text, one = listed()
    assert text.endswith("a tiny pair; mit; 1.0 MiB of it is on this machine")
    assert (one["here"], one["complete"]) == (1 << 20, False)
    assert get.get("tiny", None, yes=True, endpoint=hub.endpoint) == 0
    capsys.readouterr()
    text, one = listed()
    assert text.endswith("a tiny pair; mit; on this machine")
    assert (one["here"], one["complete"]) == (3 * len(BODY), True)


@pytest.mark.usefixtures("tiny")
def test_ctrl_c_keeps_what_is_here(
    hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def half_way(notes: get.Notes, line: str, done: float) -> None:
        if done > 0.5:
            signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as half:
        half.setattr(get.Notes, "progress", half_way)
        assert get.get("tiny", tmp_path / "to", yes=True, endpoint=hub.endpoint) == 130
    assert f"interrupted; 1.6 MiB saved in {tmp_path / 'to'}" in capsys.readouterr().err
    assert get.get("tiny", tmp_path / "to", yes=True, endpoint=hub.endpoint) == 0


def test_what_does_not_fit_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    from dflash_core.nvml import CardMemory

    monkeypatch.setattr(fitting, "cards", lambda: (CardMemory("NVIDIA GeForce RTX 3060", 12 << 30, 0),))
    assert fitting.by_size(4 << 30).startswith("fits: about 5.6 GiB of 12.0 GiB")
    assert fitting.by_size(16 << 30).startswith("does not fit: about 17.6 GiB")


def test_where_files_are_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "path", "--json"]) == 0
    paths = json.loads(capsys.readouterr().out)
    assert paths["catalogue"]["path"].endswith("catalogue.toml")
    assert paths["profiles"]["path"].endswith("presets")
    assert paths["data"]["path"] == str(data_folder())
