"""Reports failures as they come: a line each on the terminal, and the details in a file. So a run that is cut off has
reported what failed until then.
"""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--failures", type=Path, metavar="FILE", help="write each failure there at once")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Failures(config), "failures")


class Failures:
    """In the process that reports, whichever worker ran the test."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.file: Path | None = config.getoption("--failures")
        if self.file is not None:
            self.file.write_text("")

    @pytest.hookimpl(trylast=True)  # after the letter of the test
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.failed:
            return
        said = report.longreprtext.rstrip()
        crash = getattr(report.longrepr, "reprcrash", None)
        why = (crash.message if crash is not None else said).strip().split("\n")[0]
        terminal = self.config.pluginmanager.get_plugin("terminalreporter")
        if terminal is not None:
            terminal.write("\n")  # after the letters of earlier tests
            terminal.write_line(f"{report.when} of {report.nodeid} failed: {why}"[:300], flush=True)
        if self.file is not None:
            with self.file.open("a", encoding="utf-8") as out:
                out.write(f"---- {report.when} of {report.nodeid}\n{said}\n\n")
