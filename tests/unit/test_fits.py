"""A plan before anything is loaded: its figures are the machine's own predictions, and its remedies fit."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cuda.bindings")
from dflash_core import Engine, loading, memory
from dflash_core.backends.cpu.machine import CpuMachine
from dflash_core.backends.cuda.machine import CudaMachine
from dflash_core.backends.cuda.memory_estimator import SPARE, CardMemoryEstimator, Footprint
from dflash_core.backends.cuda.meta import KNOWN, card_of, context_bytes
from dflash_core.demo import demo_draft_path, demo_mtp_path, demo_target_path
from dflash_core.drafters.draft import Draft
from dflash_core.drafters.registry import open_draft
from dflash_core.errors import KnobError, MismatchError, OutOfMemoryError
from dflash_core.fits import (
    CONTEXT_STEP,
    SMALLEST_CONTEXT,
    CardOptions,
    MemoryPlan,
    Setup,
    longest,
    longest_context,
    memory_after_load,
    min_bytes,
    plan,
    sequence_bytes,
    total,
)
from dflash_core.fits import requested_setup as fitting
from dflash_core.formats import gguf as gguf_file
from dflash_core.loading import load_target
from dflash_core.memory import parse_bytes
from dflash_tui.application import fits as words
from dflash_tui.cli.command_line import main
from dflash_tui.cli.plan import lines as page
from support.golden import draft, golden, target
from support.grids import full
from support.made_up_card import MadeUpCard
from support.plans import plan_pair
from support.reckoned import estimator, fresh_estimator

TARGET, DRAFT = golden("tiny-F16.gguf"), golden("tiny-dflash")
GIB, MIB = 1 << 30, 1 << 20


def asked(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, Any]:
    assert main(["plan", "--target", str(TARGET), "--draft", str(DRAFT), *argv, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.parametrize("memory", ["800MiB", "24GiB", "140GiB"])
def test_the_plan_of_a_card_adds_up(memory: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = asked(capsys, "--memory", memory, "--context", "3000")
    assert found["total"] == sum(one["bytes"] for one in found["components"])
    assert found["available"] == parse_bytes(memory)
    assert found["fits"] == (found["total"] <= found["available"])
    assert {"target", "drafter", "target KV", "drafter KV", "scratch", "CUDA context"} <= {
        one["name"] for one in found["components"]
    }
    assert found["context_that_fits"]["f16"] == 4096, "the model's own"
    assert "like NVIDIA" in found["card"]


def test_the_sizes_of_a_plan_are_one_column(capsys: pytest.CaptureFixture[str]) -> None:
    for context in ("300", "4096"):  # totals of different widths
        assert main(["plan", "--target", str(TARGET), "--memory", "24GiB", "--context", context]) == 0
        sizes = [re.match(r"  \S.*? {2,}[\d.]+ [KMG]iB", line) for line in capsys.readouterr().out.splitlines()]
        assert len({found.end() for found in sizes if found}) == 1


def test_a_plan_predicts_what_a_load_predicts() -> None:
    """The components of `check_memory`, the driver's share beside them."""
    made = plan_pair(TARGET, DRAFT, memory=24 * GIB, context=2048)
    opened = loading._on_card(TARGET, CardOptions(), card_of(24 * GIB).device())
    opened.footprint.add_draft(*(lambda one: (one.file, one.config))(open_draft(DRAFT, opened)))  # type: ignore[attr-defined]
    expected = {"target": opened.footprint.target_bytes, "drafter": opened.footprint.draft_bytes}  # type: ignore[attr-defined]
    expected |= {one.name: one.bytes for one in opened.footprint.sequence(Setup(2048), drafted=True)}  # type: ignore[attr-defined]
    *parts, context = made.components
    assert {one.name: one.bytes for one in parts} == expected
    assert context.bytes == context_bytes(card_of(24 * GIB).layout.multiprocessors)


def test_the_weights_of_all_drafters_count() -> None:
    """In any order, opened or loaded, and those without weights beside them."""
    paths = [str(demo_draft_path()), str(demo_mtp_path()), "text"]
    opened = load_target(demo_target_path())

    def needed(draft: Draft) -> int:
        parts = opened.estimator(draft).components(Setup(512, "f32"))
        return sum(one.bytes for one in parts if one.name == "drafter")

    each = [needed(open_draft(path, opened)) for path in paths]
    assert [size > 0 for size in each] == [True, True, False]
    for order in (paths, paths[::-1]):
        several = open_draft("+".join(order), opened)
        assert needed(several) == needed(several.load()) == sum(each)


