"""Every program that the synthetic 27B pair and the demo pair need on a card of each architecture.

Nothing is listed by hand: sessions are built without memory, and list the launches of every pass and step.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
from tools.bench.variants import cut, mtp_config, mtp_types

from dflash_core.arch.draft_heads import Heads, Markov
from dflash_core.arch.spec import ModelSpec
from dflash_core.backends.cuda.activations import DEFAULT
from dflash_core.backends.cuda.device import Variant
from dflash_core.backends.cuda.drafters.base import on_device
from dflash_core.backends.cuda.launch import Launch
from dflash_core.backends.cuda.meta import MetaDevice
from dflash_core.backends.cuda.plan import Card
from dflash_core.backends.cuda.repack import TILE_TYPES
from dflash_core.backends.cuda.sequence_passes import CHUNK_WIDTHS
from dflash_core.backends.cuda.session import CudaSession
from dflash_core.backends.cuda.state import WIDTHS
from dflash_core.backends.cuda.step_graphs import StepKind
from dflash_core.backends.cuda.target_model import DeviceTarget
from dflash_core.backends.cuda.upload import Upload
from dflash_core.bench.family_models import GEMMA_26B
from dflash_core.bench.shapes import header
from dflash_core.bench.synthetic_models import (
    DRAFT_27B,
    SIZE_27B,
    SIZE_27B_DFLASH2,
    SIZE_27B_DSPARK,
    SIZE_35B_A3B,
    TARGET_27B,
    draft_types,
    target_types,
)
from dflash_core.cache_types import F16, CachePair
from dflash_core.config import target_config
from dflash_core.demo import demo_dflash2_path, demo_draft_path, demo_mtp_path, demo_target_path
from dflash_core.drafters.assistant import open_assistant
from dflash_core.drafters.base import DraftModel
from dflash_core.drafters.dflash import open_drafter
from dflash_core.drafters.draft import TargetHeader
from dflash_core.drafters.mtp import find_head
from dflash_core.errors import UnsupportedError
from dflash_core.formats.gguf import open_gguf
from support.golden import golden

# Multiprocessors and dynamic shared memory of a block, by architecture: what layouts adapt to.
CARDS = {
    "sm_75": Card(72, 64 << 10),
    "sm_80": Card(108, 163 << 10),
    "sm_86": Card(82, 99 << 10),
    "sm_89": Card(128, 99 << 10),
    "sm_90a": Card(132, 227 << 10, overlaps=True),
    "sm_120": Card(170, 99 << 10, overlaps=True),
}
LAYERS = 8
QUICK_WIDTHS = (1, 24)
OLDEST = "sm_75"
CLUSTERS = ("sm_90a", "sm_120")  # cards whose blocks can form clusters
BESIDE = ("probe.cu", "stream.cu")  # what no session launches
PREFILL_TYPES = tuple(TILE_TYPES)


@dataclass(frozen=True, slots=True)
class Pair:
    """A target and a drafter to build a session from, or a target alone. `kv`: the types of its keys and values."""

    target: Any
    target_config: ModelSpec
    draft: Any = None
    draft_config: DraftModel | None = None
    kv: CachePair = F16


def large() -> Pair:
    """The synthetic 27B pair, cut to the first layers: all types and sizes occur among them."""
    spec = replace(TARGET_27B, layers=TARGET_27B.layers[:LAYERS])
    draft = replace(DRAFT_27B, target_layers=tuple(range(len(DRAFT_27B.target_layers))))
    files = (
        header("27b", spec.tensors(), target_types(spec, SIZE_27B)),
        header("27b-draft", draft.tensors(), draft_types(draft)),
    )
    return Pair(files[0], spec, files[1], draft)


def large_mtp() -> Pair:
    """The same target with an MTP head."""
    target, config = large(), mtp_config(SIZE_27B)
    return replace(target, draft=header("27b-mtp", config.tensors(), mtp_types(config, SIZE_27B)), draft_config=config)


def large_dflash2() -> Pair:
    """The same target with a DFlash 2 drafter."""
    target, draft = large(), replace(SIZE_27B_DFLASH2.draft, target_layers=tuple(range(5)))
    return replace(target, draft=header("27b-dflash2", draft.tensors(), draft_types(draft)), draft_config=draft)


def large_dspark() -> Pair:
    """The same target with a DSpark drafter."""
    target, draft = large(), replace(SIZE_27B_DSPARK.draft, target_layers=tuple(range(5)))
    return replace(target, draft=header("27b-dspark", draft.tensors(), draft_types(draft)), draft_config=draft)


def small_dspark() -> Pair:
    """The demo target with a DSpark drafter of a vocabulary of its own, as a checkpoint has it."""
    target = demo()
    spec, plain = target.target_config, target.draft_config
    heads = Heads(markov=Markov(32), draft_vocab=4000, own_head=True, anchor_first=True)
    config = replace(plain, flavour="z-lab", block_size=7, vocab_size=spec.vocab_size, heads=heads)
    shapes = config.tensors()
    types = {name: "I64" if name == "d2t" else "BF16" if len(shape) > 1 else "F32" for name, shape in shapes.items()}
    return replace(target, draft=header("small-dspark", shapes, types), draft_config=config)


def small_laguna() -> Pair:
    """The demo target with a drafter that has gates and norms as poolside's do."""
    target = demo()
    config = replace(target.draft_config, flavour="z-lab", heads=Heads(gated=True, taps_normed=True))
    shapes = config.tensors()
    types = {name: "BF16" if len(shape) > 1 else "F32" for name, shape in shapes.items()}
    return replace(target, draft=header("small-laguna", shapes, types), draft_config=config)


