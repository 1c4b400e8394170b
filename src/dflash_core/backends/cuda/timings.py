"""How long passes and prompts' chunks of a target take on this card: measured at its first load, then stored.

The policy needs the times of passes. Whether prompts run in chunks or in passes follows from both: a pass reads all
weights as they are; a chunk first converts them to f16 for the library, a fixed cost, then little per row. Chunks win
from some 200 tokens on, but on GeForce cards, which add products of halves at half the rate, the fixed cost may never
be earned back. Times are stored next to the compiled kernels, by card, driver and kernels.
"""

from __future__ import annotations

import hashlib
import itertools
import re
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import msgspec

from dflash_core import nvrtc, resources
from dflash_core.backends.cuda.device import CudaDevice
from dflash_core.backends.cuda.launch import Run
from dflash_core.backends.cuda.layers.experts import ExpertProjection
from dflash_core.backends.cuda.projection import Projection
from dflash_core.backends.cuda.runtime import seconds_of
from dflash_core.backends.cuda.session import CudaSession
from dflash_core.backends.cuda.state import PASS_ROWS, WIDTHS
from dflash_core.backends.cuda.target_model import DeviceTarget
from dflash_core.damaged import DAMAGED
from dflash_core.files import write_whole
from dflash_core.nvml import driver_version
from dflash_core.progress import Progress

FORMAT = 6  # part of a file's name, so other formats are passed over
TIMED_FILES = ("matmul.cu", "head.cu", "logits.cu", "experts_in.cu", "experts_out.cu")
PASS_DEPTH, PASS_ROUNDS = 32, 5
CHUNK_ROUNDS = 2
TOKEN_STEP = 7919  # difference between neighbouring token ids of a timed pass

PASSES = "passes"
READINGS = ("auto", PASSES)  # how prompts may be read: by what is faster, or always in passes
TIMED_CHUNKS = (256, 1024)  # rows
NEVER = 1 << 30
COMMIT = 1.05  # time of a pass and its commit, where only the pass takes 1
# Passes of PASS_ROWS rows need memory that trees of the default settings do not. They are used only if they are faster
# for all prompts of up to this many tokens, or more.
WORTHWHILE = 512

ByTarget = Mapping[str, Mapping[int, float]]


@dataclass(frozen=True, slots=True)
class Timings:
    """All measurements of one card, by target name: milliseconds of a verify pass by width, of a prompt's chunk by
    rows. `identity`: a hash of what they are valid for."""

    identity: str
    passes: ByTarget = field(default_factory=dict)
    chunks: ByTarget = field(default_factory=dict)


def identity(device: CudaDevice) -> str:
    """A hash of the card, its driver, the kernel sources and the compiler."""
    folder = resources.kernels_dir()
    texts: dict[Path, str] = {}
    for file in TIMED_FILES:
        texts |= nvrtc.closure(folder / file, (folder,))
    facts = device.runtime.card
    return nvrtc.content_hash(texts, nvrtc.version(), facts.arch, facts.name, facts.processors, driver_version())[:32]


def products_of(target: DeviceTarget) -> dict[Any, int]:
    """How often a pass of the target computes each product, its head included."""
    head = Projection(target.device, [target.output], target.activations.head, split_k=1)
    found: dict[Any, int] = {}
    for projection in (*itertools.chain(*target.projections()), head):
        assert isinstance(projection, Projection | ExpertProjection)
        found[projection.product] = found.get(projection.product, 0) + 1
    return found


def name_of(products: Mapping[Any, int], on_host: int = 0, cached: int = 0) -> str:
    """A target's name, from how often a pass computes each product, and from how many layers have experts in main
    memory and how many of them are cached: only that decides the time, not the file."""
    counted = sorted(f"{product}: {count}" for product, count in products.items())
    counted += [f"experts in main memory: {on_host}"] * bool(on_host)
    counted += [f"cached of each: {cached}"] * bool(cached)
    return hashlib.sha256("\n".join(counted).encode()).hexdigest()[:16]


def target_name(target: DeviceTarget) -> str:
    on_host = [experts.slots for experts in target.experts if experts.on_host]
    return name_of(products_of(target), len(on_host), max(on_host, default=0))


