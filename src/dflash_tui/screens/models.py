"""Choose a model: profiles, models on this machine, models to fetch, or a path. The first start begins here.

Text typed or pasted over the list goes into the field above it: words filter the list, a path is a model.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from textual import getters, on
from textual.app import ComposeResult
from textual.containers import Container, Horizontal, VerticalScroll
from textual.content import Content
from textual.events import Key, Paste
from textual.screen import Screen
from textual.widgets import Input

from dflash_core.errors import DFlashError
from dflash_tui.application.amounts import counted
from dflash_tui.application.finding import Finding
from dflash_tui.application.hub.catalogue import Catalogue, Pair, load_catalogue
from dflash_tui.application.hub.fitting import fit_check, machine
from dflash_tui.application.hub.walk import places
from dflash_tui.application.new_file import typed_pair
from dflash_tui.application.settings.presets import Profile
from dflash_tui.chat.offered import (
    DEMO,
    FILE,
    PAIR,
    PROFILE,
    TYPED,
    DraftField,
    ModelField,
    ModelList,
    Offered,
    Paths,
    typed,
)
from dflash_tui.chat.parts import ChatParts
from dflash_tui.screens.get import GetScreen
from dflash_tui.screens.page import Page
from dflash_tui.screens.plan import PlanScreen
from dflash_tui.terminal.key_order import is_text
from dflash_tui.widgets.dialogs import ask_line
from dflash_tui.widgets.flash import Flash, reported
from dflash_tui.widgets.key_line import KeyLine
from dflash_tui.widgets.literal import OptionList, Static

FIRST = "Welcome. Which model should answer?"
LOOK_S = 0.15


class ModelsScreen(Page):
    """`first`: the first start; Esc then takes the demo pair, and the app does not ask again. `only`: the
    words that filter the list at first."""

    SCOPE = "models"

    def __init__(self, chat: ChatParts, only: str = "", *, first: bool = False) -> None:
        super().__init__(chat)
        self._first, self._only = first, only
        self._catalogue: Catalogue = load_catalogue()
        self._finding = Finding(lambda: places(chat.state.settings.model_folders), chat.program.releasable, fit_check)
        self._offered = Offered(chat.program, self._catalogue, self._finding, chat.downloads)
        self._seen, self._shown = -1, self._outside
        self._reported = False  # the reason for an incomplete search has been shown

    def compose(self) -> ComposeResult:
        with Container(id="models"):
            yield Static("", id="models-heading")
            yield Static(machine(), id="models-machine")
            with Horizontal(id="models-line"):
                yield Static(" ❯", id="models-mark")
                yield ModelField(
                    self._only,
                    placeholder="words to look for, or the path of a GGUF file",
                    id="models-target",
                    suggester=Paths(drafts=False),
                    select_on_focus=False,
                    compact=True,
                )
            with Horizontal(id="models-with"):
                yield Static(" +", id="models-plus")
                yield DraftField(
                    placeholder="its drafter: a file, a folder or ngram; empty takes what comes with the model",
                    id="models-draft",
                    suggester=Paths(drafts=True),
                    compact=True,
                )
            with Horizontal(id="models-body"):
                yield ModelList(id="models-list", compact=True)
                with VerticalScroll(id="models-beside", can_focus=False):
                    yield Static("", id="models-about")
            yield KeyLine()
        yield Flash()

    def on_mount(self) -> None:
        self.chat.state.presets.read()
        self.call_after_refresh(self._tell_problems)
        self._finding.start()
        self._draw()
        self._list.focus()
        self.set_interval(LOOK_S, self._look)

    def on_unmount(self) -> None:
        self._finding.stop()

    def resized(self) -> None:
        self._draw()

    # The list

    _list, _field = getters.query_one(ModelList), getters.query_one(ModelField)

    @property
    def _outside(self) -> tuple[object, ...]:
        """What rows show of the loaded pair and of downloads."""
        return self.chat.state.present, *(one.words for one in self.chat.downloads)

    def _look(self) -> None:
        """Redraw if the thread has found more, another pair is loaded, or a download has progressed."""
        if (self._finding.changes, self._outside) != (self._seen, self._shown):
            self._seen, self._shown = self._finding.changes, self._outside
            self._draw()
        if self._finding.over and self._finding.error is not None and not self._reported:
            self._reported = True
            self.say(f"not all places could be searched: {self._finding.error}")

    def _draw(self) -> None:
        """Draw the rows; while a path is typed it is the only row."""
        if self._field.path:
            self._list.show_rows([typed(self._field.path)])
        else:
            self._list.show_rows(list(self._offered.rows(self._field.words)))
        self.query_one("#models-with").display = bool(self._field.path)
        finding, found = self._finding, len(self._finding.models)
        done = finding.looked or finding.over
        here = f"{counted(found, 'model')} on this machine" if found else "only the demo pair is here" if done else ""
        title = FIRST if self._first else "Models"
        counts = f"   {here}{'' if done else '   looking…' if here else 'looking…'}"
        self.query_one("#models-heading", Static).update(Content.assemble((f" {title}", "bold $primary"), counts))
        self._about()

    def _about(self) -> None:
        """Show the details of the row under the cursor, and find out whether it fits."""
        self._offered.ask(self._list.row)
        shown = Content("") if self.has_class("-narrow") else self._offered.about(self._list.row)
        self.query_one("#models-about", Static).update(shown)

    @on(OptionList.OptionHighlighted)
    def _highlighted(self) -> None:
        self._about()
        self.refresh_bindings()
        if self._list.highlighted == 1:  # its heading, too
            self._list.scroll_home(animate=False)

    # What is typed

    def take_text(self, event: Key | Paste) -> None:
        """Text typed or pasted over the list goes into the field."""
        if not isinstance(self.focused, Input) and is_text(event):
            self.set_focus(self._field)
            self._field.cursor_position = len(self._field.value)

    @on(Input.Changed, "#models-target")
    def _typed(self) -> None:
        self._draw()

    @on(Input.Submitted)
    def _entered(self) -> None:
        if self._field.path or self._list.row:
            self._choose(TYPED if self._field.path else self._list.row)

    # Actions

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """A key is offered only where it has an effect: renaming on a profile, another drafter on a file."""
        # A timer calls this too, also before the widgets are mounted and after some of them are removed.
        there = bool(self.query(ModelList)) and bool(self.query(ModelField))
        row, path = (self._list.row, self._field.path) if there else ("", "")
        if action in ("rename", "delete"):
            return row.startswith(PROFILE)
        if action == "drafter":
            one = self._offered.found(row)
            return one is not None and one.drafters is not None
        if action == "plan" and (pair := self._offered.pair(row) if there else None) is not None:
            return bool(path) or bool(pair.shapes)
        if action in ("plan", "save"):
            return bool(path) or (row != "" and not row.startswith(PAIR))
        return super().check_action(action, parameters)

    def hint(self, action: str, label: str) -> str:
        if action == "back":
            return "Whole list" if self._field.value else "Demo pair" if self._first else label
        if action == "undo":
            return label if self.chat.profiles.before else ""
        if action == "plan" and self._list.row.startswith(PROFILE) and not self._field.path:
            return label if self._list.row in self._finding.fits else ""  # no plan is computed for missing files
        return label

    @on(OptionList.OptionSelected)
    def _selected(self, event: OptionList.OptionSelected) -> None:
        self._choose(event.option_id or "")

    def _choose(self, row: str) -> None:
        if (pair := self._offered.pair(row)) is not None:
            self._open(pair)
        elif row.startswith(PROFILE):
            with reported(self.say):
                self.chat.profiles.load(row.removeprefix(PROFILE), self.say, self._leave)
        elif (here := self._now(row)) is not None:
            self.dismiss()
            self.chat.program.change_model(*here, same=self._first and row == DEMO)

    def _open(self, pair: Pair) -> None:
        self.app.push_screen(GetScreen(self.chat, pair), self._fetched)

    def action_download(self) -> None:
        it = self.chat.downloads.next
        if it is None:
            self.say("no download runs; Enter on a model that can be fetched begins one")
        else:
            self._open(it.pair)

    def _fetched(self, loading: bool | None) -> None:
        if loading:
            self._leave()

    def _leave(self) -> None:
        """Close this screen, unless another covers it."""
        if self.is_current:
            self.dismiss()

    def action_move(self, by: int) -> None:
        self._list.action_cursor_down() if by > 0 else self._list.action_cursor_up()

    def action_drafter(self, by: int) -> None:
        if (one := self._offered.found(self._list.row)) is not None and one.drafters is not None:
            self._offered.change_draft(self._list.row.removeprefix(FILE), by)
            self._draw()

    def _now(self, row: str) -> tuple[Path | None, Path | None] | None:
        """The typed pair, or that of a row; None, after a notice that says why, if there is none."""
        if self._field.path:
            try:
                return typed_pair(self._field.path, self.query_one(DraftField).value.strip())
            except DFlashError as error:
                self.say(error)
                return None
        if row == DEMO:
            return None, None
        if self._offered.found(row) is not None:
            return Path(row.removeprefix(FILE)), self._offered.draft(row.removeprefix(FILE))
        if (profile := self._offered.profile(row)) is not None:
            return profile.target, profile.draft
        self.say("not on this machine yet: Enter shows its size before a download" if row else "choose a model first")
        return None

    @property
    def _profile(self) -> Profile | None:
        return self._offered.profile(self._list.row)

    def action_plan(self) -> None:
        profile = self._profile if not self._field.path else None
        if not self._field.path and (unfetched := self._offered.pair(self._list.row)) is not None:
            screen = PlanScreen(self.chat, None, None, unfetched=unfetched)
            self.app.push_screen(screen, lambda agreed: self._open(unfetched) if agreed else None)
        elif profile is not None and (gone := profile.gone()):
            self.say(f"{gone} is not there; Enter looks for it elsewhere")
        elif (pair := self._now(self._list.row)) is not None:
            context, kv = (profile.context, profile.kv) if profile is not None else (None, "")
            self.app.push_screen(PlanScreen(self.chat, *pair, context=context, kv=kv), self._fetched)

    def action_save(self) -> None:
        if (pair := self._now(self._list.row)) is not None:
            self.chat.profiles.ask_to_save(self, pair, self._profile, self._changed)

    def _changed(self, message: str | Exception) -> None:
        """The profiles have changed, or could not be changed; `message` tells which."""
        self._draw()
        self.say(message)

    def action_rename(self) -> None:
        if (profile := self._profile) is not None:
            rename, name = self.chat.profiles.rename, profile.name
            ask_line(self.app, "A new name", name, lambda to: rename(name, to), self._changed)

    def action_delete(self) -> None:
        if (profile := self._profile) is not None:
            with reported(self._changed):
                self._changed(self.chat.profiles.delete(profile.name))

    def action_undo(self) -> None:
        with reported(self._changed):
            self._changed(self.chat.profiles.undo())

    def action_back(self) -> None:
        """Esc: clear the field to show the whole list, then return to the chat; a first start takes the demo pair."""
        if self._field.value:
            self._field.value = self.query_one(DraftField).value = ""
            self._list.focus()
            return
        self.dismiss()
        if self._first:
            self.chat.program.change_model(None, None, same=True)

    def _tell_problems(self) -> None:
        if problems := [*self.chat.state.presets.problems, *self._catalogue.problems]:
            self.notify("\n".join(problems), title="Left out", severity="warning", timeout=10)


def get_page(chat: ChatParts, name: str) -> Screen[Any]:
    """The dialog that fetches the pair of that name; the models of the catalogue where it names none."""
    begun = chat.downloads.of(name)
    pair = begun.pair if begun is not None else load_catalogue().pairs.get(name)
    return ModelsScreen(chat, name or "get") if pair is None else GetScreen(chat, pair)
