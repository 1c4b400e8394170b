"""A machine with models, and an app on it that lists them: for tests of the list, of profiles and of downloads."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from textual.pilot import Pilot

from dflash_core.demo import demo_draft_path, demo_target_path
from dflash_core.errors import DeviceError, FormatError
from dflash_core.memory import HostMemory
from dflash_core.progress import Progress
from dflash_tui.app import DFlashApp
from dflash_tui.application.hub import fetch, fitting
from dflash_tui.application.hub.catalogue import Catalogue, Pair, Source
from dflash_tui.application.hub.fitting import FitCheck
from dflash_tui.application.session import Loader, LoadRequest
from dflash_tui.chat.offered import PAIR
from dflash_tui.screens import models as screen
from dflash_tui.screens.models import ModelsScreen
from support.hub_server import Hub, serving

from .fake import FakeSession
from .scenes import send
from .support import loaded, shows, wait_until

MakeApp = Callable[..., DFlashApp]
TARGET, DRAFT = "Qwen3.6-27B-Q4_K_M.gguf", "Qwen3.6-27B-DFlash.gguf"


def furnish(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two models and a drafter, 32 GiB, and none of the user's own caches."""
    for name in ("XDG_DATA_HOME", "XDG_CACHE_HOME", "HF_HOME", "LLAMA_CACHE", "OLLAMA_MODELS"):
        monkeypatch.setenv(name, str(home / name.lower()))
    near = home / "near"
    near.mkdir()
    shutil.copy(demo_target_path(), near / TARGET)
    shutil.copy(demo_draft_path(), near / DRAFT)
    other = home / "models" / "Other-4B.gguf"
    other.parent.mkdir()
    shutil.copy(demo_target_path(), other)
    monkeypatch.chdir(near)
    monkeypatch.setattr(fitting, "host_memory", lambda: HostMemory(32 << 30, 30 << 30, 0))
    monkeypatch.setattr(fitting, "Management", _no_cards)
    fit = FitCheck(32768, 32768, 5 << 30, 0, "a card", weights=3 << 30, files=(3 << 30, 0))
    monkeypatch.setattr(screen, "fit_check", lambda request, freed: fit)


def _no_cards() -> None:
    raise DeviceError("no card")


PAIRS = {
    one.name: one
    for one in (
        Pair("tiny", "a tiny pair", "mit", Source("o/good", "tiny.gguf"), Source("o/also", "d.gguf")),
        Pair("lost", "not there", "", Source("o/gone", "m.gguf"), None),
        Pair("broken", "breaks off", "", Source("o/cut", "m.gguf"), None),
        Pair("slow-1", "waits in the middle", "mit", Source("o/slow", "m.gguf"), None),
        Pair("slow-2", "waits in the middle", "mit", Source("p/slow", "m.gguf"), None),
        Pair("slow-3", "waits in the middle", "mit", Source("q/slow", "m.gguf"), None),
        Pair("twin", "has the target of slow-1", "mit", Source("o/slow", "m.gguf"), Source("o/also", "d.gguf")),
        *(Pair(f"bad-{repo}", "", "", Source(f"o/{repo}", "m.gguf"), None) for repo in ("secret", "busy", "page")),
    )
}


@contextmanager
def a_hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub with the files of `PAIRS`, which are the catalogue."""
    for place in ("screens.models", "slash.pages", "chat.downloads", "application.hub.catalogue"):
        monkeypatch.setattr(f"dflash_tui.{place}.load_catalogue", lambda: Catalogue(PAIRS, ()))
    monkeypatch.setattr(fetch, "PAUSE_S", 0.01)
    monkeypatch.setattr(fetch, "TIMEOUT_S", 300.0)
    monkeypatch.setattr(fitting, "cards", lambda: ())
    with serving() as it:
        for name, value in (
            ("ENDPOINT", it.endpoint),
            ("HUGGINGFACE_CO_URL_TEMPLATE", it.endpoint + "/{repo_id}/resolve/{revision}/{filename}"),
        ):
            monkeypatch.setattr(f"huggingface_hub.constants.{name}", value)
        it.cut_at = 0.5
        yield it


class Opened:
    """An app with the list of models open, and what it was asked to load."""

    def __init__(self, make_app: MakeApp, **options: object) -> None:
        self.asked: list[LoadRequest] = []
        self.refuse = ""  # the name of a target that does not load

        def loaders(request: LoadRequest) -> Loader:
            self.asked.append(request)

            def load(progress: Progress) -> FakeSession:
                if self.refuse and request.target is not None and self.refuse in request.target.name:
                    raise FormatError(f"{self.refuse} is damaged")
                return FakeSession(title=request.target.name if request.target else "demo pair")

            return load

        self.app = make_app(loaders=loaders, **options)

    async def open(self, pilot: Pilot[int], command: str = "/models") -> ModelsScreen:
        await loaded(pilot)
        await send(pilot, command)
        await wait_until(pilot, lambda: isinstance(self.app.screen, ModelsScreen))
        return await self.found(pilot)

    async def found(self, pilot: Pilot[int]) -> ModelsScreen:
        """Wait until everything has been checked and drawn."""
        it = self.screen
        await wait_until(pilot, lambda: it._finding.looked and it._seen == it._finding.changes)
        await wait_until(pilot, lambda: len(it._finding.fits) >= len(it._finding.models))
        await wait_until(pilot, lambda: it._seen == it._finding.changes)
        return it

    @property
    def screen(self) -> ModelsScreen:
        assert isinstance(self.app.screen, ModelsScreen)
        return self.app.screen

    async def to(self, pilot: Pilot[int], id: str) -> None:
        """Move the cursor to a row."""
        ids = [one.id for one in self.screen._list.options]
        self.screen._list.highlighted = ids.index(id)
        await pilot.pause()

    async def fetch(self, pilot: Pilot[int], name: str, *told: str) -> None:
        """Open the row of a downloadable pair, and confirm once all of `told` is shown."""
        await self.to(pilot, f"{PAIR}{name}")
        await pilot.press("enter")
        await shows(pilot, *told, "Enter fetches it")
        await pilot.press("enter")

    async def closed(self, pilot: Pilot[int]) -> None:
        await wait_until(pilot, lambda: self.app.screen is self.app.chat)
        await loaded(pilot)
