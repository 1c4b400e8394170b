"""Real faults on a real card, each in a process of its own: the message, and what still works afterwards."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Mapping

import pytest
import torch

from dflash_core import Engine, Knobs
from dflash_core.backends.cuda.session import CudaSession
from support import demo_card, on_device
from support.compare import generated

pytestmark = pytest.mark.skipif(on_device.missing() is not None, reason=on_device.missing() or "")

ASK = (sys.executable, "-m", "dflash_tui", "--demo", "ask", "hi", "--set", "temperature=0", "--set", "max_tokens=40")
# An invalid pointer, while an engine is in use.
FAULT = """
import numpy as np
from dflash_core import Engine, Knobs, load_draft, load_target
from dflash_core.backends.cuda.launch import Launch
from dflash_core.demo import demo_draft_path, demo_target_path
from dflash_core.errors import KernelError

target = load_target(demo_target_path(), device="cuda")
engine = Engine(target, load_draft(demo_draft_path(), target), context_length=512)
events = engine.generate([1, 2, 3], Knobs(max_tokens=200, ignore_eos=True))
next(events), next(events)
engine.session.device.bind([Launch("features.cu", "features_taken", {}, 1, 1, [np.uint64(64)])])()
try:
    list(events)
except KernelError as error:
    print(error.reload, error, flush=True)
try:
    list(engine.generate([1, 2, 3], Knobs()))
except KernelError as error:
    print(error.reload, error, flush=True)
"""


HANGS = 600  # seconds: only a program that hangs takes as long, whatever else the machine does


def run(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    merged: Mapping[str, str] = {**os.environ, **environment}
    return subprocess.run(command, capture_output=True, text=True, timeout=HANGS, env=merged)


def fill_up(engine: Engine) -> list[torch.Tensor]:
    """Take all memory that torch has left for the engine's stream, and keep torch from allocating more."""
    session = engine.session
    assert isinstance(session, CudaSession)
    held: list[torch.Tensor] = []
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(torch.cuda.memory_reserved() / torch.cuda.mem_get_info()[1])
    with torch.cuda.stream(session.device.runtime.torch_stream):
        for size in (1 << 23, 1 << 20, 1 << 16, 1 << 10):
            with contextlib.suppress(torch.OutOfMemoryError):
                while True:
                    held.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
    return held


@pytest.mark.alone
def test_a_card_that_is_full_in_mid_turn_still_grows_its_trees() -> None:
    """Their memory was reserved at the load: with nothing left for the allocator the answer is the same."""
    engine, ids = demo_card.fresh(half=True), demo_card.prompts(40)[1]
    knobs = Knobs(drafting="tree 22", temperature=0, max_tokens=40, ignore_eos=True)
    expected = generated(engine, ids, knobs)
    events = engine.generate(ids, knobs)
    tokens = [token for event in (next(events), next(events)) for token in event.tokens]
    hogs = fill_up(engine)
    try:
        engine.change(knobs.replace(budget=200))
        tokens += [token for event in events for token in event.tokens]
    finally:
        hogs.clear()
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert tokens == expected


def test_a_kernel_that_fails_is_named_and_asks_for_a_reload() -> None:
    found = run(sys.executable, "-c", FAULT)
    first, second = found.stdout.splitlines()
    # The last launch when the error was noticed: that of the kernel, or a later one.
    assert re.match(r"True the GPU gave up in (.*, after )?(features_taken|step \(\d+,\)).* \(", first), first
    assert first == second
    assert first.endswith("reload the engine")
    assert "Traceback" not in found.stderr
    assert "Exception ignored" not in found.stderr


def test_hidden_cards() -> None:
    refused = run(*ASK, "--device", "cuda", CUDA_VISIBLE_DEVICES="")
    assert refused.returncode == 1
    assert refused.stderr.splitlines()[-1] == (
        "dflash-tui: CUDA_VISIBLE_DEVICES='' hides every GPU; unset it, or run it on the CPU (--device cpu)"
    )
    taken = run(*ASK, "--device", "auto", CUDA_VISIBLE_DEVICES="")
    assert taken.returncode == 0
    assert "the GPU is not used: CUDA_VISIBLE_DEVICES='' hides every GPU" in taken.stderr


def test_two_processes_share_a_card() -> None:
    command = (*ASK, "--device", "cuda")
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    answers = [one.communicate(timeout=HANGS) for one in both]
    assert [one.returncode for one in both] == [0, 0], answers
    assert answers[0][0] == answers[1][0]
    assert answers[0][0].strip()
    assert "Exception ignored" not in answers[0][1] + answers[1][1], "nothing is said at the interpreter's end"
