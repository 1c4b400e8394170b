"""Pilot's keys, clicks and pauses end when everything they started is handled and drawn, even on a busy machine.

Pilot itself waits until the process uses little processor time. On a busy machine a process gets little even when it
has work to do, so Pilot goes on before a key has reached its widget. And while a thread computes, Pilot waits a second
for each key. Here it asks whether a task of the loop can go on. Pilot also sends a message to every widget, each time:
most of the processor time of a key. Here it does so only where a widget is in the midst of its work.
"""

from __future__ import annotations

import asyncio
from typing import Any

import textual.app
from textual._wait import SLEEP_GRANULARITY
from textual.app import App
from textual.message_pump import MessagePump
from textual.pilot import Pilot

MAX_TURNS = 20_000  # iterations of the event loop, if something never becomes idle
MAX_FRAMES = 100  # frames of an answer that is written meanwhile
FRAME_S = 1 / 60


async def all_handled(app: App[Any]) -> None:
    """Wait until no message is pending and the screen is drawn. Work that waits for a thread, the clock or the test is
    not included: use `wait_until` for that."""
    for _ in range(MAX_FRAMES):
        await nothing_ready()
        if app._exception is not None or not awaits_a_frame(app):
            return
        await asyncio.sleep(FRAME_S)


async def nothing_ready() -> None:
    """Wait until no task of the loop can go on."""
    ready = asyncio.get_running_loop()._ready  # type: ignore[attr-defined]
    quiet = 0
    for _ in range(MAX_TURNS):
        await asyncio.sleep(0)
        quiet = 0 if ready else quiet + 1
        if quiet == 2:  # timers that were due have run, too
            return


def all_wait(app: App[Any]) -> bool:
    """No widget of the screen has a message, or handles one that waits for a thread, the clock or another widget."""
    pumps: list[MessagePump] = [app, *app.screen.walk_children(with_self=True)] if app.screen_stack else []
    queues: list[Any] = [pump._message_queue for pump in pumps if pump._running]
    return all(queue.empty() and queue.ready_event._waiters for queue in queues)


def awaits_a_frame(app: App[Any]) -> bool:
    if not app.screen_stack or app._batch_count:
        return False
    screen = app.screen
    return bool(
        app._resize_timer is not None  # a new size is told to the screen a moment later
        or screen._layout_required
        or screen._scroll_required
        or screen._repaint_required
        or screen._dirty_widgets
        or screen._callbacks
    )


def have_pilot_wait(hangs_s: float) -> None:
    """Make Pilot wait in this way, for all apps of this process. `hangs_s`: what takes this long has hung."""
    wait_for_screen = Pilot._wait_for_screen

    async def screen(self: Pilot[Any], timeout: float = hangs_s) -> bool:
        await nothing_ready()
        handled = (all_wait(self.app) and self.app._exception is None) or await wait_for_screen(self, timeout)
        if handled:
            await all_handled(self.app)
        return handled

    async def idle(*args: float) -> None:
        await asyncio.sleep(SLEEP_GRANULARITY)  # as Pilot does at least: short timers run out
        await nothing_ready()

    Pilot._wait_for_screen = screen  # type: ignore[method-assign]
    textual.app.wait_for_idle = textual.pilot.wait_for_idle = idle
