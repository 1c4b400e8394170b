"""Tests whether this card computes correctly: every kernel family on small inputs, compared with code for the CPU.

Deciding kernels (tree, accept, sample) must give the same tokens as tree.py and sampling.py. Arithmetic kernels run as
in a model: a prompt, a tree, a commit and a draft of a small pair, compared with the CPU backend.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dflash_core import tree as ddtree
from dflash_core.backends.base import Backend, Logits
from dflash_core.backends.cpu.target import CpuTarget
from dflash_core.backends.cuda.device_state import DeviceState
from dflash_core.backends.cuda.drafters.dflash import DFlashOnDevice
from dflash_core.backends.cuda.drafters.dflash_weights import DeviceDraft
from dflash_core.backends.cuda.launch import NULL, Argument, Device, Launch
from dflash_core.backends.cuda.layers.draws import Draws
from dflash_core.backends.cuda.repack import ROWS
from dflash_core.backends.cuda.session import CudaSession
from dflash_core.backends.cuda.state import MAX_NODES, MAX_WIDTH, RING_SLOT, STAMPS, begin_turn, write_knobs
from dflash_core.backends.cuda.step import TREE_THREADS
from dflash_core.backends.cuda.target_model import DeviceTarget
from dflash_core.backends.cuda.upload import DeviceUpload
from dflash_core.drafters.dflash import open_dflash
from dflash_core.errors import DFlashError, KernelError
from dflash_core.formats.weights import WeightFile
from dflash_core.knobs import Knobs
from dflash_core.progress import silent
from dflash_core.sampling import Sampler
from dflash_core.tree import Candidates, Tree

VOCABULARY = 4096
ROOT, LENGTH = 7, 50  # the newest token, and how many positions are committed before it
DEPTHS = 15
PROMPT = 70  # more than one pass of 64 rows
ANSWER = 12
SEED = 1
# The largest root mean square error of logits, in standard deviations of the logits. Any wrong kernel makes it about 1;
# int8 activations cause 0.06 on a golden model with random weights.
TOLERANCE = 0.2

# The kernels of a target's pass, of a drafter's pass, and of whole steps, including steps without drafts.
MODEL = (
    "embed", "rms_norm", "matmul", "gdn_order", "gdn_recurrence", "gdn_out", "attn_prepare", "attn_split",
    "attn_combine", "swiglu",
)  # fmt: skip
DRAFTER = ("draft_gather", "draft_update", "draft_prepare", "draft_split", "draft_combine")
STEPS = ("attn_alone", "gdn_alone", "head_argmax", "head_logits", "step_begin", "swiglu_matmul")

Record = npt.NDArray[np.void]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one part of the self-test. `problem`: empty if the card agrees."""

    name: str
    kernels: tuple[str, ...]
    problem: str = ""


def run(device: Device, target: Path, draft: Path) -> Iterator[Outcome]:
    """Test one kernel family after the other; `target` and `draft`: the files of a small pair."""
    rng = np.random.default_rng(SEED)
    yield _outcome("tree", ("tree_build", "candidates", "merge_draws"), lambda: _tree(device, rng))
    yield _outcome("accept", ("accept", "kv_commit"), lambda: _accept(device, rng))
    yield _outcome(
        "sampling", ("draw_list", "draw_scan", "draw_front", "draw_weights", "sample"), lambda: _sample(device, rng)
    )
    pair: list[_Pair] = []

    def load() -> None:
        pair.append(_Pair(device, target, draft))
        pair[0].prefill()

    yield _outcome("target, a prompt", MODEL, load)
    if not pair:
        return
    yield _outcome("target, a tree", MODEL, pair[0].verify)
    yield _outcome("commit", ("kv_commit", "keep_features", "gdn_flush"), pair[0].commit)
    yield _outcome("drafter", DRAFTER, pair[0].draft)
    yield _outcome("steps as one graph", STEPS, pair[0].steps)


def _outcome(name: str, kernels: tuple[str, ...], test: Callable[[], None]) -> Outcome:
    try:
        test()
    except DFlashError as error:
        return Outcome(name, kernels, str(error))
    return Outcome(name, kernels)


def _agree(what: str, found: object, expected: object) -> None:
    if not np.array_equal(np.asarray(found), np.asarray(expected)):
        raise KernelError(f"{what}: found {str(found)[:60]} on the card, expected {str(expected)[:60]}")


# ---- Deciding kernels ---------------------------------------------------------------------------------------------


