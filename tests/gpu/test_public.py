"""The public interface on a card, emulated: what is loaded, what it answers, what it holds, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from tools.bench.step_bench import StepBench

from dflash_core import Knobs, load_draft, load_target
from dflash_core.backends.cuda import target as cuda_target
from dflash_core.backends.cuda.library import WORKSPACE_BYTES
from dflash_core.backends.cuda.memory_estimator import Footprint
from dflash_core.backends.cuda.meta import context_bytes, reserved
from dflash_core.backends.cuda.plan import Card
from dflash_core.backends.cuda.session import CudaSession
from dflash_core.drafters.registry import open_draft
from dflash_core.engine import Engine, load_pair
from dflash_core.errors import KnobError, OutOfMemoryError, UnsupportedError
from dflash_core.fits import CardOptions, Setup, plan, total
from dflash_core.lab.grid import parse_axes, settings
from dflash_core.loading import open_target
from dflash_tui.application.engine_session import laboratory, load_session
from dflash_tui.application.session import LoadRequest
from dflash_tui.cli import main
from support import engines
from support.behind import draft_logits
from support.device_pairs import TOLERANCE, close
from support.emulated_device import EmulatedCard
from support.golden import golden

TARGET, DRAFT = golden("tiny-F16.gguf"), golden("tiny-dflash")
HALF = CardOptions(activations="f16")
CONTEXT = 300
SMALL = 64 << 10  # tables of addresses
SEGMENT = 20 << 20  # in another order pieces of some MiB may take one more or less

pytestmark = [
    pytest.mark.emulator,
    pytest.mark.skipif(engines.missing("emulated") is not None, reason=engines.missing("emulated") or ""),
]


@pytest.fixture(autouse=True)
def card(monkeypatch: pytest.MonkeyPatch) -> EmulatedCard:
    """Make the emulator the first card."""
    made = EmulatedCard()
    monkeypatch.setattr(cuda_target, "open_device", lambda index: made)
    return made


@pytest.fixture(scope="module")
def engine() -> Engine:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda_target, "open_device", lambda index: EmulatedCard())
        return load_pair(TARGET, DRAFT, "cuda", context_length=CONTEXT, card=HALF)


def test_logits_and_hidden_states_and_drafts(engine: Engine) -> None:
    assert engine.draft is not None
    reference = load_target(TARGET)
    draft, ids = load_draft(DRAFT, reference), list(range(3, 23))
    close(engine.target.logits(ids), reference.logits(ids))
    ours, theirs = (target.hidden(ids, [0, 2]) for target in (engine.target, reference))
    close(ours, theirs)
    close(draft_logits(engine.draft, ours, 5), draft_logits(draft, theirs, 5))
    close(engine.target.logits([7]), reference.logits([7]))
    longer = list(range(3, 3 + 290))  # more than one pass of 256 rows
    close(engine.target.logits(longer), reference.logits(longer), 2 * TOLERANCE)


def device_bytes(root: object) -> dict[int, int]:
    """Every piece of memory that is reached from an object of ours, by address."""
    found: dict[int, int] = {}
    seen, todo = set[int](), [root]
    while todo:
        one = todo.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, torch.Tensor):
            found[one.untyped_storage().data_ptr()] = one.untyped_storage().nbytes()
        elif isinstance(one, dict):
            todo += one.values()
        elif isinstance(one, list | tuple):
            todo += one
        elif type(one).__module__.startswith("dflash_core"):
            todo += vars(one).values() if hasattr(one, "__dict__") else ()
            todo += [getattr(one, name) for name in getattr(type(one), "__slots__", ())]
    return found


@pytest.mark.parametrize("drafted", [True, False])
def test_the_breakdown_counts_what_a_session_holds(engine: Engine, drafted: bool) -> None:
    """With the drafter and without."""
    alone = Engine(engine.target, engine.draft if drafted else None, context_length=CONTEXT)
    session = alone.session
    assert isinstance(session, CudaSession)
    weights = device_bytes([session.target, session.draft_weights])
    components = {one.name: one for one in alone.memory().components}
    sequence = ("target KV", "states", "scratch", *(("drafter KV",) if drafted else ()))
    predicted = sum(components[name].bytes for name in sequence)
    held = [size for address, size in device_bytes(session).items() if address not in weights]
    missed = predicted - reserved([*sorted(held, reverse=True), WORKSPACE_BYTES])
    assert abs(missed) <= SEGMENT
    assert ("drafter KV" in components) == drafted
    assert f"a tree of {session.memory.capacity} nodes" in components["scratch"].detail


def test_smaller_chunks_of_prompts_rather_than_no_load(card: EmulatedCard) -> None:
    """A load reads as many rows at once as the plan says, reports a smaller number in one line, and refuses what does
    not fit even with the smallest."""
    context = 4096
    opened = open_target(TARGET, "cuda", card=HALF)
    draft = open_draft(DRAFT, opened)
    found, setup = opened.estimator(draft), Setup(context)
    ways = {rows: total(found, replace(setup, rows=rows)) for rows in found.chunk_rows}
    assert list(ways) == [2048, 1024, 512, 256]
    # The allocator rounds, so fewer rows may take more: such are never taken.
    taken = [rows for rows, needed in ways.items() if all(needed < ways[more] for more in ways if more > rows)]
    assert taken[0] == 2048
    assert len(taken) > 1
    held = 0

    def put(free: int) -> None:
        """Simulate a card with `free` bytes for all of it; the driver has taken its share by now."""
        card.runtime.memory = lambda: (free - held - context_bytes(opened.machine.processors), 80 << 30)

    put(ways[taken[-1]] - 1)
    with pytest.raises(OutOfMemoryError, match="a context of"):
        opened.check_memory(draft, context, "f16")
    for rows in taken:
        put(ways[rows])
        opened.check_memory(draft, context, "f16")
        made = plan(opened.estimator(draft), setup)
        assert (made.setup.rows, made.fits) == (rows, True)
    opened.load(dtype=torch.float32, progress=lambda *_: None)
    drafter = draft.load()
    weights = [one.bytes for one in found.components(setup) if one.name in ("target", "drafter")]
    held = sum(weights)
    for rows in (taken[-1], 2048):
        put(ways[rows])
        engine = Engine(opened, drafter, context_length=context, kv="f16")
        assert isinstance(engine.session, CudaSession)
        assert engine.session.memory.chunk is not None
        assert engine.session.memory.chunk.rows == rows
        said = [note for note in engine.notes if "prompts are read" in note]
        less = f"prompts are read {rows:,} tokens at once, not 2,048: "
        assert len(said) == (rows != 2048)
        assert all(note.startswith(less) and note.endswith("iB more are needed for that") for note in said)
        predicted = {one.name: one.bytes for one in engine.memory().components}
        of_the_plan = {one.name: one.bytes for one in found.components(replace(setup, rows=rows, nodes=24))}
        assert {name: predicted[name] for name in of_the_plan if name != "CUDA context"} == {
            name: size for name, size in of_the_plan.items() if name != "CUDA context"
        }


def test_the_weights_are_those_of_the_breakdown(engine: Engine) -> None:
    session = engine.session
    assert isinstance(session, CudaSession)
    components = {one.name: one.bytes for one in engine.memory().components}
    for name, model in (("target", session.target), ("drafter", session.draft_weights)):
        assert abs(sum(device_bytes(model).values()) - components[name]) < SMALL


def test_a_cache_that_cannot_be_kept_is_said(card: EmulatedCard, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every start is slow then, so the reason must be shown."""
    monkeypatch.setattr(CudaSession, "prepare", lambda self, progress, knobs: None)
    assert not any("kept" in note for note in load_pair(TARGET, DRAFT, "cuda", context_length=CONTEXT).notes)
    card.programs.cache.note = "compiled kernels cannot be saved in /nowhere (read-only); every start compiles them"
    assert card.programs.cache.note in load_pair(TARGET, DRAFT, "cuda", context_length=CONTEXT).notes