def demo_dflash2() -> Pair:
    """The demo target with its DFlash 2 drafter."""
    config, file = open_drafter(demo_dflash2_path())
    return replace(demo(), draft=file, draft_config=config)


def demo_mtp() -> Pair:
    """The demo target with its MTP head."""
    target = demo()
    config, file = find_head(demo_mtp_path(), target.target, target.target_config)
    return replace(target, draft=file, draft_config=config)


def experts() -> Pair:
    """The synthetic 35B-A3B pair in the same way."""
    spec = SIZE_35B_A3B.target()
    spec = replace(spec, layers=spec.layers[:4])
    config = replace(SIZE_35B_A3B.draft, block_count=2, sliding=(True, False), causal=(False,) * 2)
    draft = replace(config, target_layers=tuple(range(4)))
    files = (
        header("35b", spec.tensors(), target_types(spec, SIZE_35B_A3B)),
        header("35b-draft", draft.tensors(), draft_types(draft)),
    )
    return Pair(files[0], spec, files[1], draft)


def tiny_experts() -> Pair:
    """The golden pair with experts, in the types of its file."""
    target = open_gguf(golden("targets/q35moe-F16.gguf"))
    draft_config, draft = open_drafter(golden("targets/q35moe-dflash"))
    return Pair(target, target_config(target), draft, draft_config)


def attention_only() -> Pair:
    """The golden pair without recurrent layers."""
    target = open_gguf(golden("targets/q3-F16.gguf"))
    draft_config, draft = open_drafter(golden("targets/q3-dflash"))
    return Pair(target, target_config(target), draft, draft_config)


def side_by_side() -> Pair:
    """The synthetic Gemma 4 26B-A4B in the same way, with its assistant: experts beside a dense feed-forward, heads of
    256 and 512. As in a 12B's file, a token is never drawn."""
    model = cut(GEMMA_26B, 6)
    spec, config = replace(model.target(), suppressed=(3,)), model.drafter()
    files = (
        header("26b-a4b", spec.tensors(), target_types(spec, model)),
        header("26b-assistant", config.tensors(), draft_types(config)),
    )
    return Pair(files[0], spec, files[1], config)


def cells() -> Pair:
    """The golden Gemma 4 with per-layer inputs, and its assistant, which gives logits to the tokens of some cells."""
    target, draft = open_gguf(golden("targets/gemma4-e-F16.gguf")), golden("targets/gemma4-e-assistant-F16.gguf")
    spec = target_config(target)
    opened = open_assistant(draft, TargetHeader(target, spec))
    return Pair(target, spec, opened.file, opened.config)


