"""A load that fails after the previous pair was unloaded: the previous pair is loaded again, and nothing is lost."""

from __future__ import annotations

import os
import shutil
import threading
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest

from dflash_core.errors import FormatError, KernelError, MismatchError, OutOfMemoryError
from dflash_core.knobs import Knobs
from dflash_core.progress import Progress
from dflash_tui.app import DFlashApp
from dflash_tui.application.session import Loader, LoadRequest, SessionLike
from dflash_tui.application.settings.config import load_config
from dflash_tui.widgets.flash import Note
from dflash_tui.widgets.strip import TitleRow
from support.golden import golden
from support.grids import full

from .fake import FakeSession
from .scenes import send
from .support import ask, contents, idle, loaded, shows, wait_until

MakeApp = Callable[..., DFlashApp]
DAMAGED = FormatError("big.gguf: tensor blk.3.attn_q.weight ends 1,204 bytes past the file; download it again")
TOO_LARGE = OutOfMemoryError("the drafter needs 9.1 GiB, and 4.0 GiB are free; a smaller one fits")


class Machine:
    """Loads pairs, each into a session of its own. `faults`: by target, the error that loading it raises. No context of
    more than `MAX_CONTEXT` positions fits."""

    MAX_CONTEXT = 32_768

    def __init__(self, **faults: Exception) -> None:
        self.faults: dict[str, Exception] = dict(faults)
        self.requests: list[LoadRequest] = []
        self.hold = threading.Event()
        self.hold.set()

    def __call__(self, request: LoadRequest) -> Loader:
        def load(progress: Progress) -> FakeSession:
            self.requests.append(request)
            name = request.target.stem if request.target is not None else "first"
            progress("weights", 0.5)
            if name in self.faults:
                raise self.faults[name]
            if request.context > self.MAX_CONTEXT:
                raise TOO_LARGE
            self.hold.wait()
            return FakeSession(title=name, context_length=request.context or self.MAX_CONTEXT)

        return load

    @property
    def asked(self) -> list[str]:
        """The targets, in the order in which they were asked for."""
        return [one.target.stem if one.target is not None else "first" for one in self.requests]


def app_of(make_app: MakeApp, machine: Machine, **options: object) -> DFlashApp:
    return make_app(load=machine(LoadRequest()), loaders=machine, **options)


def notes(app: DFlashApp) -> list[tuple[str, str]]:
    return [(one.message, one.advice) for one in app.chat.query(Note)]


@pytest.fixture
def big(tmp_path: Path) -> Path:
    """A file with some name; the simulated machine decides what is in it."""
    path = tmp_path / "big.gguf"
    path.write_bytes(b"")
    return path


@pytest.mark.parametrize(
    "fault", [DAMAGED, TOO_LARGE, full(KernelError("NVRTC does not take gdn.cu")), MemoryError("12")]
)
async def test_the_pair_before_is_there_again(make_app: MakeApp, big: Path, fault: Exception) -> None:
    machine = Machine(big=fault)
    app = app_of(make_app, machine, knobs=Knobs(drafting="tree 9"))
    async with app.run_test(size=(100, 40)) as pilot:
        await loaded(pilot)
        await ask(pilot, "hi")
        await idle(pilot)
        first = app.chat.state.session
        assert isinstance(first, FakeSession)
        said, machine.hold = contents(first), threading.Event()
        await send(pilot, f"/load {big}")
        await shows(pilot, "the model did not load:", "first is being loaded again.")
        assert app.chat.query_one(TitleRow).title == "first"
        await send(pilot, "half a thought")
        machine.hold.set()
        await loaded(pilot)
        await shows(pilot, "first is loaded again; the conversation goes on.", "messages for the other model")
        await wait_until(pilot, lambda: app.chat.prompt.text == "half a thought")
        again = app.chat.state.session
        assert isinstance(again, FakeSession)
        assert again is not first
        assert machine.asked == ["first", "big", "first"]
        assert contents(again) == said
        assert app.chat.state.knobs.budget == 9
        assert len(notes(app)) == 1
        assert str(fault) in notes(app)[0][0]
        assert load_config({}, {}, project=Path("none")).settings.target is None, "the next start opens what loads"
        await pilot.press("enter")
        await idle(pilot)
        await wait_until(pilot, lambda: len(contents(again)) == 4)
        await send(pilot, "/reload")
        await wait_until(pilot, lambda: app.chat.state.session not in (None, again))
        assert machine.asked[-1] == "first"


async def test_a_reload_with_too_long_a_context_goes_back_to_the_one_before(make_app: MakeApp) -> None:
    machine = Machine()
    app = app_of(make_app, machine)
    async with app.run_test(size=(100, 40)) as pilot:
        await loaded(pilot)
        await send(pilot, "/reload 8192")
        await wait_until(
            pilot, lambda: app.chat.state.session is not None and app.chat.state.session.context_length == 8192
        )
        before = app.chat.state.session
        await send(pilot, "/reload 500000")
        await wait_until(pilot, lambda: app.chat.state.session not in (None, before))
        await shows(pilot, "first is loaded again")
        assert [one.context for one in machine.requests] == [0, 8192, 500_000, 8192]
        assert app.chat.state.session is not None
        assert app.chat.state.session.context_length == 8192
        assert app.chat.state.context == 8192