@pytest.mark.parametrize("packed", [False, True])
def test_a_loaded_target_counts_as_it_is_held(packed: bool) -> None:
    """Whatever a load would choose now."""
    loaded = load_target(golden("tiny-Q4_K_M.gguf"), packed=packed)
    parts = {one.name: one.bytes for one in loaded.estimator(None).components(Setup(512, "f32"))}
    assert parts["target"] == loaded.weight_bytes


def test_the_longest_context_is_the_longest() -> None:
    found = estimator(24 * GIB)
    setup = Setup(131_072)
    most = longest_context(found, setup)
    assert min_bytes(found, replace(setup, context=most)) <= 24 * GIB
    assert min_bytes(found, replace(setup, context=most + CONTEXT_STEP)) > 24 * GIB
    assert [longest(1000, lambda n, most=m: n <= most) for m in (0, 511, 512, 999, 1000)] == [0, 0, 512, 512, 1000]


def test_the_token_embedding_is_a_remedy() -> None:
    """It is offered where its bytes are what is missing; after such a load the plan is smaller by them."""
    roomy = plan(estimator(24 * GIB), Setup(8192))
    short = estimator(min_bytes(estimator(24 * GIB), roomy.setup) - 100 * MIB)
    made = plan(short, Setup(8192))
    walk(made, short)
    (remedy,) = (one for one in made.remedies if words.options(one, made.setup) == "--embedding host")
    assert 680 * MIB < made.total - total(short, replace(made.setup, embedding="host")) < 684 * MIB
    assert "token embedding in main memory, 682.0 MiB" in short.components(remedy.setup)[0].detail
    asked_so = plan_pair(TARGET, DRAFT, memory=24 * GIB, context=2048, card=CardOptions(embedding="host"))
    other = plan_pair(TARGET, DRAFT, memory=24 * GIB, context=2048)
    assert asked_so.setup.embedding == "host"
    assert asked_so.total < other.total


def walk(made: MemoryPlan, found: CardMemoryEstimator) -> None:
    """Every remedy says what it takes, as a plan with it says, and fits."""
    for one in made.remedies:
        assert plan(found, replace(one.setup, rows=0, nodes=0), made.available).total == one.total
        assert one.total == total(found, one.setup) <= made.available
        assert one.saves == made.total - one.total > 0
        assert words.remedy_words(one, made.setup)
        assert words.options(one, made.setup)


# Each memory at one context; with `full` at all.
@pytest.mark.parametrize(
    ("memory", "context"),
    [
        pytest.param(memory, context, marks=() if (at + number) % 3 == 0 else pytest.mark.full)
        for at, memory in enumerate((16, 20, 24, 32))
        for number, context in enumerate((32_768, 131_072, 262_144))
    ],
)
def test_remedies_fit(memory: int, context: int) -> None:
    found = estimator(memory * GIB)
    made = plan(found, Setup(context))
    assert made.fits == (made.total <= memory * GIB)
    assert bool(made.remedies) == (not made.fits and memory > 16)
    assert len(made.remedies) <= 3
    walk(made, found)


def test_smaller_chunks_of_prompts_make_it_fit() -> None:
    """As large as fits, down to the smallest; a line says so where they are smaller than usual."""
    wide = estimator(24 * GIB)
    ways = {rows: total(wide, Setup(32_768, rows=rows)) for rows in wide.chunk_rows}
    assert list(ways) == [2048, 1024, 512, 256]
    assert len(set(ways.values())) > 1
    for size in ways.values():
        made = plan(estimator(size), Setup(32_768))
        most = max(other for other, taken in ways.items() if taken <= size)  # fewer rows need not take less
        assert (made.setup.rows, made.total, made.fits, made.remedies) == (most, size, True, ())
        said = [line for line in page(made) if "prompts are read" in line]
        assert len(said) == (most < 2048)
        assert all(f"{most:,} tokens at once, not 2,048" in line for line in said)
        assert made.context_that_fits["f16"] >= 32_768
        assert fitting(estimator(size), 32_768, "f16").rows == most
    short = plan(estimator(min(ways.values()) - 1), Setup(32_768))
    assert (short.fits, short.setup.rows) == (False, 256)
    assert not any("prompts are read" in line for line in page(short))


