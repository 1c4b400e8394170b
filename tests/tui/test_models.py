"""The list of models: rows as they are found, search, drafters, profiles, paths."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from dflash_core.demo import demo_target_path
from dflash_tui.app import DFlashApp
from dflash_tui.application.settings.config import Config, Settings, config_folder
from dflash_tui.application.settings.presets import FOLDER_NAME, Presets, Profile
from dflash_tui.chat.offered import FILE, PAIR, PROFILE, is_path
from dflash_tui.screens.models import ModelsScreen
from dflash_tui.widgets.dialogs import ConfirmScreen, LineScreen

from .model_machine import DRAFT, TARGET, Opened
from .scenes import send
from .support import loaded, screen_text, settled, shows, wait_until

MakeApp = Callable[..., DFlashApp]
SIZES = [(80, 24), (120, 40)]


@pytest.fixture(autouse=True)
def home(model_home: Path) -> Path:
    """Where models are looked for."""
    return model_home


def coding(home: Path) -> Profile:
    near = home / "near" / TARGET
    return Profile(
        "coding", changes={"drafting": "tree 15"}, target=near, draft=Path("ngram"), context=65536, kv="q8_0"
    )


@pytest.mark.parametrize("size", SIZES)
async def test_what_is_here(
    make_app: MakeApp, size: tuple[int, int], home: Path, snapshot: Callable[[str, str], None]
) -> None:
    (home / "models" / "page.gguf").write_bytes(b"<html>no</html>")
    presets = Presets()
    presets.save(coding(home))
    presets.save(Profile("travel", target=Path("/gone/m.gguf")))
    it = Opened(make_app)
    async with it.app.run_test(size=size) as pilot:
        await it.open(pilot)
        await shows(
            pilot, TARGET, "Other-4B.gguf", f"+ {DRAFT}"[:20], "coding", "/gone/m.gguf is not there", "Not offered"
        )
        await shows(pilot, "● demo pair")
        snapshot(f"{size[0]}x{size[1]}-models", await settled(pilot))
        await it.to(pilot, f"{FILE}{home}/near/{TARGET}")
        if size == (120, 40):
            await shows(pilot, "architecture", "fits, 32,768 positions", "5.0 GiB")
        snapshot(f"{size[0]}x{size[1]}-models-row", await settled(pilot))
        await it.to(pilot, f"{PAIR}smollm2")
        await shows(pilot, "page.gguf is not a GGUF file", "a real model, small and often wrong")
        assert f"{FILE}{home}/models/page.gguf" not in [one.id for one in it.screen._list.options]


async def test_enter_loads_with_the_drafter_that_belongs(make_app: MakeApp, home: Path) -> None:
    it = Opened(make_app)
    async with it.app.run_test(size=(100, 30)) as pilot:
        await it.open(pilot)
        await it.to(pilot, f"{FILE}{home}/near/{TARGET}")
        await pilot.press("enter")
        await it.closed(pilot)
        assert (it.asked[-1].target, it.asked[-1].draft) == (home / "near" / TARGET, home / "near" / DRAFT)
        await it.open(pilot)
        await it.to(pilot, f"{FILE}{home}/near/{TARGET}")
        await pilot.press("right", "right")
        await shows(pilot, "+ n-grams")
        await pilot.press("left")
        await shows(pilot, "no drafter")
        await pilot.press("enter")
        await it.closed(pilot)
        assert it.asked[-1].draft is None


async def test_what_is_typed_narrows_the_list(make_app: MakeApp, home: Path) -> None:
    it = Opened(make_app)
    async with it.app.run_test(size=(100, 30)) as pilot:
        await it.open(pilot)
        await pilot.press(*"other 4b")
        await wait_until(pilot, lambda: TARGET not in screen_text(it.app))
        await shows(pilot, "Other-4B.gguf")
        await pilot.press("enter")
        await it.closed(pilot)
        assert it.asked[-1].target == home / "models" / "Other-4B.gguf"
        await it.open(pilot)
        await pilot.press(*"zzz")
        await shows(pilot, "No model has these words")
        await pilot.press("enter")
        assert isinstance(it.app.screen, ModelsScreen)
        await pilot.press("escape")
        await shows(pilot, TARGET)
        await pilot.press("down", "escape")
        await it.closed(pilot)
        assert len(it.asked) == 1


async def test_a_drafter_is_written_as_elsewhere(make_app: MakeApp, home: Path) -> None:
    """The command also takes a drafter by its kind, and kinds and files joined by +, as the list and the options do."""
    it = Opened(make_app)
    async with it.app.run_test(size=(100, 30)) as pilot:
        await loaded(pilot)
        for draft in ("ngram", f"ngram+{home}/near/{DRAFT}"):
            await send(pilot, f"/load {home}/near/{TARGET} {draft}")
            await wait_until(pilot, lambda draft=draft: bool(it.asked) and it.asked[-1].draft == Path(draft))  # type: ignore[misc]
            await loaded(pilot)
        await send(pilot, f"/load {home}/near/{TARGET} ngram+/none/d")
        await shows(pilot, "/none/d: no such file or folder")
        await send(pilot, f"/load ~nobody-of-this-name/{TARGET}")
        await shows(pilot, "~nobody-of-this-name", "home directory")
    assert len(it.asked) == 2


def test_a_path_is_told_from_words() -> None:
    for text in ("/a", "~/x", "./m", "../m", "m.gguf", "M.GGUF"):
        assert is_path(text)
    for text in ("qwen3", "Qwen/Qwen3-8B-GGUF", "hf.co/o/n:q4", "27b q4"):
        assert not is_path(text)


async def test_rows_come_while_others_are_still_read(
    make_app: MakeApp, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A header that takes long (a file on a slow disk) holds up neither the keys nor the rows before it."""
    from dflash_tui.application.hub import find

    read, slow = find.read_header, threading.Event()

    def reads(path: Path, *, folder: bool = False) -> object:
        if path.name.startswith("Other"):
            slow.wait(600)
        return read(path, folder=folder)

    monkeypatch.setattr(find, "read_header", reads)
    it = Opened(make_app)
    async with it.app.run_test(size=(100, 30)) as pilot:
        await loaded(pilot)
        await send(pilot, "/models")
        await shows(pilot, TARGET, "looking…", "looking for its drafter")
        await it.to(pilot, f"{FILE}{home}/near/{TARGET}")
        slow.set()
        await it.found(pilot)
        await shows(pilot, "Other-4B.gguf")
        assert it.screen._list.row == f"{FILE}{home}/near/{TARGET}", "the cursor stays on its row"
        assert "looking" not in screen_text(it.app)


