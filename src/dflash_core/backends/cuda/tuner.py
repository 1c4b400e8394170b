"""Times ways of computing products on the card with the loaded weights, and stores the results."""

from __future__ import annotations

import hashlib
import itertools
import statistics
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from dflash_core import kernel_source, nvrtc, resources
from dflash_core.backends.cuda import tuning
from dflash_core.backends.cuda.device import CudaDevice
from dflash_core.backends.cuda.expert_plan import pack_work
from dflash_core.backends.cuda.launch import Launch, Run
from dflash_core.backends.cuda.layers.base import acts_for
from dflash_core.backends.cuda.layers.experts import ExpertProjection
from dflash_core.backends.cuda.plan import Card, Way
from dflash_core.backends.cuda.projection import Projection
from dflash_core.backends.cuda.prompts import NEVER, TIMED_CHUNKS, chunks_from
from dflash_core.backends.cuda.runtime import seconds_of
from dflash_core.backends.cuda.session import CudaSession
from dflash_core.backends.cuda.state import PASS_ROWS, WIDTHS
from dflash_core.backends.cuda.target_model import DeviceTarget
from dflash_core.backends.cuda.tuning import AnyProduct, Identity, Tuning
from dflash_core.nvml import driver_version
from dflash_core.progress import Progress

LAUNCHES = 20  # the most launches of one product per round
TIMED_FILES = ("matmul.cu", "head.cu", "logits.cu", "experts_in.cu", "experts_out.cu")
# A pause as long as the kernels between two products of a step: kernels that start early can use that time.
PAUSE_US, CYCLES_PER_US = 3, 1700
PAUSE_BLOCKS, PAUSE_THREADS = 24, 128
PASS_DEPTH, PASS_ROUNDS, PASS_CONTEXT = 32, 5, 256
CHUNK_ROUNDS = 2
TOKEN_STEP = 7919  # difference between neighbouring token ids of a timed pass

# Products, each with all projections of that shape: they have different weights, so none is in the L2 when it starts.
AnyTimed = Projection | ExpertProjection
Groups = dict[AnyProduct, list[AnyTimed]]


def identity(device: CudaDevice) -> Identity:
    """The identity of measurements on this card, with the present driver and kernels."""
    folder = resources.kernels_dir()
    texts: dict[Path, str] = {}
    for file in TIMED_FILES:
        texts |= kernel_source.closure(folder / file, (folder,))
    facts = device.runtime.card
    hashed = kernel_source.content_hash(texts, nvrtc.version(), facts.arch)[:32]
    return Identity(facts.name, facts.processors, driver_version(), hashed)


def products_of(target: DeviceTarget) -> Groups:
    """The target's products, each with all projections of that shape; the head is the last one."""
    head = Projection(target.device, [target.output], target.activations.head, split_k=1)
    found: Groups = {}
    for projection in (*itertools.chain(*target.projections()), head):
        assert isinstance(projection, Projection | ExpertProjection), "only these kinds of projections can be timed"
        found.setdefault(projection.product, []).append(projection)
    return found


def name_of(products: Mapping[Any, int]) -> str:
    """A target's name, from how often a pass computes each product: only that decides the time, not the file."""
    counted = sorted(f"{product}: {count}" for product, count in products.items())
    return hashlib.sha256("\n".join(counted).encode()).hexdigest()[:16]


def target_name(target: DeviceTarget) -> str:
    return name_of({product: len(group) for product, group in products_of(target).items()})


def replan(target: DeviceTarget, card: Card) -> None:
    """Plan every product of the target for `card`. To be called before a session is made."""
    for group in target.projections():
        for projection in group:
            projection.replan(card)