def alone(name: str) -> Pair:
    """A golden target without a drafter."""
    target = open_gguf(golden(f"targets/{name}"))
    return Pair(target, target_config(target))


def demo() -> Pair:
    """The pair that comes with the program."""
    target = open_gguf(demo_target_path())
    draft_config, draft = open_drafter(demo_draft_path())
    return Pair(target, target_config(target), draft, draft_config)


def tiny() -> Pair:
    """The golden pair of the tests."""
    target = open_gguf(golden("tiny-Q4_K_M.gguf"))
    draft_config, draft = open_drafter(golden("tiny-dflash"))
    return Pair(target, target_config(target), draft, draft_config)


def recent(pair: Pair) -> Pair:
    """The target alone, with a recent window."""
    return Pair(pair.target, pair.target_config, kv=CachePair.parse("q4_0+1024"))


class PlanningDevice(MetaDevice):
    """A device on which sessions can be built, but not run."""

    def pinned(self, shape: Any, dtype: Any) -> Any:
        return SimpleNamespace(array=np.empty(shape, dtype), address=0)


@functools.cache
def variants(arch: str, *, quick: bool = False) -> tuple[Variant, ...]:
    """All programs for one architecture; `quick`: only those of one width of the demo pair, which use every kernel."""
    widths = QUICK_WIDTHS if quick else WIDTHS
    found = [Variant.of(file) for file in BESIDE]
    families = [side_by_side(), cells(), *(alone(f"{name}.gguf") for name in ("gptoss-MXFP4", "laguna-Q8_0"))]
    quick_pairs = [*families, demo(), demo_mtp(), demo_dflash2(), small_dspark(), small_laguna(), tiny_experts()]
    quick_pairs.append(recent(demo()))
    large_pairs = [large(), large_mtp(), large_dflash2(), large_dspark(), experts(), recent(large())]
    for pair in quick_pairs if quick else [*large_pairs, *quick_pairs]:
        for launch in _launches(pair, arch, widths):
            here = launch.clustered if launch.clustered and arch in CLUSTERS else launch
            found.append(Variant.of(here.file, here.defines))
    found += [Variant.of("dequant.cu", {f"WITH_{name}": 1}) for name in PREFILL_TYPES[-2 if quick else 0 :]]
    return tuple(dict.fromkeys(found))


def _launches(pair: Pair, arch: str, widths: Sequence[int]) -> Iterator[Launch]:
    device = PlanningDevice(CARDS[arch])
    target = DeviceTarget(device, Upload(pair.target), pair.target_config)
    draft = None
    if pair.draft_config is not None:
        draft = on_device(pair.draft_config, Upload(pair.draft), target, DEFAULT)
    try:
        session = CudaSession(target, draft, context=2048, kv=pair.kv)
    except UnsupportedError:
        if arch != OLDEST:  # whose shared memory is too small for heads of 512
            raise
        return
    drafted = draft is not None
    for width in widths:
        try:
            for sampled, windowed in ((False, False), (True, False), (False, True)):
                kind = StepKind((width,), drafts=drafted and width > 1, sampled=sampled, windowed=windowed)
                yield from session.steps.launches(kind)
                if kind.sampled:
                    yield from itertools.chain(*session.steps.constrained_launches(kind))
                    yield from session.steps.launches(replace(kind, top=0))
                if kind.drafts and session.memory.text is not None:
                    yield from session.steps.launches(replace(kind, text=True))
            if width in QUICK_WIDTHS:  # the second is a later pass, another program in the delta net alone
                yield from session.steps.launches(StepKind((width, width), drafts=drafted and width > 1, sampled=False))
        except UnsupportedError:
            if arch != OLDEST:  # whose shared memory is too small for the widest passes
                raise
    if session.memory.text is not None:
        yield session.memory.text.launch(0)
    if session.chunk_pass is not None:
        yield from session.chunk_pass.launches()
    if len(widths) > 1 and session.drafter is not None:
        for width in CHUNK_WIDTHS:
            yield from session.drafter.update_launches(width)
    yield from session._flush_launches()
