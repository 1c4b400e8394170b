"""A chat with a published model in the app: SmolLM2-135M-Instruct."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dflash_core.knobs import Knobs
from dflash_tui.app import DFlashApp
from dflash_tui.application.engine_session import load_session
from dflash_tui.application.session import LoadRequest
from support.real_models import smollm2

from .support import ask, idle, wait_until


async def test_a_chat_with_smollm2(make_app: Callable[..., DFlashApp]) -> None:
    """With its own template, drafting from the text, and thinking off, which it does not have."""
    knobs = Knobs(max_tokens=24, temperature=0, thinking=False)
    request = LoadRequest(target=smollm2(), draft=Path("ngram"), device="cpu", knobs=knobs)
    app = make_app(load=lambda progress: load_session(request, progress), knobs=knobs)
    async with app.run_test(size=(120, 40)) as pilot:
        await wait_until(pilot, lambda: app.chat.state.session is not None)
        await ask(pilot, "What is the capital of France? Answer in one sentence.")
        await wait_until(pilot, lambda: app.chat.state.turn.report is not None)
        await idle(pilot)
        report = app.chat.state.turn.report
        assert report is not None
        assert report.text == "The capital of France is Paris."
        assert report.stop == "stop token"
        await ask(pilot, "And of Italy?")
        await wait_until(pilot, lambda: app.chat.state.turn.report not in (None, report))
        await idle(pilot)
        again = app.chat.state.turn.report
        assert again is not None
        assert "Rome" in again.text