def test_trees_end_where_memory_ends() -> None:
    """The 27B pair with 131,072 positions on 24 GiB, and on less: the context stays, and prompts are read as fast."""
    found = estimator(24 * GIB, draft="Q8_0")
    setup = fitting(found, 131_072, "auto")
    assert (setup.context, setup.kv, setup.rows, setup.nodes) == (131_072, "q8_0", 2048, 128)
    assert total(found, setup) <= 24 * GIB - SPARE
    for nodes, smaller in itertools.pairwise(found.tree_nodes):
        room = total(found, replace(setup, nodes=nodes)) + SPARE * (nodes > 64)
        ways = fitting(found, 131_072, "q8_0", room), fitting(found, 131_072, "q8_0", room - 1)
        assert ways == (replace(setup, nodes=nodes), replace(setup, nodes=smaller))
    made = plan(found, setup)
    assert "trees end at a budget of 127 here: there is no memory left for larger ones" in "".join(page(made))
    roomy = estimator(80 * GIB, draft="Q8_0")
    assert fitting(roomy, 131_072, "auto").nodes == 256
    assert "trees end" not in "".join(page(plan(roomy, setup)))


def test_what_a_load_leaves_free_a_plan_leaves_too() -> None:
    """A type that is chosen automatically leaves memory to spare if possible; a requested one may take all."""
    wide = estimator(24 * GIB)
    f16, q4 = (min_bytes(wide, Setup(40_960, kv)) for kv in ("f16", "q4_0"))
    for room, kv in ((f16 + SPARE, "f16"), (f16 + SPARE - 1, "q8_0"), (q4, "q4_0"), (q4 - 1, "f16")):
        made = estimator(room)
        made.auto = ("f16", "q8_0", "q4_0")
        assert fitting(made, 40_960, "auto").kv == kv
    assert fitting(estimator(f16), 40_960, "f16").kv == "f16"


