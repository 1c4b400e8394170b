"""The app's session over the real decoder, on a tiny golden pair."""

from __future__ import annotations

from collections.abc import Callable

from dflash_core.knobs import Knobs
from dflash_tui.app import DFlashApp
from dflash_tui.application.engine_session import load_session
from dflash_tui.application.session import LoadRequest, SessionLike
from support.golden import golden

from .support import ask, idle, wait_until


async def test_a_real_turn_in_the_app(make_app: Callable[..., DFlashApp]) -> None:
    knobs = Knobs(max_tokens=3, ignore_eos=True)
    request = LoadRequest(target=golden("tiny-F16.gguf"), draft=golden("tiny-dflash"), device="cpu", knobs=knobs)
    phases: list[str] = []

    def load(progress: Callable[[str, float], None]) -> SessionLike:
        def note(phase: str, fraction: float) -> None:
            phases.append(phase)
            progress(phase, fraction)

        return load_session(request, note)

    app = make_app(load=load, knobs=knobs)
    async with app.run_test(size=(120, 40)) as pilot:
        await wait_until(pilot, lambda: app.chat.state.session is not None)
        session = app.chat.state.session
        assert session is not None
        assert phases[-1] == "ready"
        assert session.title == "tiny-F16 + tiny-dflash"
        await ask(pilot, "hi")
        await wait_until(pilot, lambda: app.chat.state.turn.report is not None)
        await idle(pilot)
        report = app.chat.state.turn.report
        assert report is not None
        assert len(report.tokens) == 3
        assert report.asked == knobs
        assert app.chat.transcript.answer.text.strip() == report.text.replace("\r", "").strip()  # type: ignore[union-attr]
        assert session.count("a fox, and a hen") > 3
        assert session.memory().predicted > 0
        assert all(session.token_text(token) for token in report.tokens)
        await app.chat.action_clear()
        assert list(session.conversation.messages) == []
