"""Steps on their way from the engine's thread to the event loop: few wakings, few events, nothing lost."""

from __future__ import annotations

import asyncio

from dflash_core.events import PrefillEvent
from dflash_core.record import End
from dflash_core.text.tool_calls.parts import CallArguments, CallStart, Text, Thinking
from dflash_tui.application.requests import LINES, Requests
from dflash_tui.server.drawn_tokens import DrawnText
from dflash_tui.server.updates import Reading, Recorded, Step, Updates

READ = PrefillEvent((1,), 4, 0, 1.0, "plain", "script")


async def test_steps_that_follow_each_other_are_one() -> None:
    line, updates = Recorded(End()), Updates(streamed=True)
    updates.put(Reading(4, 4))
    updates.step([Thinking("a")], READ)
    updates.step([Thinking("b"), Text("c")])
    updates.step([Text("d"), CallStart(0, "f")])
    updates.step([CallArguments(0, "{")])
    updates.step([CallArguments(0, "}")])
    updates.put(line)
    updates.step([Text("e")])
    updates.step([Text("f")])
    reading, first, recorded, second = updates.now()
    assert (reading, recorded) == (Reading(4, 4), line)
    assert isinstance(first, Step)
    assert isinstance(second, Step)
    assert first.parts == (Thinking("ab"), Text("cd"), CallStart(0, "f"), CallArguments(0, "{}"))
    assert (first.read, second.read) == (READ, None)
    assert second.parts == (Text("ef"),)
    assert first.count + second.count == 7


async def test_joined_texts_have_the_tokens_of_both() -> None:
    updates = Updates(streamed=True)
    for text in (DrawnText("a", ({"token": "a"},)), DrawnText("b", ({"token": "b"},)), DrawnText("c")):
        updates.step([text])
    assert updates.now() == [Step((DrawnText("abc", ({"token": "a"}, {"token": "b"})),), 3)]


async def test_only_a_loop_that_sleeps_is_woken() -> None:
    updates = Updates(streamed=True)
    loop, woken = asyncio.get_running_loop(), list[object]()
    wake = loop.call_soon_threadsafe

    class Loop:
        def call_soon_threadsafe(self, call: object) -> None:
            woken.append(call)
            wake(call)  # type: ignore[arg-type]

    updates._loop = Loop()  # type: ignore[assignment]
    first, second, third = (Reading(at, 9) for at in range(3))
    updates.put(first)
    assert await updates.take() == [first]
    updates.put(second)
    assert (updates.now(), updates.now()) == ([second], [])
    assert not woken, "it was awake"
    reader = asyncio.create_task(updates.take())
    await asyncio.sleep(0)
    updates.put(second)
    updates.put(third)
    assert await reader == [second, third]
    assert len(woken) == 1


async def test_the_end_of_an_answer_does_not_wait() -> None:
    updates = Updates(streamed=True)
    updates.step([Text("a")])
    gathering = asyncio.create_task(updates.gather(600.0))
    await asyncio.sleep(0)
    updates.step([Text("b")])
    await asyncio.sleep(0)
    assert not gathering.done()
    updates.step([Text("c")], last=True)
    await gathering
    await updates.gather(600.0)  # it is over
    assert updates.now() == [Step((Text("abc"),), 3)]


def test_readers_get_the_lines_after_theirs_and_how_many_are_lost() -> None:
    requests = Requests()
    assert requests.after(0) == ([], 0)
    request = requests.add("client", "/v1/messages", "demo")
    lines = [End(text=str(number)) for number in range(1, LINES + 4)]
    for line in lines[:3]:
        requests.record(request, line)
    assert requests.after(1) == ([(2, request, lines[1]), (3, request, lines[2])], 0)
    assert requests.after(3) == ([], 0)
    for line in lines[3:]:
        requests.record(request, line)
    found, lost = requests.after(1)
    assert lost == 2  # the second and the third
    assert [(one.number, one.line) for one in found] == list(enumerate(lines[3:], 4))
