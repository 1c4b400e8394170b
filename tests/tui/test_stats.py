"""The stats panel: every figure it shows, against turns whose figures are known."""

from __future__ import annotations

import dataclasses
import re
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest
from rich.cells import cell_len
from textual.geometry import Size

from dflash_core.events import Piece, PrefillEvent, StepDrafts
from dflash_core.knobs import Knobs
from dflash_core.lab import experiment as lab_experiment
from dflash_core.lab.results import PlainSpeed, plain_of_turn
from dflash_core.record import TurnRecord
from dflash_core.turn_stats import FoundRow, TurnTotals
from dflash_tui.app import DFlashApp
from dflash_tui.application.amounts import rates
from dflash_tui.application.engine_session import load_session
from dflash_tui.application.figures.measurements import ENOUGH_STEPS, Measurements, PlainSpeeds, when
from dflash_tui.application.figures.meter import Meter, Verdict, course, verdict
from dflash_tui.application.session import LoadRequest
from dflash_tui.widgets import stats
from dflash_tui.widgets.literal import Static
from dflash_tui.widgets.strip import Status, StatusStrip
from support.turns import STAGES, step_of, tree_of, turn_of

from .fake import FakeSession
from .scenes import send
from .support import SIZES, idle, loaded, screen_text, settled, shows, wait_until

MakeApp = Callable[..., DFlashApp]
LONG, SHORT = tree_of((0, 0), (1, 0), (2, 0), accepted=(0, 1, 2, 3)), tree_of((0, 0), (0, 1), accepted=(0,))
PLAIN = PlainSpeed(50.0, 64, 2048, "2026-01-02T10:00:00+00:00", "timed separately")


def shown(record: TurnRecord, plain: PlainSpeed | None = None, width: int = 60) -> str:
    assert record.report is not None
    found = record.report.stats
    rates = (found.tokens_per_second, plain.tokens_per_second if plain else 0.0)
    compared = verdict(*rates, steps=40, tokens=80, running=False, cold=False)
    figured = stats.figures(Meter(), record.report, record, running=False)
    return stats.drawn(replace(figured, plain=plain, verdict=compared), width).plain


def test_the_strip_has_a_mark_where_it_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    strip = StatusStrip()
    reason = "auto takes the tree for now"
    status = Status(
        rate=257.0, acceptance=4.8, against=Verdict("2.6x"), mode="tree", reason=reason, used=Knobs(p_min=0.2)
    )
    strip.set_reactive(StatusStrip.status, status)
    shown = {}
    for width in range(20, 140):
        monkeypatch.setattr(StatusStrip, "size", Size(width, 1))
        shown[width] = strip.render().plain
        assert cell_len(shown[width]) <= width
        assert shown[width].endswith("…") != shown[width].endswith(f"tree: {reason}")
    assert shown[44] == " 257 tok/s · 2.6x plain · 4.8 tok/step …"
    assert any(text.endswith("│ tree…") for text in shown.values())
    assert any(text.endswith("│ tree: auto takes t…") for text in shown.values())
    assert "…" not in shown[139]


async def test_the_strip_and_the_panel_show_one_speed_of_a_running_answer(make_app: MakeApp) -> None:
    session = FakeSession(gate=threading.Semaphore(6))
    app = make_app(session)
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        app.chat.action_panel("stats")
        await send(pilot, "hi")
        await wait_until(
            pilot, lambda: app.chat.state.turn.meter is not None and app.chat.state.turn.meter.totals.steps >= 5
        )
        app.chat.gauges.draw()
        figures, strip = app.chat.gauges._figures(), app.chat.query_one(StatusStrip).status
        assert app.chat.state.busy
        assert figures is not None
        assert figures.stats is not None
        assert strip.rate == figures.stats.tokens_per_second > 0
        assert session.gate is not None
        session.gate.release(1000)
        await idle(pilot)