@pytest.mark.parametrize(
    ("context", "kv"), [(None, "f16"), full(None, "q8_0"), (None, "auto"), (32_768, "auto"), (32_768, "f16")]
)
def test_a_plan_is_what_a_load_takes(context: int | None, kv: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Context, type, rows of prompts at once, and trees: on cards on which a byte decides."""
    made = estimator(24 * GIB)
    monkeypatch.setattr(CudaMachine, "other_processes", lambda self: 0)
    weights = total(made, made.base) - sequence_bytes(made, made.base)
    sizes = {
        total(made, Setup(positions, kind, nodes=nodes))
        for positions in ((context,) if context else (8192, 32_768))
        for kind in made.auto
        for nodes in made.tree_nodes
    }
    found = set()
    # Every other size to the byte, the others with a byte less.
    for room in (size + spare - at % 2 for at, size in enumerate(sorted(sizes)) for spare in (0, SPARE)):
        made.available, free = room, room - weights
        machine = CudaMachine(MadeUpCard(free, free + 40 * GIB), made._of(made.base))  # type: ignore[arg-type]
        planned = fitting(made, context, kv)
        assert planned == fitting(made, context, kv, memory_after_load(made, machine.available())), room - 24 * GIB
        found.add(planned)
    assert len(found) > 1


@pytest.mark.parametrize(("context", "kv"), [(None, "auto"), (None, "f16"), (3000, "auto"), (3000, "q8_0")])
def test_a_plan_for_the_processor_is_what_a_load_takes(
    context: int | None, kv: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It leaves half of what the weights leave free, as a load does; a byte more or less decides."""
    made = loading.estimator_of(TARGET, DRAFT, "cpu", memory=2 * GIB)
    weights = total(made, made.base) - sequence_bytes(made, made.base)
    sizes = {sequence_bytes(made, Setup(context or 2048, kind)) for kind in made.auto}
    pair, found = (target(), draft()), set()  # loaded before memory seems short
    for free in (share * size - missing for size in sizes for share in (1, 2) for missing in (0, 1)):
        planned = fitting(made, context, kv, available=weights + free)
        monkeypatch.setattr(memory, "host_memory", lambda free=free: memory.HostMemory(8 * GIB, free, 1 << 20))
        try:
            engine = Engine(*pair, context_length=context, kv=kv)
        except OutOfMemoryError:
            assert sequence_bytes(made, planned) > free
        else:
            assert (engine.context_length, str(engine.kv.pair)) == (planned.context, planned.kv)
            assert sequence_bytes(made, planned) <= free // 2 or context or planned.context == SMALLEST_CONTEXT
            found.add(planned)
    assert (len(found) > 1) == (kv != "q8_0")


def test_remedies_change_no_more_than_they_must() -> None:
    """A small excess gets a small remedy; a remedy that is sufficient alone is not offered combined with another."""
    found = estimator(24 * GIB)
    most = longest_context(found, Setup(32_768))
    made = plan(found, Setup(most + CONTEXT_STEP))
    walk(made, found)
    first = made.remedies[0].setup
    assert first.context == most
    changed = [
        {name for name in Setup.__dataclass_fields__ if getattr(one.setup, name) != getattr(made.setup, name)}
        for one in made.remedies
    ]
    assert len(changed) == 3
    assert not any(a < b for a in changed for b in changed if a <= b and a is not b)


def test_nothing_helps_where_the_weights_are_too_large(capsys: pytest.CaptureFixture[str]) -> None:
    made = plan(estimator(8 * GIB), Setup(512))
    assert not made.fits
    assert not made.remedies
    assert set(made.context_that_fits.values()) == {0}
    assert "take a smaller model" in "\n".join(page(made))


@pytest.mark.parametrize("memory", [1, 100 << 10, 50 << 20, 24 * GIB])
def test_no_card_has_more_than_it_has(memory: int) -> None:
    """Not even a card that is smaller than what its driver takes."""
    made = plan_pair(TARGET, None, memory=memory)
    assert made.available == memory
    assert made.fits == (memory == 24 * GIB)


def test_a_packed_drafter_is_what_a_load_makes_of_it() -> None:
    found = estimator(24 * GIB)
    plain, packed = (
        {one.name: one.bytes for one in found.components(Setup(8192, draft_type=kind))} for kind in ("", "q8_0")
    )
    assert plain["drafter"] / packed["drafter"] == pytest.approx(2 / (34 / 32), rel=0.02)
    q8 = {one.name: one.bytes for one in estimator(24 * GIB, "Q8_0").components(Setup(8192))}
    assert packed == q8
    for kind, tighter in (("BF16", {"", "q8_0", "q4_0"}), ("Q8_0", {"", "q4_0"}), ("Q4_K", {""})):
        assert {way.draft_type for way in estimator(24 * GIB, kind).choices(Setup(8192)) if way.drafted} == tighter
    q4 = {one.name: one.bytes for one in found.components(Setup(8192, draft_type="q4_0"))}
    assert q4["drafter"] / packed["drafter"] == pytest.approx(18 / 34, rel=0.02)


def test_known_cards_stand_by_size() -> None:
    assert [card.free for card in KNOWN] == sorted(card.free for card in KNOWN)
    assert card_of(24 * GIB).layout.multiprocessors == 128
    assert card_of(24 * GIB + 1).layout.multiprocessors == 170
    assert card_of(500 * GIB).layout.multiprocessors == KNOWN[-1].layout.multiprocessors
    assert card_of(500 * GIB).free == 500 * GIB


@pytest.mark.parametrize(
    ("text", "size"),
    [("24GiB", 24 * GIB), ("24g", 24 * GIB), ("1.5 GB", 3 * GIB // 2), ("800M", 800 * MIB), ("4096", 4096)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["0", "0GiB", "-1", "", "GiB", "nan", "1e99", "24 bananas", "9" * 400, "٣GiB", "0.1"])
def test_sizes_that_are_none(text: str) -> None:
    with pytest.raises(KnobError, match="expected an amount of memory above 0, such as 24GiB"):
        parse_bytes(text)


@pytest.mark.parametrize("text", ["24", "8 B", "1.5"])
def test_a_size_without_its_unit(text: str) -> None:
    with pytest.raises(KnobError, match=r"bytes of memory, expected a unit, such as [\d.]+GiB or [\d.]+MiB"):
        parse_bytes(text)


@pytest.mark.parametrize("option", ["--memory", "--vram-limit"])
def test_no_memory_at_all_is_one_line(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["plan", option, "0"])
    assert ended.value.code == 2
    assert "found '0', expected an amount of memory above 0" in capsys.readouterr().err.splitlines()[-1]


def test_a_context_that_no_load_takes_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--target", str(TARGET), "--memory", "24GiB", "--context", "1"]) == 1
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "dflash-tui: a context of 1 positions, expected at least 2\n")


def test_files_that_do_not_fit_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--demo", "--memory", "24GiB"]) == 0
    capsys.readouterr()
    from dflash_core.demo import demo_draft_path

    with pytest.raises(MismatchError):
        plan_pair(TARGET, demo_draft_path(), memory=24 * GIB)
    assert main(["plan", "--target", str(TARGET), "--draft", str(demo_draft_path()), "--memory", "24GiB"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.splitlines()) == 1


def test_a_plan_for_the_processor(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    # The plan counts the process itself, which other tests have made as large as they are.
    monkeypatch.setattr(memory, "host_memory", lambda: memory.HostMemory(8 * GIB, 6 * GIB, GIB // 4))
    found = asked(capsys, "--device", "cpu", "--memory", "2GiB")
    assert found["total"] == sum(one["bytes"] for one in found["components"])
    assert (found["available"], found["fits"]) == (2 * GIB, True)
    assert "on the CPU" in found["card"]


def test_the_context_is_the_models_own_at_most(capsys: pytest.CaptureFixture[str]) -> None:
    assert asked(capsys, "--memory", "24GiB", "--context", "1000000")["context"] == 4096
    assert main(["plan", "--target", str(TARGET), "--memory", "24GiB", "--context", "1000000"]) == 0
    assert capsys.readouterr().out.startswith("1,000,000 positions were requested, the model has 4,096\n")


def test_a_plan_reads_lists_of_words_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """They take most of the time of opening a file. A drafter's list, too, is read only once."""
    read, whole = Counter[str](), gguf_file._Cursor.strings

    def counted(self: Any, count: int) -> list[str]:
        read[f"{self.name} {self.inside}"] += 1
        return whole(self, count)

    monkeypatch.setattr(gguf_file._Cursor, "strings", counted)
    plan_pair(demo_target_path(), demo_draft_path(), memory=24 * GIB)
    assert any("tokenizer.ggml.tokens" in name for name in read)
    assert set(read.values()) == {1}


def test_a_plan_asks_for_few_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The longest context of eight types: bytes grow almost linearly, so the search starts on that line."""
    asked, whole = Counter[int](), Footprint.sequence

    def counted(self: Footprint, context: int, **options: Any) -> Any:
        asked[context] += 1
        return whole(self, context, **options)

    monkeypatch.setattr(Footprint, "sequence", counted)
    found = fresh_estimator(24 * GIB)
    made = plan(found, Setup(32_768))
    assert len(made.context_that_fits) == 8
    assert asked.total() <= 55
    for kv, context in made.context_that_fits.items():
        assert context == longest(
            found.longest_context,
            lambda n, kv=kv: min_bytes(found, Setup(n, kv)) <= 24 * GIB,  # type: ignore[misc]
        )


@pytest.mark.parametrize("most", [1, 511, 512, 513, 5000])
def test_a_guess_changes_nothing(most: int) -> None:
    for border in range(0, most + 600, 97):
        expected = longest(most, lambda n, border=border: n <= border)  # type: ignore[misc]
        for guess in (-700, 0, 300, 512, 1024, 4096, 4999, 9000):
            assert longest(most, lambda n, border=border: n <= border, guess) == expected  # type: ignore[misc]


def test_a_plan_reads_no_weight_and_no_compiler(tmp_path: Path) -> None:
    """Nothing slow is imported without need: torch's compiler, which takes a second, and what only answers need."""
    program = (
        "import sys; from dflash_tui.cli.command_line import main; code = main(sys.argv[1:]);"
        "heavy = 'torch._dynamo', 'sympy', 'jinja2', 'tokenizers', 'textual', 'dflash_core.engine', 'dflash_core.lab';"
        "sys.exit(code or ' '.join(name for name in heavy if name in sys.modules) or 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "plan", "--target", str(TARGET), "--draft", str(DRAFT), "--memory", "24GiB"],
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert "computed for 24.0 GiB of a card like NVIDIA GeForce RTX 4090" in done.stdout


def test_what_is_not_known_of_the_process_is_no_line_of_a_plan() -> None:
    assert CpuMachine().process == ()
    assert [part.name for part in CpuMachine(1, 2).process] == ["program", "tokenizer"]
