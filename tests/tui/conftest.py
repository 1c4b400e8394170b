"""Fixtures of the app's tests."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dflash_core.knobs import Knobs
from dflash_tui.app import DFlashApp
from dflash_tui.application import collector
from dflash_tui.application.conversations.store import Store
from dflash_tui.application.session import LoadRequest
from dflash_tui.application.settings.config import Config
from dflash_tui.chat import background_plain
from dflash_tui.terminal import key_order
from support import seeds
from support.hub_server import Hub
from support.process_end import process_stays

from .all_handled import have_pilot_wait
from .fake import FakeSession, loader
from .few_frames import draw_few
from .model_machine import a_hub, furnish
from .shared_work import share_all
from .support import HANGS_S, SIZES

DOCS = Path(__file__).parents[2] / "docs"
SNAPSHOTS = Path(__file__).parent / "snapshots"


share_all()
have_pilot_wait(HANGS_S)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-snapshots", action="store_true", help="write the screens of the app's tests again")


@pytest.fixture(params=SIZES, ids=[f"{width}x{height}" for width, height in SIZES])
def size(request: pytest.FixtureRequest) -> tuple[int, int]:
    """Each of the three terminal sizes that the app is made for."""
    return request.param


@pytest.fixture(autouse=True)
def worker_stays() -> Iterator[None]:
    """Code that would end the process makes one test fail instead of ending the run."""
    with process_stays():
        yield


@pytest.fixture(autouse=True)
def only_the_tests_are_frozen(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program loads a few models, this process hundreds: objects frozen by each load would never be freed, and each
    full collection would go through all that earlier tests have left. Tests of the collector use `real_collector`."""
    if "real_collector" not in request.fixturenames:
        monkeypatch.setattr(collector, "calm", lambda: None)
        monkeypatch.setattr(collector, "release", lambda: gc.collect(1))
        monkeypatch.setattr(collector, "tidy", lambda: None)


@pytest.fixture(autouse=True)
def plain_decoding_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a slow machine it would begin in the midst of a test; those of it set the time themselves."""
    monkeypatch.setattr(background_plain, "QUIET_S", 3600.0)


@pytest.fixture(autouse=True)
def few_frames(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Most frames are not drawn: nobody sees them. Tests of drawing use `frames`; with `-m full` all are drawn."""
    if "frames" not in request.fixturenames and not seeds.fresh(request.config):
        draw_few(monkeypatch)


@pytest.fixture
def frames() -> None:
    """Each frame is drawn."""


@pytest.fixture
def real_collector() -> Iterator[None]:
    """Python's collector as the program sets it up, and afterwards as it was."""
    enabled, threshold = gc.isenabled(), gc.get_threshold()
    yield
    gc.set_threshold(*threshold)
    (gc.enable if enabled else gc.disable)()


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The app looks the same for every user and in every terminal."""
    monkeypatch.setenv("HOME", str(tmp_path))  # "~" on the screen, however long the path
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TEXTUAL_ANIMATIONS", "none")


@pytest.fixture(autouse=True)
def keys_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next key waits for the one before, however slow the machine is."""
    monkeypatch.setattr(key_order, "LONGEST_S", HANGS_S)


@pytest.fixture
def no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal without color. Request it before the app is made; `settled(pilot, bare_text)` is then the screen."""
    monkeypatch.setenv("NO_COLOR", "1")


@pytest.fixture
def make_app(tmp_path: Path) -> Callable[..., DFlashApp]:
    """An app over a scripted session, with its own data folder."""

    def make(session: FakeSession | None = None, knobs: Knobs | None = None, **options: object) -> DFlashApp:
        load = options.pop("load", None) or loader(session or FakeSession())
        options.setdefault("data_dir", tmp_path / "data")
        if theme := options.pop("theme", ""):
            options["config"] = Config(themes=((str(theme), ""),))
        request = options.pop("request", None) or LoadRequest(resume=str(options.pop("resume", "")))
        return DFlashApp(request, load, knobs, **options)  # type: ignore[arg-type]

    return make


@pytest.fixture
def model_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home of a machine with two models and a drafter."""
    furnish(tmp_path, monkeypatch)
    return tmp_path


@pytest.fixture
def hub(model_home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub that this machine can reach."""
    with a_hub(monkeypatch) as it:
        yield it


@pytest.fixture
def picture(request: pytest.FixtureRequest) -> Callable[[str, DFlashApp], None]:
    """Write a screen into docs/ as SVG, with `--update-snapshots` or where it is missing."""

    def save(name: str, app: DFlashApp) -> None:
        path = DOCS / f"{name}.svg"
        svg = app.export_screenshot(title="dflash-tui")
        if request.config.getoption("--update-snapshots", default=False) or not path.exists():
            path.write_text(svg, encoding="utf-8")

    return save


@pytest.fixture
def snapshot(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compare a screen's text with the stored one; `pytest tests/tui --update-snapshots` writes it again."""

    def check(name: str, text: str) -> None:
        path = SNAPSHOTS / f"{name}.txt"
        if request.config.getoption("--update-snapshots", default=False):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
            return
        assert path.exists(), f"no snapshot {path.name}; pytest tests/tui --update-snapshots writes it"
        expected = path.read_text(encoding="utf-8")
        if text != expected:
            sys.stdout.write(text)
        assert text.splitlines() == expected.splitlines()

    return check


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """The store of the app that `make_app` makes."""
    return Store(tmp_path / "data")