# ---- Refusals -------------------------------------------------------------------------------------------------------

TOO_WIDE = "tree_width=9: the card keeps 8 candidates per draft position; expected 1 to 8"


def nothing_is_read(*_: Any, **__: Any) -> None:
    raise AssertionError("weights were read")


def test_parameters_that_a_card_cannot_follow_are_refused_before_it_loads(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cuda_target, "DeviceUpload", nothing_is_read)
    with pytest.raises(KnobError, match=f"^{TOO_WIDE}$"):
        load_pair(TARGET, DRAFT, "cuda", knobs=Knobs(tree_width=9))
    files = ["--target", str(TARGET), "--draft", str(DRAFT), "--device", "cuda", "--set", "tree_width=9"]
    for command in (["ask", "hi"], ["bench"], ["sweep", "budget=4,8", "--prompt", "hi"]):
        assert main([*files, *command]) == 1
        assert capsys.readouterr().err.splitlines()[-1] == f"dflash-tui: {TOO_WIDE}"


def test_the_app_says_what_the_card_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CudaSession, "prepare", lambda self, progress, knobs: None)
    request = LoadRequest(TARGET, DRAFT, "cuda", Knobs(tree_width=20), context=CONTEXT)
    session = load_session(request, lambda phase, done: None)
    assert "tree_width is 8 here, not 20: the limit of this card per draft position" in session.notes
    assert session.limits.tree_width == 8
    with pytest.raises(KnobError, match=f"^{TOO_WIDE}$"):
        session.limits.check(Knobs(tree_width=9), {"tree_width"})
    session.limits.check(Knobs(tree_width=9), {"budget"})
    lab = laboratory(session._engine, "")
    with pytest.raises(KnobError, match=f"^{TOO_WIDE}$"):
        settings(parse_axes(["tree_width=4,9"]), Knobs(drafting="tree 22"), lab.limits)


def test_step_times_need_room(engine: Engine) -> None:
    """The deepest case would otherwise write far past the memory for keys and values."""
    with pytest.raises(UnsupportedError, match=r"up to 32,768, .* a context of 300, expected 33,280; take another"):
        StepBench(engine)


def test_a_drafter_with_longer_blocks_than_one_pass(engine: Engine) -> None:
    assert engine.draft is not None
    footprint = Footprint(engine.target.file, engine.target.config, EmulatedCard().card)
    config = replace(engine.draft.config, block_size=65)
    with pytest.raises(
        UnsupportedError, match=r"^a drafter whose block has 65 positions, expected at most 64 on a card"
    ):
        footprint.add_draft(engine.draft.file, config)


def test_a_card_with_too_little_shared_memory_is_told_by_the_header(card: EmulatedCard) -> None:
    """As with Turing's 64 KB: a prompt's passes of 64 rows do not fit, so nothing is loaded."""
    card.card = Card(68, 64 << 10)
    with pytest.raises(UnsupportedError, match=r"^passes of 64 rows need .* found 65,536; run it on the CPU$"):
        load_target(TARGET, device="cuda")