async def test_keys_are_asked_for_while_the_screen_goes(make_app: MakeApp) -> None:
    """The line of keys asks for them by a timer, even when widgets have been removed."""
    it = Opened(make_app)
    async with it.app.run_test(size=(100, 30)) as pilot:
        screen = await it.open(pilot)
        await screen.query_children("*").remove()
        for action in ("rename", "delete", "drafter", "plan", "save"):
            assert not screen.check_action(action, ())


async def test_leaving_ends_the_looking(make_app: MakeApp) -> None:
    it = Opened(make_app)
    async with it.app.run_test(size=(100, 30)) as pilot:
        finding = (await it.open(pilot))._finding
        await pilot.press("escape")
        await it.closed(pilot)
        await wait_until(pilot, lambda: finding.over)


# Profiles


async def test_a_profile_is_loaded_whole(make_app: MakeApp, home: Path) -> None:
    Presets().save(coding(home))
    Presets().save(Profile("plain"))
    it = Opened(make_app)
    async with it.app.run_test(size=(120, 40)) as pilot:
        await it.open(pilot, "/profile")
        await it.to(pilot, f"{PROFILE}coding")
        await pilot.press("enter")
        await it.closed(pilot)
        await wait_until(pilot, lambda: it.app.chat.state.knobs.budget == 15)
        [one] = it.asked
        assert (one.target, one.draft, one.context, one.kv) == (home / "near" / TARGET, Path("ngram"), 65536, "q8_0")
        assert it.app.chat.state.kv == "q8_0", "a reload keeps it so"
        await send(pilot, "/profile plain")
        await wait_until(pilot, lambda: len(it.asked) == 2)
        await loaded(pilot)
        assert (it.asked[-1].target, it.asked[-1].context, it.asked[-1].kv) == (None, 0, "auto")
        await wait_until(pilot, lambda: it.app.chat.state.knobs.budget != 15)
        assert [*Presets().profiles] == ["plain", "coding"], "the last used first"


async def test_a_profile_of_more_than_the_model_was_made_for_shows_what_it_gets(make_app: MakeApp) -> None:
    Presets().save(Profile("big", context=600_000))
    it = Opened(make_app)
    async with it.app.run_test(size=(120, 40)) as pilot:
        await it.open(pilot, "/profile")
        await it.to(pilot, f"{PROFILE}big")
        await shows(pilot, "fits, 32,768 positions · demo pair", "▏  32,768 positions")
        assert "600,000" not in screen_text(it.app)


async def test_a_profile_that_does_not_load_leaves_nothing_of_it(make_app: MakeApp, home: Path) -> None:
    bad = home / "near" / "bad.gguf"
    bad.write_bytes(b"GGUF")
    Presets().save(Profile("bad", changes={"drafting": "tree 3"}, target=bad, context=8192, kv="q4_0"))
    it = Opened(make_app)
    it.refuse = "bad"
    async with it.app.run_test(size=(100, 30)) as pilot:
        await loaded(pilot)
        before = it.app.chat.state.knobs
        await send(pilot, "/profile bad")
        await shows(pilot, "the model did not load: bad is damaged")
        chat = it.app.chat
        await wait_until(pilot, lambda: not chat.state.loading)  # the one before is there again
        assert chat.state.knobs == before
        assert (chat.state.context, chat.state.kv) == (0, "auto")
        await send(pilot, f"/load {home / 'near' / TARGET}")
        await loaded(pilot)
        await wait_until(pilot, lambda: len(it.asked) == 2)
        assert (it.asked[-1].context, it.asked[-1].kv) == (0, "auto"), "nothing of it goes on to the next"


