"""Where a step's time goes on a card: microseconds by kernel, read off the ends of kernels in a profile of whole steps.

    python -m tools.bench.timeline [--model 27b] [--cases plain "tree 23"] [--steps 12]

Kernels of a step overlap: each begins early and waits for the one before it. So a kernel's share is the time from the
end of the one that ended before it to its own end, and shares add up to the step. The pair is synthetic, and is written
to --folder where it is not there yet.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch.profiler import ProfilerActivity, profile

from dflash_core.bench.family_models import MODELS
from dflash_core.errors import KernelError
from dflash_core.user_folders import user_folder
from tools.bench.engines import synthetic_engine
from tools.bench.step_bench import DEEP, StepBench, StepCase, default_cases
from tools.bench.tool import run_tool

CASES = ("plain", "tree 23", "sampled tree 23", "tree 63")
FIRST = "step_begin"  # the kernel that begins a step


@dataclass(frozen=True, slots=True)
class Ran:
    """One kernel of a profile: its name, and when it began and ended, in microseconds."""

    name: str
    began: float
    ended: float


@dataclass(frozen=True, slots=True)
class Share:
    """All launches of one kernel in a step: how many, and the time between the end of what ended before and their own
    end, in microseconds; medians over the steps."""

    name: str
    launches: int
    microseconds: float


def shares(ran: Sequence[Ran]) -> list[Share]:
    """By kernel, the largest first; of the steps between the first and the last, which are whole. Raises KernelError
    where there is none."""
    ordered = sorted(ran, key=lambda one: one.began)
    begins = [at for at, one in enumerate(ordered) if one.name == FIRST][1:]
    taken: defaultdict[str, list[float]] = defaultdict(list)
    counts: Counter[str] = Counter()
    for begin, end in itertools.pairwise(begins):
        before, of_step = max(one.ended for one in ordered[:begin]), defaultdict[str, float](float)
        counts = Counter(one.name for one in ordered[begin:end])
        for one in sorted(ordered[begin:end], key=lambda one: one.ended):
            of_step[one.name] += one.ended - before
            before = one.ended
        for name, microseconds in of_step.items():
            taken[name].append(microseconds)
    if not taken:
        raise KernelError("the profile holds no whole step, expected some; name more --steps")
    found = [Share(name, counts[name], statistics.median(times)) for name, times in taken.items()]
    return sorted(found, key=lambda share: -share.microseconds)


def profiled(bench: StepBench, case: StepCase, steps: int) -> list[Ran]:
    """The kernels of some steps, by torch's profiler."""
    bench.time(case, steps)  # graphs are recorded first
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        bench.time(case, steps)
    return [
        Ran(event.name, event.time_range.start, event.time_range.end)
        for event in found.events() or ()
        if event.device_type.name == "CUDA"
    ]


def table(name: str, found: Sequence[Share]) -> Iterator[str]:
    """Lines, the sum first."""
    yield f"{name}: {sum(share.microseconds for share in found):.0f} us"
    for share in found:
        yield f"{share.microseconds:9.1f} us {share.launches:5} x {share.name}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", choices=MODELS, default="27b")
    known = {case.name: case for case in default_cases(16, contexts=(8192, DEEP))}
    parser.add_argument("--cases", nargs="+", choices=list(known), default=CASES)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--folder", type=Path, default=user_folder("cache") / "synthetic")
    options = parser.parse_args()
    bench = StepBench(synthetic_engine(options.model, options.folder))
    for name in options.cases:
        for line in table(name, shares(profiled(bench, known[name], options.steps))):
            print(line, flush=True)  # noqa: T201


if __name__ == "__main__":
    run_tool(main)
