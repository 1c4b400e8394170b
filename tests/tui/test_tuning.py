"""Live parameters: staged, applied in mid-turn, presets, refusals."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from textual.pilot import Pilot

from dflash_core.knobs import CONTEXT, SPECS, Knobs
from dflash_core.record import TurnRecord, pack
from dflash_tui.app import DFlashApp
from dflash_tui.application.conversations.branches import Branches, Node
from dflash_tui.application.conversations.comparing import MAX_SEARCHED
from dflash_tui.application.conversations.store import Card, Store, StoredConversation
from dflash_tui.application.session import Loader, LoadRequest
from dflash_tui.application.settings.config import config_folder
from dflash_tui.widgets.knob_row import PresetRow
from dflash_tui.widgets.params import GROUPS
from dflash_tui.widgets.strip import StatusStrip
from support.turns import step_of, turn_of

from .fake import FakeSession, loader
from .scenes import send
from .support import ask, idle, loaded, shows, wait_until

MakeApp = Callable[..., DFlashApp]


def flash(app: DFlashApp) -> str:
    from dflash_tui.widgets.flash import Flash

    return app.chat.query_one(Flash).text


async def under_way(pilot: Pilot[int], app: DFlashApp, steps: int) -> None:
    """Send a message and wait until its answer has `steps` steps; the script's gate holds it there."""
    await loaded(pilot)
    await send(pilot, "hi")
    await wait_until(
        pilot, lambda: app.chat.state.turn.meter is not None and app.chat.state.turn.meter.totals.steps >= steps
    )


def test_each_group_has_one_time_at_which_it_applies() -> None:
    for group in GROUPS:
        assert len({spec.applies for spec in SPECS if spec.group == group}) == 1
    assert {spec.group for spec in SPECS} == set(GROUPS)
    assert CONTEXT.applies == "reload"


async def test_a_change_is_staged_and_applied_to_the_running_turn(make_app: MakeApp) -> None:
    gate = threading.Semaphore(4)
    session = FakeSession(gate=gate)
    app = make_app(session)
    async with app.run_test(size=(120, 40)) as pilot:
        await under_way(pilot, app, 3)
        await pilot.press("f2", "space", "space", "right", "right")
        await shows(pilot, "▸•drafting", "• 1 changed; a applies now")
        assert session.changes == []
        await pilot.press("a")
        await shows(pilot, "from the next step: drafting tree 24")
        assert [knobs.budget for knobs in session.changes] == [24]
        await wait_until(pilot, lambda: not app.chat.inspector.params_panel.row("drafting").staged)
        gate.release(1000)
        await idle(pilot)
        record = session.turns[-1]
        assert [step.knobs.budget for step in record.steps][:3] == [22, 22, 22]
        assert record.steps[-1].knobs.budget == 24
        assert record.knobs.budget == 22


async def test_what_only_a_new_turn_can_take_waits(make_app: MakeApp) -> None:
    gate = threading.Semaphore(4)
    session = FakeSession(gate=gate)
    app = make_app(session)
    async with app.run_test(size=(120, 40)) as pilot:
        await under_way(pilot, app, 2)
        app.chat.tuning.set(seed=5)
        await pilot.press("alt+a")
        assert flash(app) == "seed: from the next turn only"
        assert session.changes == []
        app.chat.tuning.set(p_min=0.2)
        await pilot.press("alt+a")
        assert flash(app) == "from the next step: drafting tree 22, p_min 0.20; seed from the next turn"
        assert app.chat.inspector.params_panel.row("seed").staged
        assert not app.chat.inspector.params_panel.row("p_min").staged
        await pilot.press("alt+a")
        assert flash(app) == "seed: from the next turn only"
        gate.release(1000)
        await idle(pilot)
        await send(pilot, "again")
        await idle(pilot)
        assert session.asked[-1][1] == Knobs(seed=5).replace(p_min=0.2)


async def test_nothing_to_apply(make_app: MakeApp) -> None:
    gate = threading.Semaphore(2)
    app = make_app(FakeSession(gate=gate))
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        await pilot.press("alt+a")
        assert "no answer is being written" in flash(app)
        await send(pilot, "hi")
        await wait_until(pilot, lambda: app.chat.state.busy)
        await pilot.press("alt+a")
        assert "no parameter has been changed" in flash(app)
        gate.release(1000)
        await idle(pilot)