class Timer:
    """Measures what is not stored yet. `timings`: all measurements; `note`: what a user should know of them, or ""."""

    def __init__(self, device: CudaDevice, folder: Path) -> None:
        self.path = folder / f"timings-{FORMAT}-{re.sub('[^A-Za-z0-9]+', '-', device.runtime.card.name)}.json"
        self.timings, self.note = load(self.path, identity(device))

    def passes(self, session: CudaSession, progress: Progress) -> Mapping[int, float]:
        """Milliseconds of a verify pass of this target by width; measured once, with an empty sequence."""
        name = target_name(session.target)
        if set(timed_widths(session)) - self.timings.passes.get(name, {}).keys():
            found = time_passes(session, progress)
            self._store(replace(self.timings, passes={**self.timings.passes, name: found}))
        return self.timings.passes[name]

    def chunks(self, session: CudaSession, progress: Progress) -> Mapping[int, float]:
        """Milliseconds of a prompt's chunk for this target by rows; measured once, with an empty sequence. Empty where
        the session has no such chunks."""
        if session.chunk_pass is None or session.chunk_pass.chunk.rows < max(TIMED_CHUNKS):
            return {}
        name = target_name(session.target)
        if name not in self.timings.chunks:
            found = time_chunks(session, progress)
            self._store(replace(self.timings, chunks={**self.timings.chunks, name: found}))
        return self.timings.chunks[name]

    def _store(self, timings: Timings) -> None:
        self.timings, self.note = timings, store(self.path, timings)


def timed_widths(session: CudaSession) -> list[int]:
    """The widths of passes that the session has memory for."""
    return [width for width in WIDTHS if width <= session.memory.capacity]


def time_passes(session: CudaSession, progress: Progress) -> dict[int, float]:
    """Milliseconds of a verify pass by width, after a short context. The sequence must be empty; it is empty again
    afterwards."""
    device = cast(CudaDevice, session.device)
    session.prefill([0] * PASS_DEPTH)
    found, widths = {}, timed_widths(session)
    for done, width in enumerate(widths):
        progress("timing passes", done / len(widths))
        run = _recorded(session, width, progress)
        with device.stream():
            found[width] = 1e3 * statistics.median(seconds_of(device.runtime, run) for _ in range(PASS_ROUNDS))
    session.restore(None)
    return found


def time_chunks(session: CudaSession, progress: Progress) -> dict[int, float]:
    """Milliseconds of a prompt's chunk by rows, the least of CHUNK_ROUNDS. The sequence must be empty, and is so again
    afterwards."""
    found = {}
    for done, rows in enumerate(TIMED_CHUNKS):
        progress("timing prompts", done / len(TIMED_CHUNKS))
        tokens, taken = _tokens(session, rows), []
        for _ in range(CHUNK_ROUNDS):
            began = time.perf_counter()
            session.prefill_chunk(tokens)
            taken.append(time.perf_counter() - began)
            session.restore(None)
        found[rows] = 1e3 * min(taken)
    return found


def _tokens(session: CudaSession, width: int) -> list[int]:
    """Tokens of a timed pass. They all differ: rows of the same token would choose the same experts."""
    return [token * TOKEN_STEP % session.target.spec.vocab_size for token in range(1, width + 1)]


def _recorded(session: CudaSession, width: int, progress: Progress) -> Run:
    device, acts = session.device, session.memory.buffers.acts
    with device.stream():
        session.stage_tree(_tokens(session, width), range(-1, width - 1))
        launches = [*session.pass_launches(width, 0), *session.head.argmax_launches(acts, width, 0)]
        run = device.record(f"a pass of {width} rows", device.bind(launches, progress))
        run()
    return run


def load(path: Path, identity: str) -> tuple[Timings, str]:
    """The stored timings for `identity`, or empty ones; and why a stored file is not used, or ""."""
    try:
        timings = msgspec.json.decode(path.read_bytes(), type=Timings)
    except OSError:
        return Timings(identity), ""
    except DAMAGED:
        return Timings(identity), f"{path.name} is damaged; passes are timed again"
    if timings.identity == identity:
        return timings, ""
    return Timings(identity), "passes are timed again: the driver, the kernels or the compiler changed"


def store(path: Path, timings: Timings) -> str:
    """Save the timings atomically. Returns why they could not be saved, or ""."""
    try:
        write_whole(path, msgspec.json.encode(timings))
    except OSError as error:
        return (
            f"timings of passes cannot be saved in {path.parent} ({error.strerror or error}); every start repeats them"
        )
    return ""


def chunks_from(passes: Mapping[int, float], chunks: Mapping[int, float]) -> int | None:
    """How many tokens a prompt must have so that chunks are faster than passes of PASS_ROWS rows; None if such passes
    are not worth their memory.

    `passes`: milliseconds of a pass by rows; `chunks`: of a chunk by rows. Either may be empty.
    """
    if PASS_ROWS not in passes or not chunks:
        return None
    few, many = TIMED_CHUNKS
    row = (chunks[many] - chunks[few]) / (many - few)
    fixed = chunks[few] - row * few
    gained = COMMIT * passes[PASS_ROWS] / PASS_ROWS - row  # by a chunk, for each row
    shortest = int(fixed / gained) + 1 if fixed < NEVER * gained else NEVER
    return shortest if shortest > WORTHWHILE else None
