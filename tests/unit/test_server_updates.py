"""Steps on their way from the engine's thread to the event loop: few wakings, few events, nothing lost."""

from __future__ import annotations

import asyncio

from dflash_core.events import PrefillEvent
from dflash_core.record import End
from dflash_core.text.tool_calls.parts import CallArguments, CallStart, Text, Thinking
from dflash_tui.application.requests import LINES, Requests
from dflash_tui.server.drawn_tokens import DrawnText
from dflash_tui.server.updates import Reading, Recorded, Step, Update, Updates, joined

READ = PrefillEvent((1,), 4, 0, 1.0, "plain", "script")


def test_steps_that_follow_each_other_are_one() -> None:
    line = Recorded(End())
    updates: list[Update] = [
        Reading(4, 4),
        Step((Thinking("a"),), READ),
        Step((Thinking("b"), Text("c"))),
        Step((Text("d"), CallStart(0, "f"))),
        Step((CallArguments(0, "{"),)),
        Step((CallArguments(0, "}"),)),
        line,
        Step((Text("e"),)),
        Step((Text("f"),)),
    ]
    assert list(joined(updates)) == [
        Reading(4, 4),
        Step((Thinking("ab"), Text("cd"), CallStart(0, "f"), CallArguments(0, "{}")), READ),
        line,
        Step((Text("ef"),)),
    ]


def test_joined_texts_have_the_tokens_of_both() -> None:
    first, second = DrawnText("a", ({"token": "a"},)), DrawnText("b", ({"token": "b"},))
    (one,) = joined([Step((first,)), Step((second,)), Step((DrawnText("c"),))])
    assert one == Step((DrawnText("abc", ({"token": "a"}, {"token": "b"})),))


async def test_only_a_loop_that_sleeps_is_woken() -> None:
    updates = Updates()
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
    updates = Updates()
    updates.put(Step((Text("a"),)))
    gathering = asyncio.create_task(updates.gather(600.0))
    await asyncio.sleep(0)
    updates.put(Step((Text("b"),)))
    await asyncio.sleep(0)
    assert not gathering.done()
    updates.put(Step((Text("c"),)), last=True)
    await gathering
    await updates.gather(600.0)  # it is over
    assert len(updates.now()) == 3


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
