"""All measurements that a card has to repeat, in one run with a limit of time; figures are written as they come.

python -m tools.bench.card_session --out FOLDER --minutes 9 [--baseline CHECKOUT] [--only NAME ...]

Each measurement is a command with its own limit. With --baseline, those that compare run in both checkouts by turns
(this one, the other, the other, this one), since two machines of one kind differ by more than a change does. FOLDER
gets the output of each run and `session.jsonl`, a line per run. A measurement that no longer fits the time is skipped
and listed. Where the card cannot be opened, nothing else is tried. SmolLM2 needs `carried/smollm2.gguf` and
`carried/prompts`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

HERE = Path(__file__).parents[2]
CHECK = ("-c", "from dflash_core.backends.cuda.target import open_device; print(open_device(0).runtime.card.name)")


@dataclass(frozen=True)
class Measurement:
    """A command of the Python that runs this, in seconds at most; `compares`: it is run in the baseline too."""

    name: str
    seconds: int
    command: tuple[str, ...]
    compares: bool = False


def _steps(model: str, *options: str) -> tuple[str, ...]:
    return ("-m", "tools.bench.steps", "--synthetic", model, "--accept-trace", "4.0", "--repeats", "3", *options)


# The model's file and the prompts are not part of the checkout: they lie in a folder that comes along.
CARRIED = Path("carried")
SMOLLM2 = (
    *("-m", "tools.train_smollm", "measure", "--device", "cuda", "--target", str(CARRIED / "smollm2.gguf")),
    *("--draft", "src/dflash_core/demo/weights/smollm2-draft.gguf", "--bench", str(CARRIED / "prompts")),
    *("--drafting", "plain", "tree 7", "tree 15", "tree 22", "auto", "--temperatures", "0", "1"),
    *("--prompts", "12", "--tokens", "192"),
)

MEASUREMENTS = (
    Measurement("27b", 90, _steps("27b"), compares=True),
    Measurement("35b-a3b", 90, _steps("35b-a3b"), compares=True),
    Measurement("llama-3.1-8b", 60, _steps("llama-3.1-8b"), compares=True),
    Measurement("gemma-4-31b", 120, _steps("gemma-4-31b", "--contexts", "8192,32768"), compares=True),
    Measurement("dead-drafter", 110, ("-m", "tools.bench.dead_drafter", "--device", "cuda", "--seconds", "90")),
    Measurement("smollm2", 240, SMOLLM2),
    Measurement("log-probabilities", 90, ("-m", "tools.bench.sampled", "--rounds", "3", "--only", "log-probabilities")),
    Measurement("serving", 120, ("-m", "tools.bench.serving", "--device", "cuda")),
    Measurement("experts", 150, ("-m", "tools.bench.experts", "--folder", "build/synthetic", "--seconds", "120")),
    Measurement("types", 60, ("-m", "tools.bench.types")),
)


@dataclass(frozen=True)
class Run:
    """One run of a measurement. `code`: its exit code, None if it was stopped at its limit; `output`: a file's name."""

    name: str
    checkout: str
    code: int | None
    seconds: float
    output: str


def turns(measurement: Measurement, compare: bool) -> tuple[str, ...]:
    """The checkouts in which a measurement runs, in order."""
    return ("new", "old", "old", "new") if compare and measurement.compares else ("new",)


def session(
    measurements: Sequence[Measurement],
    left: Callable[[], float],
    run: Callable[[Measurement, str, float], Run],
    compare: bool,
) -> Iterator[Run | str]:
    """Each run as it ends, and the name of each measurement that was skipped. `left`: seconds that are left."""
    for measurement in measurements:
        order = turns(measurement, compare)
        if left() < measurement.seconds * len(order):
            yield measurement.name
            continue
        for checkout in order:
            yield run(measurement, checkout, min(measurement.seconds, left()))


def run_in(folder: Path, out: Path, measurement: Measurement, checkout: str, seconds: float) -> Run:
    """Run a measurement with the sources of a checkout; what it prints is in `out` even where it is stopped."""
    number = len(list(out.glob(f"{measurement.name}-*.txt")))
    output = out / f"{measurement.name}-{number}-{checkout}.txt"
    path = os.pathsep.join([str(folder / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
    began = time.monotonic()
    with output.open("w") as file:
        try:
            code: int | None = subprocess.run(
                [sys.executable, *measurement.command], cwd=folder, env={**os.environ, "PYTHONPATH": path},
                stdout=file, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, timeout=max(1.0, seconds), check=False,
            ).returncode  # fmt: skip
        except subprocess.TimeoutExpired:
            code = None
    return Run(measurement.name, checkout, code, round(time.monotonic() - began, 1), output.name)


def main() -> None:
    """Run the session that the command line asks for."""
    names = [measurement.name for measurement in MEASUREMENTS]
    parser = argparse.ArgumentParser(description="All measurements that a card has to repeat, in one run.")
    add = parser.add_argument
    add("--out", type=Path, required=True, metavar="FOLDER", help="where output and figures go")
    add("--minutes", type=float, default=9.0, help="how long the session may take (9)")
    add("--baseline", type=Path, metavar="CHECKOUT", help="another checkout to compare with")
    add("--only", nargs="+", choices=names, default=names, metavar="NAME", help="of " + ", ".join(names))
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    folders = {"new": HERE, "old": args.baseline}
    end = time.monotonic() + args.minutes * 60
    chosen = [measurement for measurement in MEASUREMENTS if measurement.name in args.only]

    def run(measurement: Measurement, checkout: str, seconds: float) -> Run:
        return run_in(folders[checkout], args.out, measurement, checkout, seconds)

    check = run(Measurement("check", 60, CHECK), "new", 60)
    if check.code != 0:
        sys.exit(f"the card cannot be used: exit code {check.code}, see {args.out / check.output}")
    with (args.out / "session.jsonl").open("a") as log:
        for done in session(chosen, lambda: end - time.monotonic(), run, args.baseline is not None):
            line = json.dumps({"skipped": done} if isinstance(done, str) else asdict(done)) + "\n"
            for stream in (log, sys.stdout):
                stream.write(line)
                stream.flush()


if __name__ == "__main__":
    main()
