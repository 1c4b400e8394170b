"""A test sees nothing of the terminal, the shell or the CI that it runs in, and nor does a program that it starts."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from support import seeds
from support.environment import FIXED, HERE, of_tests

THEIRS = {
    "COLUMNS": "37", "LINES": "9", "FORCE_COLOR": "1", "NO_COLOR": "1", "EDITOR": "false", "TMUX": "/tmp/x,1,0",
    "SSH_CONNECTION": "1 2 3 4", "DFLASH_TUI_THEME": "light", "HF_HUB_OFFLINE": "1", "HF_HOME": "/x", "TERM": "dumb",
    "TZ": "Pacific/Kiritimati", "no_proxy": "", "LLAMA_CACHE": "/x", "TEXTUAL_ANIMATIONS": "full",
    "PYTHONDONTWRITEBYTECODE": "1",
}  # fmt: skip


def test_what_is_left_of_an_environment() -> None:
    kept = {"PATH": "/bin", "LANG": "de_DE", "HOME": "/home/x", "https_proxy": "http://proxy:1"}
    assert of_tests(THEIRS | kept) == kept | FIXED


def test_tests_run_in_it() -> None:
    """So do the programs that tests start. What tests/conftest.py sets by itself applies to all of them as well."""
    code = "import os; print(*sorted(os.environ), os.environ['no_proxy'])"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert told[-1] == HERE
    for names in (os.environ.keys(), told[:-1]):
        left = {name for name in names if name in THEIRS and name not in FIXED}
        assert left <= {"TEXTUAL_ANIMATIONS"}
    assert time.tzname == ("UTC", "UTC")


def test_sets_are_gone_through_in_one_order(request: pytest.FixtureRequest) -> None:
    """In programs that tests start, and in workers, if there are any."""
    told = {subprocess.check_output([sys.executable, "-c", "print(hash('x'))"]) for _ in range(2)}
    assert (len(told) == 1) is not seeds.fresh(request.config)
    if "PYTEST_XDIST_WORKER" in os.environ:
        assert bool(sys.flags.hash_randomization) is seeds.fresh(request.config)
