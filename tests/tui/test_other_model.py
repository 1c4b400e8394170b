"""Another model from the list or by its path, the first start, and how the dialogs look."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.widgets import Input, OptionList

from dflash_core.demo import demo_target_path, smollm2_draft_path
from dflash_core.errors import DeviceError, FormatError
from dflash_core.memory import HostMemory
from dflash_tui.app import DFlashApp
from dflash_tui.application.hub import find
from dflash_tui.application.hub.fitting import FitCheck, fit_check
from dflash_tui.application.hub.header import ModelHeader
from dflash_tui.application.session import Loader, LoadRequest, Progress
from dflash_tui.application.settings.config import load_config, user_file
from dflash_tui.screens.full import ThemesScreen
from dflash_tui.screens.models import ModelsScreen
from dflash_tui.widgets.strip import TitleRow

from .fake import FakeSession, loader
from .scenes import send
from .support import leave, loaded, settled, shows, wait_until

MakeApp = Callable[..., DFlashApp]
Snapshot = Callable[[str, str], None]
Size = tuple[int, int]


async def models(pilot: Pilot[int], app: DFlashApp) -> None:
    """Open the list of models."""
    await loaded(pilot)
    await send(pilot, "/load")
    await wait_until(pilot, lambda: isinstance(app.screen, ModelsScreen))


def models_app(make_app: MakeApp, requests: list[LoadRequest], **options: object) -> DFlashApp:
    def loaders(request: LoadRequest) -> object:
        requests.append(request)
        return loader(FakeSession(title=request.target.name if request.target else "demo pair"))

    return make_app(loaders=loaders, **options)


async def test_another_model_from_the_list(make_app: MakeApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "deep").mkdir()
    for name in ("big.gguf", "deep/other.gguf"):
        shutil.copy(demo_target_path(), tmp_path / name)
    monkeypatch.chdir(tmp_path)
    requests: list[LoadRequest] = []
    app = models_app(make_app, requests)
    async with app.run_test(size=(100, 30)) as pilot:
        await models(pilot, app)
        await shows(pilot, "big.gguf", "other.gguf", "no drafter")
        await pilot.press("down", "enter")
        await wait_until(pilot, lambda: len(requests) == 1)
        await shows(pilot, "big.gguf")
        assert requests[0].target == tmp_path / "big.gguf"
        assert requests[0].draft is None
        # It is written down once the load has ended, which the list's own words do not wait for.
        await wait_until(pilot, lambda: load_config({}, {}, project=Path("none")).settings.target is not None)
    found = load_config({}, {}, project=Path("none"))
    assert found.settings.target == tmp_path / "big.gguf"


async def test_a_model_that_does_not_load_is_not_what_the_next_start_opens(make_app: MakeApp, tmp_path: Path) -> None:
    def loaders(request: LoadRequest) -> Loader:
        def load(progress: Progress) -> FakeSession:
            if request.target is not None and request.target.name == "bad.gguf":
                raise FormatError("bad.gguf is not a GGUF file")
            return FakeSession()

        return load

    for name in ("good", "bad"):
        (tmp_path / f"{name}.gguf").write_bytes(b"")
    app = make_app(loaders=loaders)
    async with app.run_test(size=(100, 30)) as pilot:
        await loaded(pilot)
        await send(pilot, f"/load {tmp_path / 'good.gguf'}")
        await wait_until(pilot, lambda: app.chat.state.session is not None and user_file().exists())
        await send(pilot, f"/load {tmp_path / 'bad.gguf'}")
        await shows(pilot, "the model did not load: bad.gguf")
    assert load_config({}, {}, project=Path("none")).settings.target == tmp_path / "good.gguf"


async def test_files_that_are_no_model_leave_the_present_one(make_app: MakeApp, tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("hello")
    looked = threading.Event()
    asked: list[LoadRequest] = []

    def check(request: LoadRequest) -> None:
        if request.target is not None:
            looked.wait()
            raise FormatError("note.txt is not a GGUF file")

    def loaders(request: LoadRequest) -> Loader:
        asked.append(request)
        return loader(FakeSession())

    app = make_app(loaders=loaders, check=check)
    async with app.run_test(size=(100, 30)) as pilot:
        await loaded(pilot)
        present = app.chat.state.session
        assert present is not None
        await send(pilot, f"/load {tmp_path / 'note.txt'}")
        await send(pilot, "what is this?")
        looked.set()
        await shows(pilot, "the model did not load: note.txt is not a GGUF file", "stays loaded")
        await wait_until(pilot, lambda: app.chat.prompt.text == "what is this?")
        assert app.chat.state.session is present
        assert app.chat.query_one(TitleRow).title == present.title
        await pilot.press("enter")
        await wait_until(pilot, lambda: not app.chat.state.busy and len(present.conversation.messages) == 2)
        await send(pilot, "/reload")
        await wait_until(pilot, lambda: app.chat.state.session not in (None, present))
        assert asked[-1].target is None, "what is loaded again is the pair that stayed"


async def test_a_path_that_is_not_there_is_refused_in_the_dialog(make_app: MakeApp) -> None:
    app = models_app(make_app, [])
    async with app.run_test(size=(100, 30)) as pilot:
        await models(pilot, app)
        target = app.screen.query_one("#models-target", Input)
        target.focus()
        target.value = "/none/such.gguf"
        await pilot.press("enter")
        await shows(pilot, "/none/such.gguf: no such file or folder")
        assert target.value == "/none/such.gguf", "what was typed stays"
        await pilot.press("escape")
        assert target.value == ""
        await leave(pilot)
        assert app.chat.state.session is not None
        await send(pilot, "/load /none/such.gguf")
        await shows(pilot, "/none/such.gguf: no such file or folder")


async def test_a_path_completes(make_app: MakeApp, tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "x.gguf").write_bytes(b"")
    app = models_app(make_app, [])
    async with app.run_test(size=(100, 30)) as pilot:
        await models(pilot, app)
        target = app.screen.query_one("#models-target", Input)
        target.focus()
        target.value = f"{tmp_path}/mo"
        target.cursor_position = len(target.value)
        for expected in (f"{tmp_path}/models/", f"{tmp_path}/models/x.gguf"):
            await wait_until(pilot, lambda expected=expected: target._suggestion == expected)
            await pilot.press("right")
            assert target.value == expected


async def test_the_first_start_asks_once(make_app: MakeApp) -> None:
    app = models_app(make_app, [], first_run=True)
    async with app.run_test(size=(100, 30)) as pilot:
        await shows(pilot, "Welcome", "demo pair", "free")
        await pilot.press("enter")
        await loaded(pilot)
        await wait_until(pilot, lambda: app.screen is app.chat)
    found = load_config({}, {}, project=Path("none"))
    assert "target" in found.origins, "so that the next start does not ask"
    assert found.settings.target is None


# Pictures in text


def no_management() -> None:
    raise DeviceError("no driver")


async def test_snapshots_of_the_dialogs(
    make_app: MakeApp,
    snapshot: Snapshot,
    picture: Callable[[str, DFlashApp], None],
    size: Size,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "near").mkdir()
    model = tmp_path / "near" / "Qwen3.6-27B-Q4_K_M.gguf"
    model.write_bytes(b"GGUF")
    os.truncate(model, 16_547_400_000)  # of that size, and nearly all of it a hole
    monkeypatch.chdir(tmp_path / "near")
    monkeypatch.setattr("dflash_tui.application.hub.fitting.host_memory", lambda: HostMemory(64 << 30, 12 << 30, 0))
    monkeypatch.setattr("dflash_tui.application.hub.fitting.Management", no_management)
    header = ModelHeader("target", "", "Qwen3.6 27B", "qwen35", 26_900_000_000, "Q4_K", 262_144, 5120, own_head=True)
    read = find.read_header

    def given(path: Path, *, folder: bool = False) -> ModelHeader | None:
        return read(path, folder=folder) if path == smollm2_draft_path() else header

    monkeypatch.setattr(find, "read_header", given)
    room = FitCheck(32_768, 32_768, 19 << 30, 0, "12.0 GiB of main memory, on the CPU", weights=17 << 30)

    def checked(request: LoadRequest, freed: int) -> FitCheck:
        """Of models to fetch the sizes are their own: the picture is one of the documents'."""
        known = request.target is not None and request.target.exists()
        it = fit_check(replace(request, device="cpu"), 64 << 30)
        return room if known else replace(room, weights=it.weights, files=it.files)

    monkeypatch.setattr("dflash_tui.screens.models.fit_check", checked)
    app = models_app(make_app, [], first_run=True)
    prefix = f"{size[0]}x{size[1]}"
    async with app.run_test(size=size) as pilot:
        # Sizes come one after the other: the last one that there are lines for.
        last = "about 17.5 GiB" if size == (80, 24) else "about 17.9 GiB"
        await shows(pilot, "Welcome", "fits, 32,768 positions", last)
        await loaded(pilot)
        await shows(pilot, "● demo pair")
        snapshot(f"{prefix}-first-run", await settled(pilot))
        if size == (80, 24):
            picture("first-run", app)
        await leave(pilot)
        await send(pilot, "/theme")
        await wait_until(pilot, lambda: isinstance(app.screen, ThemesScreen))
        assert app.screen.query_one(OptionList).highlighted == 0
        snapshot(f"{prefix}-themes", await settled(pilot))
        await leave(pilot)
        app.chat.prompt.focus()
        await pilot.press("slash", "t")
        snapshot(f"{prefix}-completion", await settled(pilot))
