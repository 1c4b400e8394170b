"""Tests whether this card computes correctly: a small pair gets the same calls on the card and on the CPU.

A prompt, a tree, a commit off the first chain and a draft are compared; an answer with trees is compared with plain
decoding. Together they run the kernels of a model with a block drafter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from dflash_core.backends.base import AnswerOptions, Backend, Logits
from dflash_core.backends.cpu.target import CpuTarget
from dflash_core.backends.cuda.activations import DEFAULT
from dflash_core.backends.cuda.drafters.base import on_device
from dflash_core.backends.cuda.launch import Device
from dflash_core.backends.cuda.session import CudaSession
from dflash_core.backends.cuda.target_model import DeviceTarget
from dflash_core.backends.cuda.upload import DeviceUpload
from dflash_core.drafters.dflash import open_dflash
from dflash_core.errors import KernelError
from dflash_core.formats.weights import WeightFile
from dflash_core.knobs import Knobs
from dflash_core.progress import silent

PROMPT = 70  # more than one pass of 64 rows
NODES, ANSWER, SEED = 20, 12, 1
# The largest root mean square error of logits, in standard deviations of the logits. Any wrong kernel makes it about 1;
# int8 activations cause 0.06 on a golden model with random weights.
TOLERANCE = 0.2


def run(device: Device, target: Path, draft: Path) -> None:
    """`target` and `draft`: the files of a small pair. Raises KernelError where the card's results differ."""
    reference = CpuTarget(target)
    reference.load(progress=silent)
    opened = open_dflash(draft, reference)
    drafter = opened.load()
    with _upload(device, reference.file) as upload:
        model = DeviceTarget(device, upload, reference.config)
    with _upload(device, opened.file) as upload:
        device_draft = on_device(opened.config, upload, model, DEFAULT)
    context = min(512, reference.config.context_length)
    card, processor = CudaSession(model, device_draft, context=context), reference.session(drafter, context=context)
    rng, vocabulary = np.random.default_rng(SEED), reference.config.vocab_size
    ids, tokens = (rng.integers(0, vocabulary, count).tolist() for count in (PROMPT, NODES))
    parents = [-1] + [int(rng.integers(max(0, node - 4), node)) for node in range(1, NODES)]
    path = [NODES - 1]
    while parents[path[0]] >= 0:
        path.insert(0, parents[path[0]])

    def both(what: str, call: Callable[[Backend], Logits]) -> None:
        found, expected = call(card), call(processor)
        error = float(np.sqrt(np.mean((found - expected) ** 2)) / expected.std())
        if not error <= TOLERANCE:
            raise KernelError(f"{what}: logits differ by {error:.0%} of their spread, expected at most {TOLERANCE:.0%}")

    both("a prompt", lambda session: session.prefill(ids))
    both("a tree", lambda session: session.verify(tokens, parents))
    for session in (card, processor):
        session.commit(path)
    both("a pass after a commit", lambda session: session.verify([1, 2, 3], [-1, 0, 0]))
    both("a draft", lambda session: session.draft(1, 0))
    knobs = Knobs(drafting="plain", max_tokens=ANSWER, ignore_eos=True)
    plain, tree = (_answer(card, ids, one) for one in (knobs, replace(knobs, drafting="tree")))
    if plain != tree:
        raise KernelError(f"an answer with trees: found tokens {tree}, expected those of plain decoding, {plain}")


def _answer(card: CudaSession, ids: list[int], knobs: Knobs) -> list[int]:
    card.restore(None)
    decoder = card.decoder(AnswerOptions(knobs, frozenset(), 400))
    token, _ = decoder.first(card.prefill(ids))
    tokens = [token]
    while len(tokens) < ANSWER:
        tokens += decoder.step().tokens
    decoder.finish()
    return tokens


@contextmanager
def _upload(device: Device, file: WeightFile) -> Iterator[DeviceUpload]:
    upload = DeviceUpload(device, file)
    try:
        with device.stream():
            yield upload
            device.synchronize()
    finally:
        upload.close()