class _Bench:
    """A StepState on the device as in the middle of a turn, and launches that use it."""

    def __init__(self, device: Device, tree: Tree | None = None, knobs: Knobs | None = None) -> None:
        self.device, self.state = device, DeviceState(device.torch_device)
        host, chosen = self.state.host, knobs or Knobs()
        write_knobs(host, chosen, "tree", DEPTHS + 1)
        begin_turn(host, chosen, answer=[ROOT], prompt_length=LENGTH, context_length=1 << 20, stop_ids=())
        host["length"] = LENGTH
        if tree is not None:
            self.state.plant(tree.tokens, tree.parents)

    def put(self, values: npt.NDArray[Any]) -> Tensor:
        """Any array as bytes on the device."""
        raw = np.frombuffer(bytearray(values.tobytes()), np.uint8)
        return torch.from_numpy(raw).to(self.device.torch_device)

    def run(self, file: str, name: str, grid: int, block: int, args: Sequence[Argument], **defines: int) -> Record:
        """Launch a kernel with the state as its first argument; returns the state afterwards."""
        return self.launch([Launch(file, name, defines, grid, block, [self.state.pointer, *args])])

    def launch(self, launches: Sequence[Launch]) -> Record:
        """The state after these launches."""
        with self.device.stream():
            self.state.push()
            self.device.bind(launches)()
            self.device.synchronize()
            self.state.pull()
        record: Record = self.state.host
        return record


def _drafts(rng: np.random.Generator) -> Candidates:
    tokens = np.stack([rng.choice(VOCABULARY, MAX_WIDTH, replace=False) for _ in range(DEPTHS)])
    log_probs = -np.sort(-np.log(rng.dirichlet(np.full(MAX_WIDTH, 0.4), DEPTHS) + 1e-9), axis=1)
    return Candidates(tokens.astype(np.int64), log_probs.astype(np.float32).astype(np.float64))


def _tree(device: Device, rng: np.random.Generator) -> None:
    for budget in (1, 22, 63, 255):
        drafts = _drafts(rng)
        bench = _Bench(device, knobs=Knobs(budget=budget))
        host = bench.state.host
        host["candidate"][:DEPTHS], host["candidate_log_prob"][:DEPTHS] = drafts.tokens, drafts.log_probs
        state = bench.run("tree.cu", "tree_build", 1, TREE_THREADS, [bench.put(np.zeros(STAMPS, np.uint64))])
        expected = ddtree.build(ROOT, drafts, budget)
        n = int(state["n"])
        _agree(f"nodes of a tree of {budget}", n, len(expected))
        _agree(f"tokens of a tree of {budget}", state["token"][:n], expected.tokens)
        _agree(f"parents of a tree of {budget}", state["parent"][:n], expected.parents)


def _accept(device: Device, rng: np.random.Generator) -> None:
    tree = ddtree.build(ROOT, _drafts(rng), 63)
    draws = rng.integers(0, VOCABULARY, len(tree))
    at = len(tree) - 1  # the draws lead the walk to the node that was added last
    while at > 0:
        draws[tree.parents[at]] = tree.tokens[at]
        at = tree.parents[at]
    walk = ddtree.walk(tree, lambda node, path: int(draws[node]))
    bench = _Bench(device, tree)
    bench.state.host["draw"][: len(tree)] = draws
    ring, cancel = bench.put(np.zeros(1, RING_SLOT)), bench.put(np.zeros(1, np.int32))
    stamps = bench.put(np.zeros(STAMPS, np.uint64))
    bench.run("accept.cu", "accept", 1, MAX_NODES, [ring, np.int32(1), cancel, NULL, np.int32(0), stamps])
    slot = np.frombuffer(ring.cpu().numpy().tobytes(), RING_SLOT)[0]
    _agree("the accepted path", slot["path"][: slot["accepted"]], walk.path)
    _agree("the token after it", slot["bonus"], walk.next_token)

    rows = rng.integers(0, 2**32, (LENGTH + len(tree), 4), np.uint32)
    cache = bench.put(rows)
    streams = bench.put(np.array([cache.data_ptr()], np.uint64))
    bench.run("accept.cu", "kv_commit", 1, 1, [streams, np.int32(1), stamps])
    moved = np.frombuffer(cache.cpu().numpy().tobytes(), np.uint32).reshape(rows.shape)
    _agree("moved rows", moved[LENGTH:][: len(walk.path)], rows[LENGTH + np.array(walk.path)])


