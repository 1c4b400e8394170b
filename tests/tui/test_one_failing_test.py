"""A fault of one test is one failing test: no end of the worker it runs in, no report that cannot be sent."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable

import execnet
import pytest

from dflash_tui.terminal.hangup import END_S, end_later
from support.hostile import HOSTILE
from support.process_end import process_stays


@pytest.mark.parametrize("where", ["sections", "user_properties", "longrepr"])
def test_a_report_with_half_a_character_can_be_sent(where: str, request: pytest.FixtureRequest) -> None:
    parts = {"sections": [], "user_properties": [], "longrepr": None}
    parts[where] = HOSTILE if where == "longrepr" else [("Captured log call", HOSTILE)]
    report = pytest.TestReport("a", ("a", 1, "a"), {}, "passed", when="call", **parts)  # type: ignore[arg-type]
    hook = request.config.hook
    data = hook.pytest_report_to_serializable(config=request.config, report=report)
    execnet.dumps(data)  # raises DumpError where something cannot be sent
    back = hook.pytest_report_from_serializable(config=request.config, data=data)
    found = getattr(back, where)
    assert (found if where == "longrepr" else found[0][1]) == HOSTILE.replace("\ud800", "\\ud800")


def swallowed() -> None:
    """An exit in another thread, whose exceptions reach no test."""

    def run() -> None:
        with pytest.raises(AssertionError):
            os._exit(3)

    thread = threading.Thread(target=run, name="other")
    thread.start()
    thread.join()


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda: os._exit(3), r"os\._exit\(3\) was called in MainThread"),
        (swallowed, r"os\._exit\(3\) was called in other"),
        (lambda: end_later(129), rf"a timer of {END_S} s is left that calls os\._exit\(129,\)"),
        # A handler of its own: under nohup SIG_IGN is what stood there before.
        (lambda: signal.signal(signal.SIGHUP, lambda *_: None), "the handler of SIGHUP was replaced"),
    ],
    ids=["exit", "exit in a thread", "timer", "signal handler"],
)
def test_an_end_of_the_process_fails_the_test(act: Callable[[], object], message: str) -> None:
    with pytest.raises(AssertionError, match=message), process_stays():
        act()


def test_a_forked_process_ends_as_ever() -> None:
    with process_stays():
        child = os.fork()
        if child == 0:
            os._exit(7)
        _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 7
