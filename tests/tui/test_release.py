"""A model that is replaced by another is released before that one is loaded: a card has no room for two."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import pytest

from dflash_core.errors import KernelError
from dflash_core.knobs import Knobs
from dflash_tui.app import DFlashApp
from dflash_tui.application.background import Background
from dflash_tui.application.engine_session import EngineSession, load_session
from dflash_tui.application.session import LoadRequest, Progress
from support.golden import COMMITTED as DATA
from support.grids import full

from .support import ask, idle, loaded, wait_until

PAIR = LoadRequest(
    DATA / "tiny-Q4_K_M.gguf", DATA / "tiny-dflash", "cpu", Knobs(drafting="auto up to 3", max_tokens=4), context=512
)


class Half:
    """Stands for memory on the card that a load holds when it fails."""


def test_a_load_that_fails_holds_nothing() -> None:
    """Its memory is released at once, not at the next garbage collection: the next load needs it."""
    held: list[weakref.ref[Half]] = []

    class Failing(Background):
        def work(self) -> None:
            half = Half()
            held.append(weakref.ref(half))
            raise KernelError("the GPU gave up in embed") from None

    gc.disable()
    try:
        load = Failing("dflash-load")
        load.start()
        assert load.join(60)
        assert str(load.error) == "the GPU gave up in embed"
        assert held[0]() is None
    finally:
        gc.enable()


@pytest.mark.usefixtures("real_collector")
@pytest.mark.parametrize("command", ["/reload", full("/load")])
async def test_the_old_model_goes_first(make_app: Callable[..., DFlashApp], command: str) -> None:
    models: list[weakref.ref[object]] = []
    left: list[int] = []

    def load(progress: Progress) -> EngineSession:
        left.append(sum(model() is not None for model in models))
        session = load_session(PAIR, progress)
        models.extend(map(weakref.ref, (session, session._engine, session._engine.session)))
        return session

    app = make_app(load=load, knobs=Knobs(max_tokens=8), loaders=lambda request: load)
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        await ask(pilot, "hi")
        await idle(pilot)
        await ask(pilot, f"{command} {PAIR.target}" if command == "/load" else command)
        await wait_until(pilot, lambda: len(left) == 2)
        await loaded(pilot)
    assert left == [0, 0]
