"""The long run: `python -m abuse --minutes 30`, or one part alone: `python -m abuse monkey --seconds 60 --seed 7`.

Each part has a process of its own, so that its memory and descriptors are counted separately, and a crash is noticed.
The last lines are a table; the exit code is 1 if anything exceeds the limits.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from abuse.report import Finding, Report

PARTS = {"monkey": 0.3, "soak": 0.2, "clients": 0.2, "kills": 0.15, "mutants": 0.15}  # of the minutes
SPARE_S = 600.0  # after its time, for the turn or file under way; then it counts as a hang


def part(name: str, seed: int, seconds: float, count: int, folder: Path, replay: Path | None = None) -> Report:
    """Run one part in this process, for some time or until it has done `count` things."""
    folder.mkdir(parents=True, exist_ok=True)
    if count:
        seconds = 0.0
    if name == "monkey":
        from abuse import monkey

        return monkey.run(seed, folder, actions=count, seconds=seconds, replay=replay)
    if name == "soak":
        from abuse import soak

        return soak.run(seed, folder, turns=count, seconds=seconds)
    if name == "clients":
        from abuse import clients

        return clients.run(seed, folder, requests=count, seconds=seconds)
    if name == "kills":
        from abuse import kills

        return kills.run(seed, folder, kills=count, seconds=seconds)
    from abuse import mutants

    return mutants.run(seed, folder, mutants=count, seconds=seconds)


def apart(name: str, seed: int, seconds: float, folder: Path) -> Report:
    """Run one part in a process of its own; a crash of that is a finding as well."""
    written = folder / f"{name}.json"
    words = [name, "--seed", str(seed), "--seconds", str(seconds), "--folder", str(folder), "--report", str(written)]
    began = time.monotonic()
    try:
        code = subprocess.run(
            [sys.executable, "-m", "abuse", *words], timeout=seconds + SPARE_S, check=False
        ).returncode
    except subprocess.TimeoutExpired:
        code = -1
    if written.exists():
        return msgspec.json.decode(written.read_bytes(), type=Report)
    report = Report(name, seed, seconds=time.monotonic() - began)
    report.crashes.append(Finding(f"the process ended with {code}", str(seed), "", str(folder / name)))
    return report


def table(reports: list[Report]) -> str:
    """A row for each part."""
    head = "| part | seed | minutes | done | crashes | lost texts | differences | near-ties | memory | descriptors |"
    rows = [head, "|" + "---|" * 10]
    for one in reports:
        shown = ("actions", "starts", "turns", "tokens", "requests", "mutants", "kills")
        done = ", ".join(f"{one.counts[name]:,} {name}" for name in shown if one.counts[name])
        growth = f"{one.growth:+.1f} %" if one.part != "kills" else "-"
        gained = f"{one.descriptors:+d}" if one.part != "kills" else "-"
        figures = (len(one.crashes), len(one.lost), len(one.differences), one.near_ties, growth, gained)
        cells = (one.part, one.seed, f"{one.seconds / 60:.1f}", done, *figures)
        rows.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(rows)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m abuse", description=__doc__)
    parser.add_argument("part", nargs="?", choices=PARTS)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seconds", type=float, default=0.0, help="of one part")
    parser.add_argument(
        "--count", type=int, default=0, help="of one part: actions, turns, requests, kills or mutants, not time"
    )
    parser.add_argument("--seed", type=int, default=int(time.time()) % 1_000_000)
    parser.add_argument("--actions", type=Path, help="replay a saved list of the monkey's")
    parser.add_argument("--folder", type=Path, help="where reproducers are kept")
    parser.add_argument("--report", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    faulthandler.enable()
    folder = (options.folder or Path(tempfile.mkdtemp(prefix="abuse-"))).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    sys.stderr.write(f"seed {options.seed}, reproducers in {folder}\n")
    if options.part:
        seconds = options.seconds or options.minutes * 60
        where = folder / options.part
        reports = [part(options.part, options.seed, seconds, options.count, where, options.actions)]
    else:
        shares = [(name, share * options.minutes * 60) for name, share in PARTS.items()]
        reports = [apart(name, options.seed, seconds, folder) for name, seconds in shares]
    if options.report:
        options.report.write_bytes(msgspec.json.encode(reports[0]))
        return 0
    faults = [f"{one.part}: {fault}" for one in reports for fault in one.faults]
    sys.stdout.write("\n".join([table(reports), *faults, ""]))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
