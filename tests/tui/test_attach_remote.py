"""The app over other engines: chat, panels that say what is not known, parameters, and changing to them and back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from dflash_core.knobs import Knobs
from dflash_tui.app import DFlashApp
from dflash_tui.application.attach import attaching
from dflash_tui.application.attach.remote import RemoteSession
from dflash_tui.application.conversations.store import Store
from dflash_tui.application.session import Loader, LoadRequest
from dflash_tui.launch import check
from dflash_tui.launch import loader as of_program
from support.engine_recordings import OLLAMA, SSE, VLLM
from support.engine_server import Replaying, replaying, stream

from .fake import FakeSession
from .fake import loader as of_fake
from .support import ask, idle, loaded, screen_text, shows, wait_until

KNOBS = Knobs(max_tokens=20, temperature=0.6)
sizes = pytest.mark.parametrize("size", [(80, 24), (120, 40)], ids=lambda size: f"{size[0]}x{size[1]}")


@pytest.fixture
def server() -> Iterator[Replaying]:
    with replaying(VLLM) as found:
        yield found


def loaders(request: LoadRequest) -> Loader:
    """As the program's, with a scripted pair in place of files."""
    return of_program(request) if request.attach else of_fake(FakeSession())


def checked(request: LoadRequest) -> None:
    if request.attach:
        check(request)


@pytest.fixture
def attached_app(make_app: Callable[..., DFlashApp], server: Replaying) -> DFlashApp:
    request = LoadRequest(attach=server.url, attach_key="a-key")
    return make_app(request=request, load=loaders(request), loaders=loaders, check=checked, knobs=KNOBS)


@pytest.fixture
def local_app(make_app: Callable[..., DFlashApp]) -> DFlashApp:
    return make_app(loaders=loaders, check=checked, knobs=KNOBS)


@sizes
async def test_chat_and_panels_over_another_engine(attached_app: DFlashApp, size: tuple[int, int]) -> None:
    app = attached_app
    async with app.run_test(size=size) as pilot:
        await loaded(pilot)
        await shows(pilot, "attached to vLLM: test-model")
        await ask(pilot, "Why?")
        await wait_until(pilot, lambda: app.state.turn.report is not None)
        await idle(pilot)
        await shows(pilot, "Yes, it is.", "64 tok/s", "80 tok", "6.6 tok/step", "remote")
        await pilot.press("f3")
        await shows(pilot, "6.58 tok/step", "accepted by depth")
        if size[1] > 24:  # else further down
            await shows(pilot, "9,504 of", "figures of vLLM")
        await pilot.press("f4")
        await shows(pilot, "vLLM reports no trees and candidates")
        await pilot.press("f5")
        await shows(pilot, "37% of its")
        assert "predicted" not in screen_text(app)
        assert "0.0/0G" not in screen_text(app)
        await pilot.press("f2")
        await shows(pilot, "vLLM takes these; drafting and the rest are")
        assert not app.chat.inspector.params_panel.row("drafting").display
        assert app.chat.inspector.params_panel.row("top_k").display
        assert "p_min" not in screen_text(app)
        await pilot.press("escape")


async def test_what_it_does_not_take_and_cannot_do_is_one_line(attached_app: DFlashApp) -> None:
    app = attached_app
    async with app.run_test(size=(160, 48)) as pilot:
        await loaded(pilot)
        await ask(pilot, "Why?")
        await wait_until(pilot, lambda: app.state.turn.report is not None)
        await idle(pilot)
        for typed, said in (
            ("/set drafting tree 16", "drafting has no effect: vLLM takes"),
            ("/serve 0", "the model is on the server"),
            ("/profile save mine", "the model is on a server; a profile names files of this machine"),
        ):
            await ask(pilot, typed)
            await shows(pilot, said)
            app.chat.prompt.text = ""
        await ask(pilot, "/set temperature 0.9")
        assert app.state.knobs.temperature == 0.9
        await ask(pilot, "/whatif")
        await shows(pilot, "vLLM reports no steps")
        await pilot.press("escape")
        await ask(pilot, "/steps")
        await shows(pilot, "vLLM reports no steps")
        await pilot.press("escape")
        assert "Traceback" not in screen_text(app)