class Tuner:
    """The tuning of one card. `tuning`: all measurements; `note`: what a user should know about them, or ""."""

    def __init__(self, device: CudaDevice, folder: Path) -> None:
        self.device, self.folder = device, folder
        self.tuning, self.note = tuning.load(folder, identity(device))
        self.seconds = 0.0  # time spent on timing

    def card(self, target: str) -> Card:
        """The card with the ways chosen for a target of this name."""
        return replace(self.device.card, ways=self.tuning.ways_of(target))

    def forget(self) -> None:
        """Drop all measurements, so that everything is measured again."""
        self.tuning, self.note = Tuning(self.tuning.identity), ""

    def run(self, groups: Groups, progress: Progress) -> None:
        """Time the products that were not measured yet, and store the results. Nothing else may run on the card."""
        card = replace(self.device.card, ways=())
        wanted = [product for product in groups if product.nbytes >= tuning.LEAST_BYTES]
        wanted = [product for product in wanted if not self.tuning.knows(product, card)]
        if not wanted:
            return
        timer = CardTimer(self.device, groups)
        timer.compile(wanted, card, progress)
        began = time.perf_counter()
        found = tuning.tune(wanted, card, timer.seconds, progress)
        self.seconds += time.perf_counter() - began
        timer.close()
        self.tuning = self.tuning.with_choices(found)
        self._keep()

    def confirm(self, target: DeviceTarget, progress: Progress) -> None:
        """Time whole passes of the target with the chosen ways and with the default plans, once.

        A kernel that runs alone behaves differently from one inside a pass, and only the time of a pass matters.
        """
        name = target_name(target)
        ours = {str(product) for product in products_of(target)}
        if name in self.tuning.gains or not any(product in ours for product, _ in self.tuning.ways):
            return
        card = replace(self.device.card, ways=())
        began = time.perf_counter()
        passes = [Passes(target, one, progress) for one in (card, replace(card, ways=self.tuning.ways))]
        times: list[dict[int, list[float]]] = [{width: [] for width in tuning.TIMED} for _ in passes]
        for width, turn in itertools.product(tuning.TIMED, range(tuning.ROUNDS)):
            for place in (0, 1) if turn % 2 == 0 else (1, 0):
                times[place][width].append(passes[place].seconds(width))
        self.seconds += time.perf_counter() - began
        passes.clear()
        torch.cuda.empty_cache()
        self.tuning = self.tuning.with_gain(name, *times)
        self._keep()

    def report(self, target: str) -> str:
        """A sentence on what was timed and chosen for a target."""
        timed = f"{len(self.tuning.choices)} products timed" + (
            f" in {self.seconds:.1f} s" if self.seconds else " before"
        )
        ways = self.tuning.ways
        if not ways:
            return f"{timed}; none is faster in another way{self._prompts(target)}"
        gain = self.tuning.gains.get(target)
        if gain is None:
            return f"{timed}; {len(ways)} are faster in another way, whole passes were not timed"
        kept = "taken" if self.tuning.ways_of(target) else "plans stay as they are"
        return (
            f"{timed}; {len(ways)} are faster in another way, whole passes by {gain:.1%}: {kept}{self._prompts(target)}"
        )

    def _prompts(self, target: str) -> str:
        below = chunks_from(self.tuning.passes.get(target, {}), self.tuning.chunks.get(target, {}))
        if below is None:
            return ""
        return (
            f"; prompts{'' if below == NEVER else f' of fewer than {below:,} tokens'} run in passes of {PASS_ROWS} rows"
        )

    def add_steps(self, target: str, steps: Mapping[str, float]) -> None:
        """Store milliseconds of whole steps by the name of a benchmark case."""
        self.tuning = self.tuning.with_steps(target, steps)
        self._keep()

    def passes(self, session: CudaSession, progress: Progress) -> Mapping[int, float]:
        """Milliseconds of a verify pass of this target by width; measured once, with an empty sequence."""
        name = target_name(session.target)
        if set(timed_widths(session)) - self.tuning.passes.get(name, {}).keys():
            self.tuning = self.tuning.with_passes(name, time_passes(session, progress))
            self._keep()
        return self.tuning.passes[name]

    def chunks(self, session: CudaSession, progress: Progress) -> Mapping[int, float]:
        """Milliseconds of a prompt's chunk for this target by rows; measured once, with an empty sequence. Empty where
        the session has no such chunks."""
        if session.chunk_pass is None or session.chunk_pass.chunk.rows < max(TIMED_CHUNKS):
            return {}
        name = target_name(session.target)
        if name not in self.tuning.chunks:
            self.tuning = self.tuning.with_chunks(name, time_chunks(session, progress))
            self._keep()
        return self.tuning.chunks[name]

    def _keep(self) -> None:
        self.note = tuning.store(self.folder, self.tuning) or self.tuning.note


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


class Passes:
    """Passes of a target that is planned for `card`, at the timed widths, with their own sequence."""

    def __init__(self, target: DeviceTarget, card: Card, progress: Progress) -> None:
        self.device = cast(CudaDevice, target.device)
        replan(target, card)
        self.device.card = card  # the session plans the head for this card
        self._session = CudaSession(target, context=PASS_CONTEXT, nodes=max(tuning.TIMED))
        self._session.prefill([0] * PASS_DEPTH)
        self._runs = {width: _recorded(self._session, width, progress) for width in tuning.TIMED}

    def seconds(self, width: int) -> float:
        """Time one more pass, in seconds."""
        with self.device.stream():
            self._session.plant(_tokens(self._session, width), range(-1, width - 1))
            return seconds_of(self.device.runtime, self._runs[width])