async def test_a_profile_whose_file_moved(make_app: MakeApp, home: Path) -> None:
    old = Path("/old")
    Presets().save(Profile("coding", changes={"drafting": "tree 15"}, target=old / TARGET, draft=old / "none"))
    it = Opened(make_app)
    async with it.app.run_test(size=(100, 30)) as pilot:
        await it.open(pilot)
        await it.to(pilot, f"{PROFILE}coding")
        await pilot.press("enter")
        await wait_until(pilot, lambda: isinstance(it.app.screen, ConfirmScreen))
        await shows(pilot, f"/old/{TARGET} is not there, but")
        await pilot.press("escape")
        await shows(pilot, "stays as it is; nothing was loaded")
        assert Presets().profile("coding").target == Path("/old") / TARGET
        await pilot.press("enter")
        await wait_until(pilot, lambda: isinstance(it.app.screen, ConfirmScreen))
        await pilot.press("enter")
        await shows(pilot, "no none elsewhere")
        assert not it.asked, "its drafter is not there: not half of it either"
        assert Presets().profile("coding").target == home / "near" / TARGET
        await pilot.press("escape")
        await it.closed(pilot)
        (home / "models" / "none").mkdir()
        assert it.app.chat.state.knobs.budget != 15


async def test_profiles_are_kept_renamed_deleted_and_brought_back(make_app: MakeApp, home: Path) -> None:
    it = Opened(make_app)
    async with it.app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        it.app.chat.tuning.set(budget=12)
        await it.open(pilot)
        await it.to(pilot, f"{FILE}{home}/near/{TARGET}")
        await pilot.press("ctrl+s")
        await wait_until(pilot, lambda: isinstance(it.app.screen, LineScreen))
        await pilot.press("enter")
        await shows(pilot, "profile qwen3.6-27b-q4_k_m is saved in")
        made = Presets().profile("qwen3.6-27b-q4_k_m")
        assert (made.target, made.draft) == (home / "near" / TARGET, home / "near" / DRAFT)
        assert made.changes["drafting"] == "tree 12"
        await it.to(pilot, f"{PROFILE}qwen3.6-27b-q4_k_m")
        await pilot.press("ctrl+r")
        await wait_until(pilot, lambda: isinstance(it.app.screen, LineScreen))
        await pilot.press("ctrl+u", *"work", "enter")
        await shows(pilot, "is renamed to work")
        await it.to(pilot, f"{PROFILE}work")
        await pilot.press("delete")
        await shows(pilot, "profile work is deleted")
        assert "work" not in Presets().profiles
        await pilot.press("ctrl+z")
        await shows(pilot, "profile work is restored")
        assert Presets().profile("work") == Profile(**{**_fields(made), "name": "work"})
        await pilot.press("ctrl+z")
        await shows(pilot, "no profile was deleted or replaced")


def _fields(profile: Profile) -> dict[str, object]:
    return {name: getattr(profile, name) for name in ("name", "target", "draft", "context", "kv", "changes")}


async def test_profiles_by_commands(make_app: MakeApp) -> None:
    it = Opened(make_app)
    async with it.app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        await send(pilot, "/profile save mine")
        await shows(pilot, "profile mine is saved in")
        await send(pilot, "/profile rename mine yours")
        await shows(pilot, "profile mine is renamed to yours")
        await send(pilot, "/profile delete yours")
        await shows(pilot, "/profile undo brings it back")
        await send(pilot, "/profile undo")
        await shows(pilot, "profile yours is restored")
        assert [*Presets().profiles] == ["yours"]
        for text, why in (
            ("/profile save", "write /profile NAME"),
            ("/profile save a b", "write /profile NAME"),
            ("/profile nobody", "no profile 'nobody'"),
            ("/profile save UP", "expected a name"),
            ("/get nobody", "no pair 'nobody' in the catalogue"),
        ):
            await send(pilot, text)
            await shows(pilot, why)
            assert it.app.chat.prompt.text == text, "what was typed stays"


async def test_what_is_wrong_with_the_file_is_said(make_app: MakeApp) -> None:
    path = config_folder() / FOLDER_NAME / "x.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("target = 3\n")
    it = Opened(make_app)
    async with it.app.run_test(size=(200, 60), notifications=True) as pilot:
        await it.open(pilot)
        await shows(pilot, "Left out")
        assert any("x.toml, line 1: target: found 3, expected" in one.message for one in it.app._notifications)
        await pilot.press("escape")


async def test_the_users_own_folders_are_looked_into(make_app: MakeApp, home: Path) -> None:
    own = home / "own" / "deep"
    own.mkdir(parents=True)
    shutil.copy(demo_target_path(), own / "mine.gguf")
    it = Opened(make_app, config=Config(Settings(model_folders=(home / "own",))))
    async with it.app.run_test(size=(120, 40)) as pilot:
        await it.open(pilot)
        await shows(pilot, "mine.gguf")
