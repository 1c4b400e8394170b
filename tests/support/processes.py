"""Python in a process of its own."""

from __future__ import annotations

import subprocess
import sys


def run_python(code: str) -> str:
    """What `code` prints; it must end without an error."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()
