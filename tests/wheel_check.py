"""Install a wheel into an empty environment outside the checkout and use it: `make wheel-check`.

Takes the wheel's path. Downloads what the wheel depends on, torch included.
"""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path


def main(wheel: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        venv.create(home / "venv", with_pip=True)
        scripts = home / "venv" / ("Scripts" if os.name == "nt" else "bin")
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        environment |= {
            "HOME": str(home),
            "XDG_CACHE_HOME": str(home / "cache"),
            "XDG_CONFIG_HOME": str(home / "config"),
        }

        def run(*command: str | Path, check: bool = True) -> str:
            sys.stderr.write(f"$ {' '.join(map(str, command))}\n")
            done = subprocess.run(
                [*map(str, command)], cwd=home, env=environment, stdout=subprocess.PIPE, text=True, check=check
            )
            return done.stdout

        run(scripts / "python", "-m", "pip", "install", "-q", "--disable-pip-version-check", wheel.resolve())
        app = scripts / "dflash-tui"
        sys.stderr.write(run(app, "--version"))
        sys.stderr.write(run(app, "doctor", check=False))  # what is wrong with the machine is not the wheel's fault
        sys.stderr.write(run(app, "inspect"))
        answer = json.loads(run(app, "ask", "Hello!", "--json", "--set", "max_tokens=32", "--set", "mode=tree"))
        sys.stderr.write(f"{answer['text']!r}\n")
        assert answer["tokens"]
        assert answer["mode"] == "tree"

        sweep = (app, "sweep", "budget=4,15", "--prompt", "Hello!", "--repeats", "1", "--set", "max_tokens=16", "--out")
        run(*sweep, "sweep.png", check=False)  # matplotlib is an extra: one line on stderr, before anything is measured
        assert not (home / "sweep.png").exists()
        run(*sweep, "sweep.csv")
        rows = list(csv.DictReader((home / "sweep.csv").read_text(encoding="utf-8").splitlines()))
        assert [row["drafting"] for row in rows] == ["tree 4", "tree 15"]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