async def test_the_budget_moves_from_the_prompt(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        await pilot.press("alt+k", "alt+k", "alt+j")
        await wait_until(pilot, lambda: app.chat.state.knobs.budget == 23)
        assert flash(app) == "drafting tree 23 from the next turn"
        assert app.focused is app.chat.prompt


async def test_defaults_that_were_chosen_survive_a_reload(make_app: MakeApp) -> None:
    start = Knobs(drafting="auto up to 40")
    app = make_app(FakeSession(knobs=start))
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        assert app.chat.state.knobs == start
        app.chat.action_reset()
        await send(pilot, "hi")
        await idle(pilot)
        app.chat.parts.program.reload()
        assert app.chat.state.session is None
        await loaded(pilot)
        assert app.chat.state.knobs == Knobs()


async def test_presets_by_key_row_and_command(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        await pilot.press("f9")
        await wait_until(pilot, lambda: app.chat.state.knobs == Knobs(drafting="plain"))
        assert flash(app) == "preset plain from the next turn: no drafts: what speculation is compared with"
        await pilot.press("f2")
        await shows(pilot, "‹plain›")
        app.chat.query_one(PresetRow).focus()
        await pilot.press("right")
        await shows(pilot, "‹chain›")
        assert app.chat.state.knobs == Knobs(drafting="chain 15"), "no more than the block of 16 has"
        await pilot.press("left", "left")
        await shows(pilot, "‹default›")
        assert app.chat.state.knobs == Knobs()
        app.chat.tuning.set(budget=31)
        await wait_until(pilot, lambda: app.chat.query_one(PresetRow).chosen == "")
        await send(pilot, "/preset save mine")
        await shows(pilot, "‹mine›")
        assert (config_folder() / "presets" / "mine.toml").read_text().endswith('[knobs]\ndrafting = "tree 31"\n')
        assert "own" not in flash(app)
        await send(pilot, "/preset wide")
        await wait_until(pilot, lambda: app.chat.state.knobs == Knobs(drafting="tree 48"))
        await send(pilot, "/preset save sure")
        await wait_until(pilot, lambda: "sure.toml, and replaces the program's own" in flash(app))
        await send(pilot, "/preset wde")
        await wait_until(pilot, lambda: "no preset 'wde'; there are default" in flash(app))


async def test_a_chain_is_no_longer_than_the_drafter_s_block(make_app: MakeApp) -> None:
    """The preset asks for 22 tokens. What a drafter with a block of 16 then runs, and what is shown, are 15."""
    app = make_app(FakeSession(draft_block=16))
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        for command in ("/preset chain", "/set drafting chain 40"):
            await send(pilot, command)
            await wait_until(pilot, lambda: app.chat.state.knobs.drafting == "chain 15")
            assert app.chat.tuning.preset == "chain"
            assert "chain 15" in app.chat.query_one(StatusStrip).render().plain
            await send(pilot, "/preset default")
            await wait_until(pilot, lambda: app.chat.state.knobs == Knobs())
        await send(pilot, "/set drafting tree 22")
        await wait_until(pilot, lambda: app.chat.state.knobs.drafting == "tree 22")


async def test_the_chosen_preset_is_seen_however_narrow(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(44, 24)) as pilot:
        await loaded(pilot)
        await pilot.press("f2")
        for name in app.chat.state.presets.names_for(app.chat.state.model):
            app.chat.tuning.use(name)
            await shows(pilot, f"‹{name}›")


async def test_a_click_takes_a_preset(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        await pilot.press("f2")
        await pilot.pause()
        row = app.chat.query_one(PresetRow)
        assert list(row.words) == list(app.chat.state.presets.names_for(app.chat.state.model))
        places = row.placed(None, row.size.width)
        assert [place.text.strip() for place in places] == list(row.words), "none is hidden"
        assert max(place.line for place in places) == row.size.height - 1 > 0
        for place in (places[2], places[-1]):
            assert await pilot.click(row, offset=(place.start + 1, place.line))
            await shows(pilot, f"‹{place.text.strip()}›")


async def test_a_wrong_preset_is_named_at_the_start(make_app: MakeApp) -> None:
    folder = config_folder() / "presets"
    folder.mkdir(parents=True)
    (folder / "mine.toml").write_text("[knobs]\nbudget = 0\n")
    app = make_app()
    async with app.run_test(size=(200, 24)) as pilot:
        await loaded(pilot)
        assert any("line 2: knobs.budget: budget=0: expected 1 to 256" in one.message for one in app._notifications)
        await send(pilot, "/preset mine")
        await wait_until(pilot, lambda: "preset mine" in flash(app))
        assert app.chat.state.knobs == Knobs()


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("/set mode tree", "drafting=tree 22: no drafter is loaded; expected plain or auto"),
        ("/preset wide", "drafting=tree 48: no drafter is loaded; expected plain or auto"),
        ("/set max_tokens 40000", "max_tokens=40,000: the context holds 32,768 with the prompt; expected 1 to 32,767"),
    ],
)
async def test_impossible_combinations_are_refused(make_app: MakeApp, command: str, says: str) -> None:
    app = make_app(FakeSession(draft_block=0))
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        await send(pilot, command)
        await wait_until(pilot, lambda: flash(app) == says)
        assert app.chat.state.knobs == Knobs()
        assert app.chat.prompt.text == command, "a refused command stays to be mended"


async def test_a_slider_cannot_leave_the_possible_either(make_app: MakeApp) -> None:
    app = make_app(FakeSession(draft_block=0))
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        await pilot.press("f2")
        app.chat.inspector.params_panel.row("drafting").focus()
        await pilot.press("space", "space")
        await wait_until(pilot, lambda: "no drafter is loaded" in flash(app))
        await wait_until(pilot, lambda: app.chat.inspector.params_panel.row("drafting").value == "auto up to 22")
        await pilot.press("backspace", "f9", "f9")
        await wait_until(pilot, lambda: app.chat.tuning.preset == "sampled")


async def test_typing_a_into_the_prompt_applies_nothing(make_app: MakeApp, tmp_path: Path) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        await ask(pilot, "a banana")
        await idle(pilot)
        assert app.chat.transcript.turns[0].prompt == "a banana"


def compared(app: DFlashApp) -> list[tuple[str, ...]]:
    """What stands under the answers on the screen of their settings."""
    return [answer.compared for turn in app.chat.transcript.turns for answer in turn.answers]


async def test_what_a_setting_brought_stands_under_the_answer(make_app: MakeApp) -> None:
    """The script takes 18.6 ms per step, so 53.8 tok/s with one token each and about 4.6 times that with a tree."""
    app = make_app()
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        for number, command in enumerate(("/set mode ar", "/set mode tree", "/set seed 4"), 1):
            await send(pilot, command)
            await send(pilot, "hi")
            await wait_until(pilot, lambda number=number: len(app.chat.transcript.turns) == number)
            await idle(pilot)
        first, second, third = (turn.answers[0] for turn in app.chat.transcript.turns)
        reports = [answer.report for answer in (first, second, third)]
        assert all(reports)
        assert first.compared == ()
        await wait_until(pilot, lambda: bool(second.compared))
        [line] = second.compared
        assert re.match(r"\d+ tok/s, [+−]", line)
        assert " against drafting plain, same " in line
        assert re.search(r"tok/s, \+\d+ % \(\d+ of \d+ parts\) against drafting plain, same \d+ tokens$", line)
        await shows(pilot, line[:30])
        await wait_until(pilot, lambda: bool(third.compared))
        assert third.compared == second.compared, "a seed is no other setting, so it is beside the first turn too"
        await pilot.press("ctrl+n", "ctrl+o")
        await shows(pilot, "1 conversation")
        await pilot.press("enter")
        await shows(pilot, line[:30])
        assert compared(app) == [(), (line,), (line,)]


async def test_what_was_said_of_a_setting_is_said_again_in_another_run(make_app: MakeApp) -> None:
    """The lines come from the store: an app that resumes shows the same lines, and compares with them."""
    gate = threading.Semaphore(1000)
    app = make_app(FakeSession(gate=gate))
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        for number, command in enumerate(("/set mode ar", "/set mode tree"), 1):
            await send(pilot, command)
            await send(pilot, "hi")
            await wait_until(pilot, lambda number=number: len(app.chat.transcript.turns) == number)
            await idle(pilot)
        while gate.acquire(blocking=False):
            pass
        gate.release(6)
        await pilot.press("ctrl+r")
        await wait_until(
            pilot, lambda: app.chat.state.turn.meter is not None and app.chat.state.turn.meter.totals.steps == 5
        )
        app.chat.tuning.set(budget=40)
        await send(pilot, "/apply")
        gate.release(1000)
        await idle(pilot)
        await wait_until(pilot, lambda: all(turn.answers[-1].compared for turn in app.chat.transcript.turns[1:]))
        before = compared(app)
        assert [len(lines) for lines in before] == [0, 1, 1]
        assert "drafting tree 40 from step 6 on" in before[2][0]
        resumed = app.chat.state.conversation.resumable

    app = make_app(FakeSession(), resume=resumed)
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        await wait_until(pilot, lambda: compared(app) == before)
        await shows(pilot, before[2][0])
        await send(pilot, "hi")
        await wait_until(pilot, lambda: len(app.chat.transcript.turns) == 3)
        await idle(pilot)
        await wait_until(pilot, lambda: "against drafting plain" in "".join(compared(app)[-1]))
        await send(pilot, "and now?")
        await wait_until(pilot, lambda: len(app.chat.transcript.turns) == 4)
        await idle(pilot)
        await app.chat.workers.wait_for_complete()
        assert compared(app)[-1] == (), "another prompt is no comparison"

    app = make_app(FakeSession(title="another pair"), resume=resumed)
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        await wait_until(pilot, lambda: compared(app)[:3] == before and bool(compared(app)[3]))
        await send(pilot, "/set budget 4")
        await send(pilot, "hi")
        await wait_until(pilot, lambda: len(app.chat.transcript.turns) == 5)
        await idle(pilot)
        await app.chat.workers.wait_for_complete()
        assert compared(app)[-1] == (), "another pair's turns are no measure"


async def test_a_long_conversation_is_there_before_its_comparisons(
    make_app: MakeApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 200 turns, only the records of those on the screen and of the few with other settings are unpacked, in a
    thread beside the app's."""
    store = Store(tmp_path / "data")
    card, branches = Card("long", model="Qwen3.5-demo"), Branches()
    records = {}
    for number in range(200):
        knobs = Knobs(drafting=f"auto up to {8 if number < 170 else 22}")
        record = turn_of([step_of(knobs=knobs)] * 30, knobs=knobs, prompt="question")
        branches.add(Node("user", "question", branches.leaf))
        node = Node("assistant", f"answer {number}", branches.leaf, report=record.report)
        branches.add(node)
        records[node.id] = record
    store.put(StoredConversation(card, branches, {message: pack(record) for message, record in records.items()}))
    read: list[str] = []
    threads: set[int] = set()
    fetch = Store.record

    def record(self: Store, message: str) -> TurnRecord | None:
        read.append(message)
        threads.add(threading.get_ident())
        return fetch(self, message)

    monkeypatch.setattr(Store, "record", record)
    app = make_app(resume=card.id)
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        await wait_until(pilot, lambda: len(compared(app)) == 20 and all(compared(app)))
        assert {line for [line] in compared(app)} == {
            "no difference beyond noise against drafting auto up to 8, same 90 tokens"
        }
        assert len(set(read)) <= 20 + MAX_SEARCHED
        assert len(read) <= 21 + MAX_SEARCHED, "each once, and the newest once more for the panels"
        assert threads - {threading.get_ident()}, "not by the app's own thread"


async def test_a_change_on_the_way_is_compared_too(make_app: MakeApp) -> None:
    gate = threading.Semaphore(6)
    session = FakeSession(gate=gate)
    app = make_app(session)
    async with app.run_test(size=(120, 40)) as pilot:
        await under_way(pilot, app, 5)
        app.chat.tuning.set(budget=40)
        await send(pilot, "/apply")
        gate.release(1000)
        await idle(pilot)
        await wait_until(pilot, lambda: bool(app.chat.transcript.turns[0].answers[0].compared))
        [line] = app.chat.transcript.turns[0].answers[0].compared
        assert re.fullmatch(r"drafting tree 40 from step \d+ on", line)
        await pilot.press("f3")
        await shows(pilot, "changed during the answer")


async def test_a_cache_type_is_staged_until_a_reload(make_app: MakeApp) -> None:
    asked: list[LoadRequest] = []

    def loaders(request: LoadRequest) -> Loader:
        asked.append(request)
        return loader(FakeSession(title="loaded again"))

    app = make_app(loaders=loaders)
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        await send(pilot, "/kv q3")
        await shows(pilot, "cache type 'q3': expected auto, or one of f16")
        await send(pilot, "/kv Q8_0/q4_0")
        await wait_until(pilot, lambda: "keys and values q8_0/q4_0: /reload" in flash(app))
        await send(pilot, "/reload")
        await shows(pilot, "loaded again")
        assert [request.kv for request in asked] == ["q8_0/q4_0"]


async def test_a_reload_with_a_context_does_not_ask_for_another(make_app: MakeApp) -> None:
    app = make_app(loaders=lambda request: loader(FakeSession(context_length=request.context or 1024)))
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        await send(pilot, "/reload 8192")
        await wait_until(
            pilot, lambda: app.chat.state.session is not None and app.chat.state.session.context_length == 8192
        )
    assert "/reload loads the model again" not in app.notices.page()


async def test_a_context_is_staged_until_a_reload(make_app: MakeApp) -> None:
    asked: list[LoadRequest] = []

    def loaders(request: LoadRequest) -> Loader:
        asked.append(request)
        return loader(FakeSession(context_length=request.context, title="loaded again"))

    app = make_app(loaders=loaders)
    async with app.run_test(size=(120, 50)) as pilot:
        await loaded(pilot)
        await pilot.press("f2")
        panel = app.chat.inspector.params_panel
        panel.unfold(True)
        row = panel.row("context")
        await pilot.pause()
        row.focus()
        await pilot.press("8", "1", "9", "2", "enter")
        await wait_until(pilot, lambda: "context 8,192: /reload" in flash(app))
        await shows(pilot, "▸•context", "loading  with /reload")
        assert row.staged
        assert app.chat.state.knobs == Knobs()
        await send(pilot, "/reload")
        await shows(pilot, "loaded again", "/8k")
        assert [request.context for request in asked] == [8192]
        await wait_until(pilot, lambda: not row.staged)
        assert row.value == 8192


async def test_no_reload_in_the_middle_of_an_answer(make_app: MakeApp) -> None:
    gate = threading.Semaphore(4)
    app = make_app(FakeSession(gate=gate))
    async with app.run_test(size=(120, 40)) as pilot:
        await under_way(pilot, app, 2)
        await send(pilot, "/reload")
        await wait_until(pilot, lambda: "reload after its end" in flash(app))
        gate.release(1000)
        await idle(pilot)


async def test_a_slider_that_is_put_back_leaves_auto_on(make_app: MakeApp) -> None:
    """Regression: the policy was rewritten, and stayed so."""
    app = make_app()
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        assert app.chat.state.knobs.drafting == "auto"
        for name, away, back in (("p_min", 0.2, 0.0), ("chain_seed", True, False)):
            app.chat.tuning.moved(name, away)
            assert app.chat.state.knobs.drafting.startswith("tree")
            app.chat.tuning.moved(name, back)
            assert app.chat.state.knobs.drafting == "auto"
        await send(pilot, "/set mode auto up to 40")
        await wait_until(pilot, lambda: app.chat.state.knobs.drafting == "auto up to 40")
        await send(pilot, "/set mode=tree 30")
        await wait_until(pilot, lambda: app.chat.state.knobs.drafting == "tree 30")
        await send(pilot, "/set mode auto")
        await wait_until(pilot, lambda: app.chat.state.knobs.drafting == "auto")


async def test_set_takes_several_parameters(make_app: MakeApp) -> None:
    """As /sweep, /ab and --set take them."""
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        await send(pilot, "/set ignore_eos=on max_tokens=1200")
        await shows(pilot, "ignore_eos on, max_tokens 1200 from the next turn")
        assert (app.chat.state.knobs.ignore_eos, app.chat.state.knobs.max_tokens) == (True, 1200)


async def test_a_slider_leaves_no_old_value_in_the_message(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        await send(pilot, "/set mode=auto")
        app.chat.tuning.set(p_min=0.23)
        app.chat.tuning.set(p_min=0.24)
        await shows(pilot, "drafting auto is off: p_min was set")
        assert "23" not in flash(app)