def _sample(device: Device, rng: np.random.Generator) -> None:
    tree = ddtree.build(ROOT, _drafts(rng), 22)
    logits = (rng.standard_normal((len(tree), VOCABULARY)) * 3).astype(np.float32)
    # Fractions that are exact in f32, in which the card stores settings.
    for knobs in (
        Knobs(temperature=0.75, seed=5),
        Knobs(temperature=1.0, top_k=40, top_p=0.875, seed=6),
        Knobs(temperature=1.0, top_p=0.5, min_p=0.0625, repetition_penalty=1.25, seed=7),
        Knobs(frequency_penalty=0.5),
    ):
        bench = _Bench(device, tree, knobs)
        maxima = bench.put(logits.reshape(len(tree), -1, ROWS).max(axis=2)).view(torch.float32).view(len(tree), -1)
        rows = bench.put(logits).view(torch.float32).view(len(tree), -1)
        draws = Draws(VOCABULARY, len(tree), device.torch_device)
        state = bench.launch(draws.launches(bench.state.pointer, rows, maxima, len(tree), 0))
        sampler = Sampler(knobs)
        expected = [
            sampler.draw(logits[node], LENGTH + 1 + depth, [ROOT, *_path(tree, node)])
            for node, depth in enumerate(tree.depths)
        ]
        _agree("draws", state["draw"][: len(tree)], expected)


def _path(tree: Tree, node: int) -> list[int]:
    tokens: list[int] = []
    while node > 0:
        tokens.insert(0, tree.tokens[node])
        node = tree.parents[node]
    return tokens


# ---- The model's kernels ------------------------------------------------------------------------------------------


class _Pair:
    """A pair of files, loaded both on the card and on the CPU; both get the same calls."""

    def __init__(self, device: Device, target: Path, draft: Path) -> None:
        self.reference = CpuTarget(target)
        self.reference.load(progress=silent)
        self.drafter = self.reference.load_dflash(open_dflash(draft, self.reference), torch.float32)
        config = self.drafter.config
        with _upload(device, self.reference.file) as upload:
            model = DeviceTarget(device, upload, self.reference.config)
        with _upload(device, self.drafter.file) as upload:
            drafter = DFlashOnDevice(DeviceDraft(device, upload, config), self.drafter.mask_token)
        context = min(512, self.reference.config.context_length)
        self.card = CudaSession(model, drafter, context=context)
        self.processor = self.reference.session(self.drafter, context=context)
        rng = np.random.default_rng(SEED)
        vocabulary = self.reference.config.vocab_size
        self.ids: list[int] = rng.integers(0, vocabulary, PROMPT).tolist()
        self.tokens: list[int] = rng.integers(0, vocabulary, 20).tolist()
        self.parents = [-1] + [int(rng.integers(max(0, node - 4), node)) for node in range(1, 20)]

    def both(self, call: Callable[[Backend], Logits]) -> None:
        found, expected = call(self.card), call(self.processor)
        error = float(np.sqrt(np.mean((found - expected) ** 2)) / expected.std())
        if not error <= TOLERANCE:
            raise KernelError(
                f"logits differ by {error:.0%} of their standard deviation, expected at most {TOLERANCE:.0%}"
            )

    def prefill(self) -> None:
        self.both(lambda session: session.prefill(self.ids))

    def verify(self) -> None:
        self.both(lambda session: session.verify(self.tokens, self.parents))

    def commit(self) -> None:
        """Commit a path that is not the tree's first chain, and compare a pass after it."""
        path = [19]
        while self.parents[path[0]] >= 0:
            path.insert(0, self.parents[path[0]])
        for session in (self.card, self.processor):
            session.commit(path)
        self.both(lambda session: session.verify([1, 2, 3], [-1, 0, 0]))

    def draft(self) -> None:
        self.both(lambda session: session.draft(1, 0))

    def steps(self) -> None:
        """Compare the answer with trees and the answer of plain decoding, both on the card."""
        answers = []
        for mode in ("ar", "tree"):
            self.card.restore(None)
            knobs = Knobs(mode=mode, max_tokens=ANSWER, ignore_eos=True)
            decoder = self.card.decoder(knobs, frozenset(), 400)
            token, _ = decoder.first(self.card.prefill(self.ids))
            tokens = [token]
            while len(tokens) < ANSWER:
                tokens += decoder.step().tokens
            decoder.finish()
            answers.append(tokens)
        _agree("an answer with trees and one of plain decoding", answers[1], answers[0])


@contextmanager
def _upload(device: Device, file: WeightFile) -> Iterator[DeviceUpload]:
    upload = DeviceUpload(device, file)
    try:
        with device.stream():
            yield upload
            device.synchronize()
    finally:
        upload.close()
