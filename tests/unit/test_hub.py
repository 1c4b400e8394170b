"""Fetching from a hub, against a server of our own that speaks its protocol: cut, resumed, refused."""

from __future__ import annotations

import hashlib
import io
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from dflash_core.demo import demo_draft_path, demo_target_path
from dflash_tui.cli import models
from dflash_tui.cli.command_line import main
from dflash_tui.hub import catalogue as catalogues
from dflash_tui.hub import fetch as fetching
from dflash_tui.hub.catalogue import CatalogueError, Pair, Source, load_catalogue
from dflash_tui.hub.fetch import HubError, Wanted, check_room, fetch, place, wanted
from dflash_tui.hub.find import found, places

BODY = bytes(range(256)) * 4096  # 1 MiB
COMMIT = "0" * 40


class Hub(BaseHTTPRequestHandler):
    """Files of repositories whose names say what is wrong with them. `asked` has the ranges that were asked for."""

    asked: ClassVar[list[str]] = []
    cut_once = True

    def _answer(self, *, body: bool) -> None:
        repo = self.path.split("/")[2]
        statuses = {"secret": 401, "gone": 404, "busy": 429, "broken": 500}
        if repo in statuses:
            self.send_response(statuses[repo])
            if repo == "gone":
                self.send_header("X-Error-Code", "RepoNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        if repo == "page":
            text = b"<html>Sign in to the hotel's network</html>"
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            if body:
                self.wfile.write(text)
            return
        start = 0
        if asked := self.headers.get("Range"):
            start = int(asked.removeprefix("bytes=").split("-")[0])
            Hub.asked.append(asked)
        self.send_response(206 if asked else 200)
        self.send_header("ETag", f'"{hashlib.sha256(BODY).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(len(BODY) - start))
        if asked:
            self.send_header("Content-Range", f"bytes {start}-{len(BODY) - 1}/{len(BODY)}")
        self.end_headers()
        if not body:
            return
        rest = BODY[start:]
        if repo == "cut" or (repo == "flaky" and Hub.cut_once):
            Hub.cut_once = False
            rest = rest[: len(rest) // 3]
        self.wfile.write(rest)
        if len(rest) < len(BODY) - start:
            self.connection.close()

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def log_message(self, *_: object) -> None:
        """Nothing on stderr."""


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join(5)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 1 << 16)  # what is written at a time


def pair(repo: str) -> Pair:
    return Pair("p", "a pair", "mit", Source(f"o/{repo}", "m.gguf"), None)


def nothing(file: str, here: int, size: int) -> None:
    pass


def test_sizes_first_then_the_file(endpoint: str, tmp_path: Path) -> None:
    [one] = wanted(pair("good"), endpoint)
    assert one.size == len(BODY)
    told: list[tuple[int, int]] = []
    path = fetch(one, tmp_path, lambda file, here, size: told.append((here, size)), endpoint)
    assert path.read_bytes() == BODY
    assert path == place(one.source, tmp_path) / "m.gguf"
    assert told[-1] == (len(BODY), len(BODY))


def test_a_cut_connection_is_gone_on_with(endpoint: str, tmp_path: Path) -> None:
    Hub.cut_once, Hub.asked = True, []
    [one] = wanted(pair("flaky"), endpoint)
    for _ in range(3):
        try:
            path = fetch(one, tmp_path, nothing, endpoint)
        except HubError:
            continue
        break
    assert path.read_bytes() == BODY
    assert any(not asked.startswith("bytes=0-") for asked in Hub.asked), "not from the beginning again"


@pytest.mark.parametrize(
    ("repo", "why"),
    [
        ("secret", "(401)"),
        ("gone", "not on the hub (404)"),
        ("busy", "429"),
        ("page", "look at HF_ENDPOINT"),
    ],
)
def test_refusals_are_one_line(endpoint: str, repo: str, why: str) -> None:
    with pytest.raises(HubError) as refused:
        wanted(pair(repo), endpoint)
    assert why in str(refused.value)
    assert "\n" not in str(refused.value)


def test_no_hub_at_all() -> None:
    with pytest.raises(HubError) as refused:
        wanted(pair("good"), "http://127.0.0.1:9")
    assert "\n" not in str(refused.value)


def test_a_full_disk_is_said_before_a_byte_is_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching.shutil, "disk_usage", lambda path: type("Usage", (), {"free": 1000})())
    with pytest.raises(HubError, match="make room"):
        check_room([Wanted(Source("o/good", "m.gguf"), "m.gguf", 10**9)], tmp_path / "not" / "there")


def test_the_catalogue_of_the_program_is_sound() -> None:
    it = load_catalogue()
    assert it.problems == ()
    assert it.pairs
    with pytest.raises(CatalogueError, match="did you mean qwen3-8b"):
        it["qwen38b"]


@pytest.mark.parametrize(
    "entry",
    [
        'target = { repo = "o/n", file = "../../.bashrc" }',
        'target = { repo = "o/n", file = "/etc/passwd" }',
        'target = { repo = "../n", file = "m.gguf" }',
        'target = { repo = "o/n/x", file = "m.gguf" }',
        'target = { repo = "o/n", file = "a\\u001b[2Jb" }',
        'target = { repo = "o/n" }',
        'target = "o/n"',
        'about = 3\ntarget = { repo = "o/n", file = "m.gguf" }',
        'target = { repo = "o/n", file = "m.gguf", beside = ["..", "x"] }',
    ],
)
def test_hostile_entries_are_left_out_and_named(tmp_path: Path, entry: str) -> None:
    path = tmp_path / "catalogue.toml"
    path.write_text(f"[pairs.bad]\n{entry}\n\n[pairs.good]\ntarget = {{ repo = 'o/n', file = 'm.gguf' }}\n")
    it = load_catalogue(path)
    assert "good" in it.pairs
    assert "bad" not in it.pairs
    [problem] = it.problems
    assert "line 1" in problem
    assert "\n" not in problem
    assert "\x1b" not in problem


def test_get_on_the_command_line(
    endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = Pair(
        "tiny", "a tiny pair", "mit", Source("o/good", "m.gguf"), Source("o/also", "d.safetensors", ("config.json",))
    )
    monkeypatch.setattr(models, "load_catalogue", lambda: catalogues.Catalogue({"tiny": entry}, ()))
    monkeypatch.setattr("sys.stdin", io.StringIO())
    assert models.get("tiny", tmp_path / "to", yes=False, endpoint=endpoint) == 1
    err = capsys.readouterr().err
    assert "licence: mit" in err
    assert "o/good/m.gguf  1.0 MiB" in err
    assert "--yes fetches without asking" in err
    assert not (tmp_path / "to").exists()
    assert models.get("tiny", tmp_path / "to", yes=True, endpoint=endpoint) == 0
    out = capsys.readouterr().out
    assert out == f"dflash-tui --target {tmp_path}/to/o--good/m.gguf --draft {tmp_path}/to/o--also\n"
    assert (tmp_path / "to" / "o--also" / "config.json").read_bytes() == BODY
    assert main(["get", "nothing-like-it"]) == 1
    assert "no pair 'nothing-like-it'" in capsys.readouterr().err


def test_models_on_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, draft = demo_target_path(), demo_draft_path()
    hub = tmp_path / "xdg_cache_home" / "huggingface" / "hub" / "models--o--n" / "snapshots" / "1"
    hub.mkdir(parents=True)
    (hub / "model.gguf").symlink_to(target)
    blobs = tmp_path / ".ollama" / "models" / "blobs"
    blobs.mkdir(parents=True)
    (blobs / "sha256-1").write_bytes(b"GGUF but no more")
    (blobs / "sha256-2").write_bytes(b"a licence")
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    named = places({"XDG_CACHE_HOME": str(tmp_path / "xdg_cache_home")}, tmp_path)
    assert [name for name, _ in named] == ["here", "Hugging Face", "ollama"]
    [one] = list(found(named))
    assert (one.where, one.architecture) == ("Hugging Face", "qwen35")
    assert one.size == target.stat().st_size
    (here / "copy.gguf").symlink_to(target)
    (here / "a-dflash-draft.gguf").symlink_to(draft) if draft.suffix == ".gguf" else (here / "dflash").symlink_to(draft)
    [again] = list(found(named))
    assert again.where == "here", "the same file is named once"
    assert len(again.drafters) == 1
