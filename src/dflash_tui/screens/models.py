"""Which model: profiles, what lies on this machine, what can be fetched, or a path. The first start begins here.

What is typed or pasted over the list goes into the field above it: words narrow the list, a path is a model.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, Horizontal, VerticalScroll
from textual.content import Content
from textual.events import Key, Paste, Resize
from textual.screen import Screen
from textual.widgets import Input
from textual.widgets.option_list import Option

from dflash_core.clean import one_line
from dflash_core.drafters.registry import missing
from dflash_core.errors import DeviceError, DFlashError
from dflash_core.memory import gib, host_memory
from dflash_core.nvml import Management
from dflash_tui.chat.finding import Finding, Question
from dflash_tui.chat.host import ChatHost
from dflash_tui.chat.profiles import suggested
from dflash_tui.hub.catalogue import Catalogue, Pair, load_catalogue
from dflash_tui.hub.find import Found
from dflash_tui.hub.room import room_for
from dflash_tui.screens.get import GetScreen
from dflash_tui.screens.help import HelpScreen
from dflash_tui.screens.palette import ActionProvider
from dflash_tui.screens.plan import PlanScreen
from dflash_tui.settings.keys import bindings
from dflash_tui.settings.profiles import Profile
from dflash_tui.terminal.key_order import is_text
from dflash_tui.text.bars import counted
from dflash_tui.text.glossary import QUOTED, figure, sentence
from dflash_tui.widgets.confirm_dialog import ConfirmScreen
from dflash_tui.widgets.flash import Flash
from dflash_tui.widgets.key_line import KeyLine
from dflash_tui.widgets.line_dialog import LineScreen
from dflash_tui.widgets.literal import OptionList, Static
from dflash_tui.widgets.model_rows import Choice, beside, choices, option, passed_over
from dflash_tui.widgets.paths import Paths

FIRST = "Welcome. Which model should answer?"
DEMO = "demo"
FILE, PROFILE, PAIR, TYPED = "file ", "profile ", "pair ", "typed"  # beginnings of the ids of rows
LOOK_S = 0.15
BESIDE = 110  # columns from which on there is room for what is known of a row


class _List(OptionList):
    HELP = (
        "↑ and ↓ choose, ← and → change the drafter, Enter loads. What is typed narrows the list; a path"
        " is a model. A profile is a model with all its settings."
    )
    # Enter on what is not here yet asks the hub; the footer says which it is.
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "select", "Load"),
        Binding("enter", "fetch", "Get"),
        Binding("left", "screen.drafter(-1)", "Drafter", show=False),
        Binding("right", "screen.drafter(1)", "Drafter", key_display="← →"),
    ]

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action in ("select", "fetch"):
            chosen = self.highlighted_option
            return (chosen is not None and (chosen.id or "").startswith(PAIR)) == (action == "fetch")
        return super().check_action(action, parameters)

    def action_fetch(self) -> None:
        self.action_select()


class _Field(Input):
    HELP = "Words narrow the list. A path, with a / or ~ in front or .gguf at its end, is a model; Enter loads it."
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down", "screen.move(1)", show=False),
        Binding("up", "screen.move(-1)", show=False),
        Binding("enter", "submit", "Load"),
    ]


class ModelsScreen(Screen[None]):
    """`first`: the first start; Esc then takes the demo pair, and does not ask again. `only`: the list begins narrowed
    to these words."""

    SCOPE: ClassVar[str] = "models"
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(SCOPE)]
    COMMANDS = Screen.COMMANDS | {ActionProvider}

    def __init__(self, chat: ChatHost, *, first: bool = False, only: str = "") -> None:
        super().__init__()
        self._chat, self._first, self._only = chat, first, only
        self._profiles = chat.profiles
        self._catalogue: Catalogue = load_catalogue()
        self._finding = Finding(chat.program.places, chat.program.given_back, room_for)
        self._seen, self._present = -1, chat.program.present
        self._told = False  # why the looking ended early
        self._drafters: dict[str, int] = {}  # which of its choices a file has, where it is not the first

    def compose(self) -> ComposeResult:
        with Container(id="models"):
            yield Static("", id="models-heading")
            yield Static(sentence(machine()), id="models-machine")
            with Horizontal(id="models-line"):
                yield Static(" ❯", id="models-mark")
                yield _Field(
                    self._only,
                    placeholder="words to look for, or the path of a GGUF file",
                    id="models-target",
                    suggester=Paths(drafts=False),
                    select_on_focus=False,
                    compact=True,
                )
            with Horizontal(id="models-with"):
                yield Static(" +", id="models-plus")
                yield Input(
                    placeholder="its drafter: a file or a folder, or text; empty is what the model brings",
                    id="models-draft",
                    suggester=Paths(drafts=True),
                    compact=True,
                )
            with Horizontal(id="models-body"):
                yield _List(id="models-list", compact=True)
                with VerticalScroll(id="models-beside", can_focus=False):
                    yield Static("", id="models-about")
            yield KeyLine()
        yield Flash()

    def on_mount(self) -> None:
        self._profiles.all.read()
        self.call_after_refresh(self._tell_problems)
        self._finding.start()
        self._draw()
        self._list.focus()
        self.set_interval(LOOK_S, self._look)

    def on_unmount(self) -> None:
        self._finding.stop()

    def on_resize(self, event: Resize) -> None:
        self.set_class(event.size.width < BESIDE, "-narrow")
        self._draw()

    def say(self, what: str | Exception) -> None:
        """A small fact above the footer, or why something is refused."""
        self.query_one(Flash).say(what)

    # The list

    @property
    def _list(self) -> _List:
        return self.query_one(_List)

    @property
    def _field(self) -> _Field:
        return self.query_one(_Field)

    @property
    def _draft(self) -> Input:
        return self.query_one("#models-draft", Input)

    @property
    def _row(self) -> str:
        """The id of the row under the cursor; "" where there is none."""
        chosen = self._list.highlighted_option
        return (chosen.id or "") if chosen is not None else ""

    @property
    def _path(self) -> str:
        """What is typed, where that is a path."""
        text = self._field.value.strip()
        return text if is_path(text) else ""

    def _look(self) -> None:
        """Draw what the thread has found since, and which pair is loaded by now."""
        present = self._chat.program.present
        if self._finding.changes != self._seen or present is not self._present:
            self._seen, self._present = self._finding.changes, present
            self._draw()
        if self._finding.over and self._finding.error is not None and not self._told:
            self._told = True
            self.say(f"not all places could be looked at: {self._finding.error}")

    def _draw(self) -> None:
        """The rows again; the cursor stays on its row where that is still there."""
        kept, place = self._row, self._list.scroll_offset
        words = () if self._path else tuple(self._field.value.lower().split())
        rows = list(self._rows(words))
        self._list.clear_options()
        self._list.add_options(rows)
        ids = [row.id for row in rows]
        at = ids.index(kept) if kept in ids else next((n for n, row in enumerate(rows) if not row.disabled), None)
        self._list.highlighted = at
        self._list.scroll_to(*place, animate=False)
        if at is not None:
            self._list.scroll_to_highlight()
        self.query_one("#models-with").display = bool(self._path)
        finding, found = self._finding, len(self._finding.models)
        state = "" if finding.looked or finding.over else "   looking…"
        title = FIRST if self._first else "Models"
        heading = f" {title}   {counted(found, 'model')} on this machine{state}"
        self.query_one("#models-heading", Static).update(sentence(heading, otherwise="models"))
        self._ask()
        self._about()

    def _rows(self, words: tuple[str, ...]) -> Iterator[Option]:
        """Headings and rows that have all the words; nothing to choose while a path is typed."""
        if self._path:
            about = "the file of this path, with the drafter below it; → completes a path, Tab goes on"
            yield option(TYPED, self._path, about)
            return
        finding, present = self._finding, self._chat.program.present
        profiles = [
            option(PROFILE + one.name, one.name, one.words, gone=one.gone(), room=finding.rooms.get(PROFILE + one.name))
            for one in self._profiles.all
            if _has(words, one.name, one.words)
        ]
        target = present.target if present is not None else None
        files = []
        if _has(words, "demo pair"):
            here = present is not None and target is None
            files.append(option(DEMO, "demo pair", "small, comes with the program", present=here))
        files += [
            option(
                FILE + path, one.name, one.where, one, choice=self._choice(path, one),
                room=finding.rooms.get(self._key(path, one)), present=target is not None and str(target) == path,
            )
            for path, one in list(finding.models.items())
            if _has(words, one.name, one.where, one.header.architecture, one.header.title)
        ]  # fmt: skip
        pairs = [
            option(PAIR + one.name, one.name, f"{one.about} · licence: {one.licence or 'not stated'}")
            for one in self._catalogue.pairs.values()
            if _has(words, one.name, one.about, "get fetch")
        ]
        others = passed_over(list(finding.others)) if not words else []
        # What is not offered stands between the others: the list scrolls no further than to its last row.
        lines = [Option(line, disabled=True) for line in others]
        parts = (("Profiles", profiles), ("On this machine", files), ("Not offered", lines), ("To fetch", pairs))
        for heading, rows in parts:
            if rows:
                yield Option(Content.styled(heading, "bold $primary"), disabled=True)
                yield from rows
        if not (profiles or files or pairs):
            yield Option(
                Content("Nothing has these words. A path begins with / or ~, or ends in .gguf."), disabled=True
            )

    def _choice(self, path: str, one: Found) -> Choice | None:
        """The drafter that Enter takes, while it is known which there are."""
        if one.drafters is None:
            return None
        found = choices(one)
        return found[self._drafters.get(path, 0) % len(found)]

    def _draft_of(self, path: str) -> Path | None:
        choice = self._choice(path, self._finding.models[path])
        return choice.draft if choice is not None else None

    def _key(self, path: str, one: Found) -> tuple[str, Path | None]:
        choice = self._choice(path, one)
        return path, choice.draft if choice is not None else None

    def _ask(self) -> None:
        """Have the thread reckon what fits: the row under the cursor first."""
        questions, planned = [], self._chat.program.planned
        for path, one in list(self._finding.models.items()):
            if one.drafters is not None:
                key = self._key(path, one)
                questions.append(Question(key, planned(one.path, key[1])))
        for profile in self._profiles.all:
            if profile.gone() is None:
                request = planned(profile.target, profile.draft, profile.context, profile.kv)
                questions.append(Question(PROFILE + profile.name, request))
        row = self._row.removeprefix(FILE)
        questions.sort(key=lambda one: row not in (one.key, one.key[0] if isinstance(one.key, tuple) else ""))
        self._finding.ask(questions)

    def _about(self) -> None:
        """What is known of the row under the cursor."""
        shown, row = Content(""), self._row
        if not self.has_class("-narrow"):
            if row.startswith(FILE) and (one := self._finding.models.get(row.removeprefix(FILE))) is not None:
                key = self._key(row.removeprefix(FILE), one)
                drafters = choices(one) if one.drafters is not None else []
                shown = beside(one, drafters, self._choice(key[0], one), self._finding.rooms.get(key))
            elif (profile := self._profile) is not None:
                shown = Content.styled(one_line(profile.words).replace(" · ", "\n"), figure(QUOTED))
            elif (pair := self._pair) is not None:
                lines = (pair.about, pair.licence, pair.target.repo, *([pair.draft.repo] if pair.draft else []))
                shown = Content.styled("\n".join(lines), figure(QUOTED))
        self.query_one("#models-about", Static).update(shown)

    @property
    def _profile(self) -> Profile | None:
        return self._profiles.all.get(self._row.removeprefix(PROFILE)) if self._row.startswith(PROFILE) else None

    @property
    def _pair(self) -> Pair | None:
        return self._catalogue.pairs.get(self._row.removeprefix(PAIR)) if self._row.startswith(PAIR) else None

    @on(OptionList.OptionHighlighted)
    def _highlighted(self) -> None:
        self._ask()
        self._about()
        self.refresh_bindings()
        if self._list.highlighted == 1:  # its heading, too
            self._list.scroll_home(animate=False)

    # What is typed

    def take_text(self, event: Key | Paste) -> None:
        """What is typed or pasted over the list goes into the field."""
        if not isinstance(self.focused, Input) and is_text(event):
            self.set_focus(self._field)
            self._field.cursor_position = len(self._field.value)

    @on(Input.Changed, "#models-target")
    def _typed(self) -> None:
        self._draw()

    @on(Input.Submitted)
    def _entered(self) -> None:
        if self._path:
            self._take_typed()
        elif self._row:
            self._choose(self._row)

    def _take_typed(self) -> None:
        if (pair := self._typed_pair()) is not None:
            self._take(*pair)

    def _typed_pair(self) -> tuple[Path, Path | None] | None:
        """The pair of the two fields; None, and said why, where there is none."""
        paths = []
        for text in (self._path, self._draft.value.strip()):
            try:
                paths.append(Path(text).expanduser() if text else None)
            except RuntimeError as error:
                self.say(f"{text}: {error}")
                return None
        target, draft = paths
        assert target is not None, "a path"
        gone = str(target) if not target.exists() else missing(draft) if draft is not None else None
        if gone is not None:
            self.say(f"{gone}: no such file or folder")
            return None
        return target, draft

    # Actions

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """What a key does is offered where it does something: renaming on a profile, another drafter on a file."""
        # Keys are looked at by a timer too: before the widgets are there, and when the first of them is gone.
        there = bool(self.query(_List)) and bool(self.query(_Field))
        row, path = (self._row, self._path) if there else ("", "")
        if action in ("rename", "delete"):
            return row.startswith(PROFILE)
        if action == "drafter":
            return row.startswith(FILE)
        if action in ("plan", "save"):
            return bool(path) or (row != "" and not row.startswith(PAIR))
        return super().check_action(action, parameters)

    @on(OptionList.OptionSelected)
    def _selected(self, event: OptionList.OptionSelected) -> None:
        self._choose(event.option_id or "")

    def _choose(self, row: str) -> None:
        """Enter on a row."""
        if row == DEMO:
            self._take(None, None)
        elif row == TYPED:
            self._take_typed()
        elif row.startswith(FILE) and row.removeprefix(FILE) in self._finding.models:
            path = row.removeprefix(FILE)
            self._take(Path(path), self._draft_of(path))
        elif row.startswith(PROFILE):
            try:
                self._profiles.load(row.removeprefix(PROFILE), self.say, self._leave)
            except DFlashError as error:
                self.say(error)
        elif (pair := self._pair) is not None:
            self.app.push_screen(GetScreen(self._chat, pair), self._fetched)

    def _fetched(self, loading: bool | None) -> None:
        if loading:
            self._leave()

    def _leave(self) -> None:
        """Close, whatever lies over it."""
        if self.is_current:
            self.dismiss()

    def _take(self, target: Path | None, draft: Path | None) -> None:
        self.dismiss()
        self._chat.program.change_model(target, draft, same=self._first and target is None)

    def action_move(self, by: int) -> None:
        """The row above or below, from the field."""
        self._list.action_cursor_down() if by > 0 else self._list.action_cursor_up()

    def action_drafter(self, by: int) -> None:
        """Another drafter for the file under the cursor."""
        path = self._row.removeprefix(FILE)
        one = self._finding.models.get(path)
        if not self._row.startswith(FILE) or one is None:
            self.say("a drafter is chosen for a model file; a profile has its own")
        elif one.drafters is None:
            self.say("its drafters are being looked for")
        else:
            self._drafters[path] = (self._drafters.get(path, 0) + by) % len(choices(one))
            self._draw()

    def _now(self) -> tuple[Path | None, Path | None] | None:
        """The pair that is typed, or under the cursor; None, and said why, where there is none."""
        row = self._row
        if self._path:
            return self._typed_pair()
        if row == DEMO:
            return None, None
        if row.startswith(FILE):
            return Path(row.removeprefix(FILE)), self._draft_of(row.removeprefix(FILE))
        if (profile := self._profile) is not None:
            return profile.target, profile.draft
        self.say("not on this machine yet: Enter asks what it takes to fetch it" if row else "choose a model first")
        return None

    def action_plan(self) -> None:
        """What the pair that is typed, or under the cursor, would take of memory."""
        pair, profile = self._now(), self._profile if not self._path else None
        if pair is None:
            return
        if profile is not None and (gone := profile.gone()):
            self.say(f"{gone} is not there; Enter looks for it elsewhere")
            return
        context, kv = (profile.context, profile.kv) if profile is not None else (None, "")
        self.app.push_screen(PlanScreen(self._chat, *pair, context=context, kv=kv), self._fetched)

    def action_save(self) -> None:
        """Keep the pair under the cursor with the context, cache type and parameters of now."""
        if (pair := self._now()) is None:
            return
        profile = self._profile

        def named(name: str | None) -> None:
            if name is None:
                return
            made, before = self._profiles.of_pair(name, *pair), self._profiles.all
            if name in before and (profile is None or profile.name != name):
                question = f"There is a profile {name}: {before[name].words}."
                self.app.push_screen(
                    ConfirmScreen(question, "replace it", "keep it"), lambda yes: self._kept(made) if yes else None
                )
            else:
                self._kept(made)

        question = "A name for this model with the present context, cache type and parameters"
        self.app.push_screen(LineScreen(question, profile.name if profile else suggested(pair[0])), named)

    def _kept(self, profile: Profile) -> None:
        self._do(lambda: self._profiles.save(profile))

    def _do(self, what: object) -> None:
        assert callable(what)
        try:
            said = str(what())
        except DFlashError as error:
            said = str(error)
        self._draw()
        self.say(said)

    def action_rename(self) -> None:
        """Another name for the profile under the cursor."""
        if (profile := self._profile) is None:
            return

        def named(name: str | None) -> None:
            if name is not None:
                self._do(lambda: self._profiles.rename(profile.name, name))

        self.app.push_screen(LineScreen("A new name", profile.name), named)

    def action_delete(self) -> None:
        """Take the profile under the cursor out; Ctrl+Z brings it back."""
        if (profile := self._profile) is not None:
            self._do(lambda: self._profiles.delete(profile.name))

    def action_undo(self) -> None:
        """Bring back the profile that was deleted or replaced last."""
        self._do(self._profiles.undo)

    def action_help(self) -> None:
        self.app.push_screen(HelpScreen(getattr(self.focused, "HELP", None) or ""))

    def action_back(self) -> None:
        """Esc: from what is typed to the whole list, then to the chat. At the first start that is the demo pair."""
        if self._field.value:
            self._field.value = self._draft.value = ""
            self._list.focus()
            return
        self.dismiss()
        if self._first:
            self._chat.program.change_model(None, None, same=True)

    def _tell_problems(self) -> None:
        if problems := [*self._profiles.all.problems, *self._catalogue.problems]:
            self.notify("\n".join(problems), title="Left out", severity="warning", timeout=10)


def is_path(text: str) -> bool:
    """Whether what is typed is meant as a path, and not as words to look for."""
    return text.startswith(("/", "~", "./", "../")) or text.lower().endswith(".gguf")


def _has(words: tuple[str, ...], *texts: str) -> bool:
    said = " ".join(texts).lower()
    return all(word in said for word in words)


def machine() -> str:
    """What a model could be put into: the memory of this machine, and of its NVIDIA cards."""
    memory = host_memory()
    parts = [f"This machine has {gib(memory.free)} of {gib(memory.total)} free."]
    with suppress(DeviceError), Management() as management:  # no driver, or no card: then there is nothing to say
        parts += [f"{card.name}: {gib(card.free)} of {gib(card.total)} free." for card in management.cards()]
    return " ".join([*parts, "dflash-tui doctor looks closer."])