def _tokens(session: CudaSession, width: int) -> list[int]:
    """Tokens of a timed pass. They all differ: rows of the same token would choose the same experts."""
    return [token * TOKEN_STEP % session.target.spec.vocab_size for token in range(1, width + 1)]


def _recorded(session: CudaSession, width: int, progress: Progress) -> Run:
    device, acts = session.device, session.memory.buffers.acts
    with device.stream():
        session.plant(_tokens(session, width), range(-1, width - 1))
        launches = [*session.pass_launches(width, 0), *session.head.argmax_launches(acts, width, 0)]
        run = device.record(f"a pass of {width} rows", device.bind(launches, progress))
        run()
    return run


class CardTimer:
    """Implements `tuning.Measure` with graphs of a product's launches, on the weights of several layers."""

    def __init__(self, device: CudaDevice, groups: Groups) -> None:
        self.device, self.groups = device, groups
        self._runs: dict[tuple[AnyProduct, Way, int], Run] = {}
        self._routed: dict[tuple[AnyProduct, int, int], Tensor] = {}
        with device.stream():
            self._acts = acts_for(max(product.columns for product in groups), device.torch_device)
            for form in (self._acts.q8, self._acts.f16):
                form.random_(0, 256)  # zeros need less power and so less time
            self._out, self._inner, self._weights = (torch.empty(0, device=device.torch_device) for _ in range(3))
        pause = [np.int64(PAUSE_US * CYCLES_PER_US)] if device.card.overlaps else None
        self._pause = [] if pause is None else [
            Launch("stream.cu", "pause", {}, PAUSE_BLOCKS, PAUSE_THREADS, pause)
        ]  # fmt: skip

    def compile(self, products: Iterable[AnyProduct], card: Card, progress: Progress) -> None:
        """Compile everything that will be timed in one batch: the compiler uses every core."""
        launches: list[Launch] = []
        with self.device.stream():
            for product in products:
                for way, width in itertools.product(tuning.candidates(product, card), tuning.TIMED):
                    launches += self._launches(product, way, width)
            self.device.bind(launches, progress)

    def seconds(self, product: AnyProduct, way: Way, width: int) -> float:
        """Seconds of one launch, without the pauses."""
        key = product, way, width
        count = min(LAUNCHES, len(self.groups[product]))
        with self.device.stream():
            if key not in self._runs:
                bound = self.device.bind(self._launches(product, way, width))
                self._runs[key] = self.device.record(f"timing {product}", bound)
                self._runs[key]()
            taken = seconds_of(self.device.runtime, self._runs[key])
        pauses = len(self._pause) * PAUSE_US * 1e-6
        return max(0.0, taken / count - pauses)

    def close(self) -> None:
        """Free the memory."""
        self._runs.clear()
        self._routed.clear()
        self._out, self._inner, self._weights = (self._out.new_empty(0) for _ in range(3))
        self.device.synchronize()
        torch.cuda.empty_cache()

    def _launches(self, product: AnyProduct, way: Way, width: int) -> list[Launch]:
        return list(self._of(self.groups[product][:LAUNCHES], replace(self.device.card, way=way, ways=()), width))

    def _of(self, projections: Sequence[AnyTimed], card: Card, width: int) -> Iterator[Launch]:
        for layer, projection in enumerate(projections):
            other = projection.planned_for(card)
            self._out = self._room(self._out, other.split_k * other.width * width)
            if isinstance(other, ExpertProjection):
                yield self._by_experts(other, width, layer)
            else:
                yield from other.launches(self._acts, self._out, width)
            yield from self._pause

    def _by_experts(self, projection: ExpertProjection, width: int, layer: int) -> Launch:
        """Rows choose experts at random: different ones in each layer, the same ones for each way."""
        product = projection.product
        work = self._routed.get((product, width, layer))
        if work is None:
            rng = np.random.default_rng((width, layer))
            chosen = [rng.permutation(product.routed.count)[: product.used].tolist() for _ in range(width)]
            packed = torch.frombuffer(bytearray(pack_work(chosen, product.shared is not None)), dtype=torch.uint8)
            work = self._routed[product, width, layer] = packed.to(self.device.torch_device)
        self._weights = self._room(self._weights, product.ranks * PASS_ROWS)
        self._inner = self._room(self._inner, product.ranks * width * 2 * projection.columns)
        return projection.alone_launch(work, self._weights, self._inner, self._acts, self._out, width)

    def _room(self, held: Tensor, floats: int) -> Tensor:
        return held if held.numel() >= floats else torch.ones(floats, device=self.device.torch_device)
