"""A failing test is named as it fails, on the terminal and in the file that was asked for."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from support.failures import Failures


class Terminal:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def write(self, text: str) -> None:
        assert text == "\n"
        self.lines.append("")

    def write_line(self, line: str, *, flush: bool) -> None:
        assert flush
        self.lines.append(line)


def report(outcome: str, said: str = "") -> pytest.TestReport:
    return pytest.TestReport("tests/gpu/test_x.py::test_y[1]", ("x.py", 3, "test_y"), {}, outcome, said, "call")  # type: ignore[arg-type]


@pytest.mark.parametrize("to_a_file", [False, True])
def test_failures_are_told_at_once(tmp_path: Path, to_a_file: bool) -> None:
    path, terminal = tmp_path / "failures.txt", Terminal()
    plugins = SimpleNamespace(get_plugin=lambda name: terminal)
    config = SimpleNamespace(getoption=lambda name: path if to_a_file else None, pluginmanager=plugins)
    failures = Failures(config)  # type: ignore[arg-type]
    failures.pytest_runtest_logreport(report("passed"))
    assert terminal.lines == []
    failures.pytest_runtest_logreport(report("failed", "assert a == b\nE  AssertionError: 7 of 9\n"))
    assert terminal.lines == ["", "call of tests/gpu/test_x.py::test_y[1] failed: assert a == b"]
    assert path.exists() == to_a_file
    if to_a_file:
        assert path.read_text() == (
            "---- call of tests/gpu/test_x.py::test_y[1]\nassert a == b\nE  AssertionError: 7 of 9\n\n"
        )