async def test_branches_search_and_the_stored_conversation(
    attached_app: DFlashApp, make_app: Callable[..., DFlashApp], server: Replaying, tmp_path: Path
) -> None:
    app = attached_app
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        await ask(pilot, "Why?")
        await wait_until(pilot, lambda: app.state.turn.report is not None)
        await idle(pilot)
        await pilot.press("ctrl+r")
        await shows(pilot, "‹2/2›")
        await idle(pilot)
        report = app.state.turn.report
    assert report is not None
    store = Store(tmp_path / "data", lambda: None)
    card = store.list("yes it is")[0].card
    assert card.model == f"test-model at {server.url}"
    answers = [node for node in store.branches(card.id).nodes if node.role == "assistant"]
    assert [node.content for node in answers] == ["Yes, it is."] * 2
    assert [node.thinking for node in answers] == ["Let me see."] * 2
    assert answers[-1].report == report
    store.close()
    again = make_app(resume="last", knobs=KNOBS)
    async with again.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        await shows(pilot, "Yes, it is.", "6.6 tok/step", "remote")


async def test_a_server_that_dies_leaves_the_text(attached_app: DFlashApp, server: Replaying) -> None:
    begun = b"\n\n".join(VLLM.stream.split(b"\n\n")[:3]) + b"\n\n"
    server.answers[VLLM.path] = lambda to: stream(to, begun, SSE, whole=False)
    async with attached_app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        await ask(pilot, "Why?")
        await shows(pilot, "the server ended the connection in mid-answer", "Yes, it", "failed")
        await idle(pilot)
        del server.answers[VLLM.path]
        await pilot.press("ctrl+r")
        await shows(pilot, "Yes, it is.")
        await idle(pilot)


async def test_to_a_server_and_back(local_app: DFlashApp, server: Replaying) -> None:
    app = local_app
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        here = app.state.model
        await ask(pilot, "/detach")
        await shows(pilot, "the model is in this program")
        app.chat.prompt.text = ""
        await ask(pilot, f"/attach {server.url}/v1 test-model")
        await wait_until(pilot, lambda: isinstance(app.state.session, RemoteSession))
        await shows(pilot, "attached to vLLM")
        assert not app.chat.inspector.params_panel.row("drafting").display
        await ask(pilot, "Why?")
        await wait_until(pilot, lambda: app.state.turn.report is not None)
        await idle(pilot)
        await ask(pilot, "/detach")
        await wait_until(pilot, lambda: app.state.model == here)
        assert app.chat.inspector.params_panel.row("drafting").display
        assert not app.chat.inspector.params_panel.query_one("#params-untaken").display
        await ask(pilot, "/set drafting tree 16")
        assert app.state.knobs.drafting == "tree 16"


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("/attach {gone}", "does not answer"),
        ("/attach {here} other", "vLLM has no model 'other'; it has test-model"),
    ],
)
async def test_a_server_that_cannot_be_used_changes_nothing(
    local_app: DFlashApp, server: Replaying, typed: str, said: str
) -> None:
    app = local_app
    async with app.run_test(size=(160, 48)) as pilot:
        await loaded(pilot)
        session = app.state.session
        await ask(pilot, typed.format(gone="http://127.0.0.1:9", here=server.url))
        await shows(pilot, said, "stays loaded")
        assert app.state.session is session


async def test_what_is_no_address_is_refused_at_once(local_app: DFlashApp) -> None:
    async with local_app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        for typed, said in (("/attach ftp://x", "expected an address"), ("/attach a b c", "write /attach URL")):
            await ask(pilot, typed)
            await shows(pilot, said)
            local_app.chat.prompt.text = ""


async def test_a_key_is_for_its_own_server(
    attached_app: DFlashApp, server: Replaying, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DFLASH_TUI_API_KEY", raising=False)
    with replaying(OLLAMA) as other:
        async with attached_app.run_test(size=(120, 40)) as pilot:
            await loaded(pilot)
            await ask(pilot, f"/attach {other.url}")
            await shows(pilot, "attached to Ollama")
        assert {sent for _, sent, _ in server.asked} == {"Bearer a-key"}
        assert {sent for _, sent, _ in other.asked} == {""}


async def test_servers_of_this_machine_are_listed(
    local_app: DFlashApp, server: Replaying, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attaching, "find", partial(attaching.find, [server.url, "http://127.0.0.1:9"], 60.0))
    async with local_app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        await ask(pilot, "/attach")
        await shows(pilot, f"{server.url}  vLLM: test-model", "/attach URL uses one")
        assert not isinstance(local_app.state.session, RemoteSession)
