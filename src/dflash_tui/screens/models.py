"""Which model: the demo pair, a file that lies near, or a path that is typed. The first start begins here."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.events import Key, Paste
from textual.screen import ModalScreen
from textual.suggester import Suggester
from textual.widgets import Input
from textual.widgets.option_list import Option

from dflash_core.clean import one_line
from dflash_core.drafters.registry import missing
from dflash_core.errors import DeviceError
from dflash_core.memory import gib, host_memory
from dflash_core.nvml import Management
from dflash_tui.chat.host import ChatHost
from dflash_tui.screens.plan import PlanScreen
from dflash_tui.terminal.key_order import is_text
from dflash_tui.widgets.literal import OptionList, Static

FIRST = "Welcome. Which model should answer?"
DEMO = "demo pair"
NEAR = 30  # files that are listed at most


class Paths(Suggester):
    """Completes a path from what is in its folder."""

    def __init__(self, *, drafts: bool) -> None:
        super().__init__(use_cache=False, case_sensitive=True)
        self._ends = (".gguf", "/", ".safetensors") if drafts else (".gguf", "/")

    async def get_suggestion(self, value: str) -> str | None:
        """The first entry that goes on from `value`: a folder, or a file that may be a model."""
        folder, _, start = value.rpartition("/")
        try:
            where = Path(folder + "/" if value.startswith("/") else folder or ".").expanduser()
            names = sorted(one.name + "/" * one.is_dir() for one in where.iterdir() if one.name.startswith(start))
        except (OSError, RuntimeError):
            return None
        found = next((name for name in names if name.endswith(self._ends) and not name.startswith(".")), None)
        return None if found is None else value[: len(value) - len(start)] + found


class ModelsScreen(ModalScreen[None]):
    """Enter in the list or in a path takes it; the choice is remembered for the next start."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape", "back", "Back"), ("f5", "plan", "Memory")]

    def __init__(self, chat: ChatHost, *, first: bool = False) -> None:
        super().__init__()
        self._chat, self._first = chat, first
        self._files = nearby(Path.cwd())
        self._target = Input(
            placeholder="or the path of a GGUF file",
            id="models-target",
            suggester=Paths(drafts=False),
            select_on_focus=False,
        )
        self._draft = Input(
            placeholder="its drafter: a file or a folder, or text; empty is plain decoding",
            id="models-draft",
            suggester=Paths(drafts=True),
        )

    def compose(self) -> ComposeResult:
        with Vertical(id="models", classes="dialog"):
            yield Static(FIRST if self._first else "Which model?", id="models-title")
            yield Static(machine(), id="models-machine")
            options = [Option("demo pair: small, comes with the program", id=DEMO)]
            options += [
                Option(f"{one_line(path.name)}  {gib(path.stat().st_size)}", id=str(path)) for path in self._files
            ]
            yield OptionList(*options)
            yield self._target
            yield self._draft
            yield Static("", id="models-problem")
            yield Static(
                Content.assemble(
                    ("Enter", "bold $accent"), " takes it   ", ("Tab", "bold $accent"), " next field   ",
                    ("→", "bold $accent"), " completes   ", ("F5", "bold $accent"), " what it takes   ",
                    ("Esc", "bold $accent"), " back",
                )
            )  # fmt: skip

    def on_mount(self) -> None:
        self.query_one(OptionList).focus()

    def take_text(self, event: Key | Paste) -> None:
        """What is typed or pasted over the list is a path."""
        if not isinstance(self.focused, Input) and is_text(event):
            self.set_focus(self._target)
            self._target.cursor_position = len(self._target.value)

    @on(OptionList.OptionSelected)
    def _chosen(self, event: OptionList.OptionSelected) -> None:
        if event.option_id == DEMO:
            self._take(None, None)
            return
        # The drafter is not known from the file; a folder beside it is offered where there is one.
        self._target.value = event.option_id or ""
        self._draft.focus()

    @on(Input.Submitted)
    def _entered(self) -> None:
        if (pair := self._typed()) is not None:
            self._take(*pair)

    def action_plan(self) -> None:
        """What the pair that is typed, or under the cursor, would take of memory."""
        options = self.query_one(OptionList)
        marked = options.highlighted_option if options.has_focus else None
        if marked is not None and not self._target.value.strip():
            named = None if marked.id == DEMO else Path(marked.id or "")
            pair: tuple[Path | None, Path | None] | None = (named, None)
        else:
            pair = self._typed()
        if pair is not None:
            self.app.push_screen(PlanScreen(self._chat, *pair), self._planned)

    def _planned(self, loaded: bool | None) -> None:
        if loaded:
            self.dismiss()

    def _typed(self) -> tuple[Path, Path | None] | None:
        """The pair of the two fields; None, and said why, where there is none."""
        target, draft = (field.value.strip() for field in (self._target, self._draft))
        paths = []
        for text in (target, draft):
            try:
                paths.append(Path(text).expanduser() if text else None)
            except RuntimeError as error:
                self._refuse(f"{text}: {error}")
                return None
        gone = str(paths[0]) if paths[0] is not None and not paths[0].exists() else None
        gone = gone or (missing(paths[1]) if paths[1] is not None else None)
        if gone is not None:
            self._refuse(f"{gone}: no such file or folder")
        elif paths[0] is None:
            self._refuse("no path yet; choose from the list, or type one")
        else:
            return paths[0], paths[1]
        return None

    def _refuse(self, why: str) -> None:
        self.query_one("#models-problem", Static).update(one_line(why))

    def _take(self, target: Path | None, draft: Path | None) -> None:
        self.dismiss()
        self._chat.program.change_model(target, draft, same=self._first and target is None)

    def action_back(self) -> None:
        """Esc: what was there stays; at the first start that is the demo pair."""
        self.dismiss()
        if self._first:
            self._chat.program.change_model(None, None, same=True)


def machine() -> str:
    """What a model could be put into: the memory of this machine, and of its NVIDIA cards."""
    memory = host_memory()
    parts = [f"This machine has {gib(memory.free)} of {gib(memory.total)} free."]
    with suppress(DeviceError), Management() as management:  # no driver, or no card: then there is nothing to say
        parts += [f"{card.name}: {gib(card.free)} of {gib(card.total)} free." for card in management.cards()]
    return " ".join([*parts, "dflash-tui doctor looks closer."])


def nearby(folder: Path) -> list[Path]:
    """GGUF files of a folder and of its folders, by name. A drafter among them is refused when it is loaded."""
    found: list[Path] = []
    for pattern in ("*.gguf", "*/*.gguf"):
        try:
            found += sorted(path for path in folder.glob(pattern) if path.is_file())
        except OSError:
            continue
    return found[:NEAR]
