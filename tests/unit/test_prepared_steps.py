"""What a load prepares on a card: an answer with the model's usual sampling compiles and records nothing."""

from __future__ import annotations

import builtins
import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("torch")
from dflash_core.arch.recommended import FAMILIES
from dflash_core.backends.base import AnswerOptions
from dflash_core.backends.cuda.activations import CHOICES
from dflash_core.backends.cuda.drafters.base import on_device
from dflash_core.backends.cuda.launch import Launch, Run
from dflash_core.backends.cuda.session import CudaSession
from dflash_core.backends.cuda.target_model import DeviceTarget
from dflash_core.demo import demo_draft_path, demo_target_path
from dflash_core.engine import load_pair
from dflash_core.knobs import Knobs
from dflash_core.policy.queued import CHOICES as AUTO_ROWS
from dflash_core.progress import Progress, silent
from support.kernel_variants import CARDS, Pair, demo, demo_mtp
from support.recording_device import NamedUpload, RecordingDevice

SAMPLED = Knobs(temperature=0.7, top_k=20, top_p=0.8)
OPEN = Knobs(temperature=0.6, top_p=0.9)  # any token may be drawn


class Counted(RecordingDevice):
    """`compiled`: the programs that were needed so far, `together` by the first batch; `recorded`: the graphs."""

    def __init__(self) -> None:
        super().__init__(CARDS["sm_90a"])
        self.compiled, self.recorded = set[tuple[str, str]](), list[str]()
        self.together: frozenset[tuple[str, str]] | None = None

    def bind(self, launches: Sequence[Launch], progress: Progress | None = None) -> Run:
        self.compiled |= {(launch.file, str(launch.defines)) for launch in launches}
        self.together = frozenset(self.compiled) if self.together is None else self.together
        return super().bind(launches, progress)

    def record(self, name: str, work: Run) -> Run:
        self.recorded.append(name)
        return super().record(name, work)


def session(pair: Pair | None = None) -> tuple[CudaSession, Counted]:
    pair, device, chosen = pair or demo(), Counted(), CHOICES["int8"]
    target = DeviceTarget(device, NamedUpload(pair.target, device), pair.target_config, chosen)
    drafter = on_device(pair.draft_config, NamedUpload(pair.draft, device), target, chosen)
    return CudaSession(target, drafter, (), context=320), device


def decode(card: CudaSession, knobs: Knobs) -> None:
    """The graphs of an answer's plain steps, and of its drafts by `auto`, which copies from the text too."""
    for rows in (1, *AUTO_ROWS):
        drafting = f"tree {rows - 1}" if rows > 1 else "plain"
        kind = card.decoder(AnswerOptions(knobs.replace(drafting=drafting), frozenset(), 320))._kind()
        card.steps.graph(replace(kind, text=rows > 1))


@pytest.mark.parametrize("knobs", [Knobs(), SAMPLED, OPEN], ids=["greedy", "listed", "open"])
def test_an_answer_waits_for_no_compiler_and_no_graph(knobs: Knobs) -> None:
    card, device = session()
    card.prepare(silent, knobs)
    compiled, recorded = set(device.compiled), len(device.recorded)
    decode(card, knobs)
    assert device.recorded[recorded:] == []
    for other in (Knobs(), SAMPLED, OPEN):  # other sampling has its graphs recorded, and compiles nothing
        decode(card, other)
    assert device.compiled == compiled


def test_a_fixed_tree_is_prepared_too() -> None:
    card, device = session()
    wide = SAMPLED.replace(drafting="tree 30")
    card.prepare(silent, wide)
    recorded = len(device.recorded)
    card.steps.graph(card.decoder(AnswerOptions(wide, frozenset(), 320))._kind())
    assert device.recorded[recorded:] == []


def test_depths_that_auto_falls_to_are_prepared() -> None:
    card, device = session(demo_mtp())
    card.prepare(silent, SAMPLED)
    assert device.compiled == device.together
    recorded = len(device.recorded)
    for depth, rows in itertools.product((1, 2, 3), AUTO_ROWS):
        drafting = SAMPLED.replace(mtp_depth=depth, drafting=f"tree {rows - 1}")
        kind = card.decoder(AnswerOptions(drafting, frozenset(), 320))._kind()
        assert kind.passes == depth
        card.steps.graph(replace(kind, text=True))
    assert device.recorded[recorded:] == []


def test_a_load_does_not_import_the_compiler_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """`torch.nn.attention.bias` imports it too; it takes seconds."""
    imported, importing = list[str](), builtins.__import__

    def noted(name: str, *more: Any) -> Any:
        imported.append(name)
        return importing(name, *more)

    monkeypatch.setattr(builtins, "__import__", noted)
    card, _ = session()
    card.prepare(silent, Knobs())
    card.prefill(range(200))
    slow = ("torch._dynamo", "torch._inductor", "torch.nn.attention.bias", "torch.compiler", "sympy")
    assert [name for name in imported if name.startswith(slow)] == []


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        (None, 0.0),
        ((), 0.7),
        (("temperature",), 0.0),
    ],
)
def test_a_load_prepares_the_sampling_of_the_first_answer(
    chosen: tuple[str, ...] | None, expected: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which is as recommended for the model, unless the user has chosen another."""
    from dflash_core import engine
    from dflash_core.backends.cpu.session import CpuSession

    found = list[Knobs]()
    qwen3 = dict(FAMILIES)["qwen-?3"]
    monkeypatch.setattr(engine, "recommended", lambda metadata: qwen3)
    monkeypatch.setattr(CpuSession, "prepare", lambda self, progress, knobs: found.append(knobs))
    load_pair(demo_target_path(), demo_draft_path(), "cpu", knobs=Knobs(), chosen=chosen)
    assert [knobs.temperature for knobs in found] == [expected]