def test_every_figure() -> None:
    record = turn_of([step_of(LONG, bonus=1)] * 3 + [step_of(SHORT)], thinking_steps=3, step_s=0.02)
    text = shown(record, PLAIN)
    for line in (
        "162 tok/s  3.25 tok/step",
        "first token 100 ms · 50.0 steps/s · 14 tok",
        "3.2x plain decoding: 50 tok/s, timed separately 2026-01-02",
        "prompt 20 tok, 200 tok/s; 10 of 30 tokens reused",
        "tree: asked for",
        "75  100 100\n1   2   3\n",
        " draft    2.00",
        " host     0.25",
        "time by stage  14.0 ms a step",
        "   1      1   25%",
        "   4      3   75%",
        " drafted      12    3.0  positions",
        " verified     11    2.8  nodes",
        " accepted      9    2.2  nodes, 82% taken",
        " thinking      9    200   4.00",
        " answer        5    125   2.50",
    ):
        assert line in text, f"{line!r} is missing from\n{text}"
    assert STAGES.total == 14.0


def test_a_turn_of_one_token_has_no_speed() -> None:
    text = shown(turn_of([]))
    assert "– tok/s  – tok/step" in text
    assert "no step" in text.partition("accepted by depth")[2]
    assert " 0.0" not in text
    assert " 0.0" not in shown(turn_of([step_of(LONG)], thinking_steps=1)), "nor has its reasoning"
    assert rates(0.0, 0.0) == ("–", "–")


def test_several_drafters_have_a_row_each() -> None:
    """One alone has none: its figures are the turn's."""
    steps = [replace(step_of(LONG, bonus=1), drafter="dflash2")] * 3 + [replace(step_of(SHORT), drafter="mtp")]
    text = shown(turn_of(steps))
    for line in (
        "drafters   steps tok/step  nodes taken tok/s",
        " dflash2       3     4.00      9  100%   291",
        " mtp           1     1.00      2    0%    73",
    ):
        assert line in text, f"{line!r} is missing from\n{text}"
    assert "tok/step  nodes taken" not in shown(turn_of(steps[:3]))


def test_two_columns_hold_the_same() -> None:
    record = turn_of([step_of(LONG, bonus=1)] * 3 + [step_of(SHORT)], thinking_steps=2)
    narrow, wide = shown(record, PLAIN, 60), shown(record, PLAIN, 120)
    for word in ("draft", "verified", "thinking", "steps by tokens", "accepted by depth", "2k tok"):
        assert (word in narrow) == (word in wide)
    assert all(len(line) <= 120 for line in wide.splitlines())
    assert all(len(line) <= 60 for line in narrow.splitlines())


@pytest.mark.parametrize("width", [45, 60, 72, 78, 120])
def test_no_line_is_longer_than_the_panel(width: int) -> None:
    """A panel of 120x40 has 45 cells. In two columns, the right one begins at the same cell in every line."""
    steps = [replace(step_of(LONG, bonus=1), drafter="dflash2")] * 3 + [replace(step_of(SHORT), drafter="mtp")]
    record = turn_of(steps, thinking_steps=2)
    assert record.report is not None
    why = "dflash2 does not fit this target: none of its 30 drafts was accepted; drafts are tried again"
    report = replace(record.report, reason=why, stats=replace(record.report.stats, copied=4, copied_accepted=2))
    learned = [FoundRow("by its drafter", 1200, 0.3, 0.2, 0.4)]
    figured = stats.figures(Meter(), report, record, running=False)
    found = stats.drawn(replace(figured, plain=PLAIN, learned=learned), width)
    lines = found.plain.splitlines()
    assert max(map(cell_len, lines)) <= width
    assert why in " ".join(" ".join(lines).split())
    if width >= 72:
        at = lines[0].index("accepted by depth")
        assert all(line[at - 1] == " " for line in lines[: lines.index("")] if len(line) > at)
        assert sum(line.startswith(("tree: ", "none of")) for line in lines) <= 2, "sentences use both columns"