async def test_a_profile_that_does_not_load_leaves_the_parameters(make_app: MakeApp, big: Path) -> None:
    machine = Machine()
    app = app_of(make_app, machine)
    async with app.run_test(size=(100, 40)) as pilot:
        await loaded(pilot)
        await send(pilot, f"/load {big}")
        await wait_until(pilot, lambda: app.chat.state.model == "big")
        await send(pilot, "/set budget=9")
        await send(pilot, "/profile save large")
        await send(pilot, "/set budget=5")
        await send(pilot, f"/load {shutil.copy(big, big.with_name('other.gguf'))}")
        await wait_until(pilot, lambda: app.chat.state.model == "other")
        machine.faults["big"] = MismatchError("the drafter was made for another target")
        await send(pilot, "/profile large")
        await shows(pilot, "made for another target", "other is loaded again")
        assert app.chat.state.knobs.budget == 5
        assert machine.asked == ["first", "big", "other", "big", "other"]


async def test_failing_twice_leaves_the_app_usable(make_app: MakeApp, big: Path) -> None:
    machine = Machine(big=DAMAGED)
    app = app_of(make_app, machine)
    async with app.run_test(size=(100, 40)) as pilot:
        await loaded(pilot)
        await ask(pilot, "hi")
        await idle(pilot)
        app.chat.prompt.text = ""
        machine.faults["first"] = TOO_LARGE
        await send(pilot, f"/load {big}")
        await shows(pilot, "the model did not load: big.gguf", "first did not load again: the drafter needs 9.1 GiB")
        await shows(pilot, "Ctrl+R loads again, /load another", "no model is loaded")
        assert machine.asked == ["first", "big", "first"], "it is tried once"
        await ask(pilot, "still here?")
        await wait_until(pilot, lambda: app.chat.prompt.text == "still here?")
        del machine.faults["first"]
        await pilot.press("ctrl+r")
        await loaded(pilot)
        assert machine.asked[-1] == "first", "Ctrl+R loads the pair that is known to load"
        session = app.chat.state.session
        assert isinstance(session, FakeSession)
        await wait_until(pilot, lambda: len(contents(session)) == 2)
        other = big.with_name("other.gguf")
        other.write_bytes(b"")
        await send(pilot, f"/load {other}")
        await wait_until(pilot, lambda: app.chat.state.model == "other")


async def test_a_lost_device_is_not_asked_again_and_the_restart_has_the_pair_before(
    make_app: MakeApp, big: Path
) -> None:
    machine = Machine(big=KernelError("the GPU gave up (illegal address); reload the engine", reload=True))
    app = app_of(make_app, machine)
    async with app.run_test(size=(100, 40)) as pilot:
        await loaded(pilot)
        await send(pilot, f"/load {big}")
        await shows(pilot, "the model did not load: the GPU gave up", "/reload restarts the program")
        assert machine.asked == ["first", "big"]
        await send(pilot, "/reload")
        await wait_until(pilot, lambda: bool(app.again))
    assert "--demo" in app.again
    assert str(big) not in app.again


class Weights:
    """Something large that is half loaded."""


async def test_what_was_half_loaded_is_gone_before_the_pair_before_is_loaded(make_app: MakeApp, big: Path) -> None:
    held: list[weakref.ref[Weights]] = []
    left: list[bool] = []

    def reads(weights: Weights) -> None:
        try:
            raise ValueError("a tensor of no size")
        except ValueError as error:
            raise FormatError("big.gguf is damaged") from error

    def loaders(request: LoadRequest) -> Loader:
        def load(progress: Progress) -> FakeSession:
            if request.target is not None:
                weights = Weights()
                held.append(weakref.ref(weights))
                reads(weights)
            left.extend(one() is not None for one in held)
            return FakeSession(title="first")

        return load

    app = make_app(load=loaders(LoadRequest()), loaders=loaders)
    async with app.run_test(size=(100, 40)) as pilot:
        await loaded(pilot)
        await send(pilot, f"/load {big}")
        await shows(pilot, "first is loaded again")
    assert left == [False]


async def test_real_files(make_app: MakeApp, tmp_path: Path) -> None:
    """A target that is cut off inside its last tensor after the check of the headers, over the real decoder."""
    target, draft = golden("tiny-F16.gguf"), golden("tiny-dflash")
    cut = tmp_path / "cut.gguf"
    shutil.copy(target, cut)
    first = LoadRequest(target=target, draft=draft, device="cpu")

    def loaders(request: LoadRequest) -> Loader:
        def load(progress: Progress) -> SessionLike:
            from dflash_tui.application.engine_session import load_session

            if request.target == cut:
                os.truncate(cut, cut.stat().st_size - 5_000)  # while it is read, as by a download that begins again
            return load_session(request, progress)

        return load

    def check(request: LoadRequest) -> None:
        from dflash_tui.application.memory_estimate import estimator_for

        estimator_for(request)

    knobs = Knobs(max_tokens=3, ignore_eos=True)
    app = make_app(load=loaders(first), loaders=loaders, check=check, knobs=knobs)
    app.state.request = first
    async with app.run_test(size=(100, 40)) as pilot:
        await loaded(pilot)
        before = app.chat.state.session
        await ask(pilot, "hi")
        await idle(pilot)
        await wait_until(pilot, lambda: app.chat.state.turn.report is not None)
        answer = app.chat.state.turn.report
        assert answer is not None
        await send(pilot, f"/load {cut}")
        await shows(pilot, "the model did not load:", "cut.gguf", "tiny-F16 + tiny-dflash is loaded again")
        session = app.chat.state.session
        assert session is not None
        assert session is not before
        assert [one.role for one in session.conversation.messages] == ["user", "assistant"]
        await ask(pilot, "and now?")
        await wait_until(pilot, lambda: len(session.conversation.messages) == 4)
        await idle(pilot)