def test_what_is_nothing_has_no_row() -> None:
    """Depths where no draft was accepted, lengths that no step had, stages that took no time."""
    text = shown(turn_of([step_of(LONG, bonus=1)] * 3 + [step_of(SHORT)]))
    assert "   2      0    0%" not in text
    none = shown(turn_of([step_of(SHORT)] * 3))
    assert "none of 9 positions" in none
    tried = turn_of([step_of(tree_of())])
    assert "3 positions drafted, none worth verifying" in shown(tried)
    assert "nothing drafted" not in shown(tried)
    assert "nothing drafted: plain decoding" in shown(turn_of([step_of(tree_of(), drafts=StepDrafts())]))
    long = turn_of([step_of(LONG, stages=replace(STAGES, tree=0.0, host=0.05))])
    assert " tree " not in shown(long)
    assert " host " in shown(long)
    drawer = shown(long, width=77)
    assert "others" in drawer
    assert " host " not in drawer


@pytest.mark.parametrize("depth", [1, 7, 11, 15, 40])
@pytest.mark.parametrize("width", [37, 44, 60])
def test_acceptance_fits_whatever_the_depth(depth: int, width: int) -> None:
    record = turn_of([step_of(LONG, bonus=1)])
    assert record.report is not None
    rates = tuple(0.97**place for place in range(depth))
    deep = replace(record.report.stats, accept_rate_by_depth=rates, drafted_by_depth=(9,) * depth)
    rows = stats.drawn(
        replace(stats.figures(Meter(), record.report, record, running=False), stats=deep), width
    ).plain.splitlines()
    head = rows.index("accepted by depth  %")
    assert all(len(row) <= width for row in rows[head : rows.index("", head)])
    assert len(rows[head + 3].rstrip()) >= min(depth, width)
    seen = min(depth, width)
    assert str(seen if seen < 5 or width // seen > 2 else seen // 5 * 5) in rows[head + 4] + rows[head + 5]


async def test_acceptance_and_times_are_on_one_screen(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=SIZES[0]) as pilot:
        await loaded(pilot)
        await send(pilot, "hi")
        await idle(pilot)
        await pilot.press("f3")
        for size in SIZES:
            await pilot.resize_terminal(*size)
            await settled(pilot)
            await shows(pilot, "accepted by depth", "tokens by step", "time by stage", "verify")


def test_a_turn_that_left_no_report_is_over_all_the_same() -> None:
    meter = Meter.of(turn_of([step_of(LONG)]))
    titles = [stats.figures(meter, None, None, running=running).title for running in (True, False)]
    assert titles == ["This turn", "Last turn"]


def test_plain_decoding_is_compared_with_nothing() -> None:
    steps = [step_of(tree_of(), bonus=5)] * 20
    for step in steps:
        object.__setattr__(step, "mode", "plain")
        object.__setattr__(step, "drafted_depth", 0)
    record = turn_of(steps)
    object.__setattr__(record.report, "mode", "plain")
    text = shown(record, PLAIN)
    assert "x plain" not in text
    assert "drafts in all" not in text


def test_a_verdict_needs_evidence() -> None:
    """Regression: "0.23x plain, F8 finds better" stood in red after 11 tokens of a first answer, or while one ran."""
    enough = {"steps": 32, "tokens": 64, "running": False, "cold": False}
    assert verdict(23.0, 100.0, **enough) == Verdict("0.23x", slower=True)  # type: ignore[arg-type]
    for less in ({"steps": 31}, {"tokens": 63}, {"running": True}, {"cold": True}):
        found = verdict(23.0, 100.0, **enough | less)  # type: ignore[arg-type]
        assert not found.ratio
        assert found.open


def test_a_baseline_is_replaced_by_a_better_supported_one(tmp_path: Path) -> None:
    """Regression: F8 replaced 64 timed steps by the figure of a single run."""
    speeds = PlainSpeeds(tmp_path)
    assert speeds.put("a pair", PLAIN)
    assert not speeds.put("a pair", replace(PLAIN, tokens_per_second=9.0, steps=20, taken="2027-01-02T10:00:00+00:00"))
    assert not speeds.put("a pair", replace(PLAIN, tokens_per_second=9.0, taken="2025-01-02T10:00:00+00:00"))
    assert speeds.get("a pair") == PLAIN
    many = replace(PLAIN, steps=5_000)
    assert speeds.put("a pair", many)
    newer = replace(PLAIN, steps=ENOUGH_STEPS, taken="2027-01-02T10:00:00+00:00")
    assert speeds.put("a pair", newer), "an old one of very many steps does not stay for ever"


def test_an_unmeasured_machine_says_how_to_measure() -> None:
    assert "plain decoding not measured; /plain times it" in shown(turn_of([step_of()]))


def test_a_changed_turn_says_so() -> None:
    record = turn_of([step_of(SHORT)] * 2 + [step_of(LONG, bonus=1, knobs=Knobs(drafting="auto up to 9"))] * 2)
    assert "changed during the answer" in shown(record)
    assert "drafting auto up to 9 from step 3 on" in shown(record).replace("\n", " ")


def test_a_turn_of_plain_decoding_is_a_measurement() -> None:
    plain = step_of(tree_of(), bonus=5)
    object.__setattr__(plain, "mode", "plain")
    speed = plain_of_turn(turn_of([plain] * 20))
    assert speed is not None
    assert (speed.steps, speed.positions, speed.taken) == (20, 3, "2026-01-01T12:00:00.000+00:00")
    assert speed.tokens_per_second == pytest.approx(1000 / 14)
    assert plain_of_turn(turn_of([plain] * 5)) is None, "too few steps to tell"
    assert plain_of_turn(turn_of([plain] * 20 + [step_of()])) is None, "not plain to the end"


def test_parts_are_told_apart_by_their_text() -> None:
    totals = TurnTotals()
    first = PrefillEvent((1,), 9, 0, 10.0, "tree", "")
    for event, text, thinking, at in (
        (first, "", "", 1.0),  # an opening tag: shows nothing, begins the thinking
        (step_of(), "", "so", 2.0),
        (step_of(), "", "", 3.0),  # half a character
        (step_of(SHORT), "", "well", 4.0),
        (step_of(), "The", " end", 5.5),  # the step that ends the thinking
        (step_of(SHORT), "answer", "", 6.0),
    ):
        totals.add(Piece(event, text, thinking, at))
    thinking, answer = totals.part("thinking"), totals.part("answer")
    assert (thinking.steps, thinking.tokens, thinking.seconds) == (3, 8, 3.0)
    assert thinking.acceptance_length == pytest.approx(7 / 3)
    assert (answer.steps, answer.tokens, answer.seconds) == (2, 4, 2.0)
    assert answer.tokens_per_second == 2.0


def test_the_course_of_the_speed_holds_every_token() -> None:
    record = turn_of([step_of(LONG, bonus=1)] * 30 + [step_of(SHORT)] * 30, step_s=0.02)
    rates = course(record)
    seconds = record.pieces[-1].at - record.pieces[0].at
    tokens = sum(len(step.tokens) for step in record.steps)
    assert sum(rates) * seconds / len(rates) == pytest.approx(tokens)
    assert rates[2] == pytest.approx(200)
    assert rates[-2] == pytest.approx(50)
    assert course(turn_of([])) == []


def test_measurements_are_kept_per_pair(tmp_path: Path) -> None:
    speeds = PlainSpeeds(tmp_path)
    assert speeds.get("a pair") is None
    speeds.put("a pair", PLAIN)
    assert PlainSpeeds(tmp_path).get("a pair") == PLAIN
    assert PlainSpeeds(tmp_path).get("another") is None
    file = tmp_path / "plain-speeds.json"
    for broken in (file.read_text().replace(PLAIN.taken, "yesterday"), "{broken"):
        file.write_text(broken)
        assert PlainSpeeds(tmp_path).get("a pair") is None
    (tmp_path / "file").write_text("")
    nowhere = PlainSpeeds(tmp_path / "file")
    nowhere.put("a pair", PLAIN)
    assert nowhere.get("a pair") == PLAIN


DAMAGE = (b"{broken", b'{"\xff": 1}', b'{"a": {"other": ' + b"[" * 100_000, b'[{"other": ' + b"[" * 100_000)


@pytest.mark.parametrize("damage", DAMAGE, ids=range(4))
def test_damaged_measurements_count_as_none(tmp_path: Path, damage: bytes) -> None:
    PlainSpeeds(tmp_path).put("a pair", PLAIN)
    Measurements(tmp_path, "a pair").add("tune", "words", [])
    for path in (tmp_path / "plain-speeds.json", *(tmp_path / "measurements").iterdir()):
        path.write_bytes(damage)
    assert PlainSpeeds(tmp_path).get("a pair") is None
    assert not Measurements(tmp_path, "a pair").newest_first


def test_when() -> None:
    noon = datetime(2026, 1, 2, 12, 0, tzinfo=UTC)
    local = datetime(2026, 1, 2, 10, 0, tzinfo=UTC).astimezone()
    today = local.date() == noon.astimezone().date()
    assert when(PLAIN.taken, noon) == (f"today {local:%H:%M}" if today else f"{local:%Y-%m-%d}")
    assert when(PLAIN.taken, datetime(2027, 5, 5, tzinfo=UTC)) == f"{local:%Y-%m-%d}"


def figures(app: DFlashApp) -> str:
    """What the panel says, wherever its lines are broken."""
    return " ".join(str(app.chat.query_one("#stats-body", Static).visual).split())


async def test_a_plain_turn_is_what_the_next_is_compared_with(make_app: MakeApp) -> None:
    app = make_app(FakeSession(answer="word " * 300))
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        await pilot.press("f3")
        for number, command in enumerate(("/set mode tree", "/set mode ar", "/set mode tree"), 1):
            await send(pilot, command)
            await send(pilot, "hi")
            await wait_until(pilot, lambda number=number: len(app.chat.transcript.turns) == number)
            await idle(pilot)
        await wait_until(pilot, lambda: re.search(r"x plain decoding.* a plain turn", figures(app)) is not None)


async def test_the_plain_screen_says_what_it_lacks(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        await send(pilot, "/plain")
        await shows(pilot, "no prompt yet: ask something first")


async def test_plain_decoding_is_timed_and_compared_with(make_app: MakeApp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lab_experiment, "PLAIN_TOKENS", 12)
    knobs = Knobs(max_tokens=16)
    app = make_app(load=partial(load_session, LoadRequest(knobs=knobs)), knobs=knobs)
    async with app.run_test(size=(120, 40)) as pilot:
        await wait_until(pilot, lambda: app.chat.state.session is not None)
        await send(pilot, "What is p_min?")
        await wait_until(pilot, lambda: bool(app.chat.state.session.turns))  # type: ignore[union-attr]
        await idle(pilot)
        await send(pilot, "/plain")
        await wait_until(pilot, lambda: "tok/s without drafts: 22 steps at context length" in screen_text(app))
        await wait_until(pilot, lambda: app.chat.state.experiment is None)  # Esc stops one that runs
        await pilot.press("escape", "f3")
        await wait_until(
            pilot,
            lambda: (
                re.search(r"plain decoding is compared from the second answer.* timed separately", figures(app))
                is not None
            ),
        )
        await send(pilot, "And the budget?")
        await wait_until(pilot, lambda: len(app.chat.state.session.turns) == 2)  # type: ignore[union-attr]


def test_how_keys_and_values_were_kept_is_said_where_it_is_known() -> None:
    record = turn_of([step_of(SHORT)])
    assert "keys and values" not in shown(record)
    assert record.report is not None
    object.__setattr__(record.report, "stats", dataclasses.replace(record.report.stats, kv="q8_0/q4_0"))
    assert "; keys and values q8_0/q4_0" in " ".join(shown(record, width=90).split())
