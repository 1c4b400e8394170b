"""Rename, export and import of conversations, shared by the chat and the list of conversations."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from tempfile import gettempdir

from dflash_core.errors import DFlashError
from dflash_tui.application.background import aside
from dflash_tui.application.conversations.exchange import file_name, from_file, import_file
from dflash_tui.application.conversations.store import Card
from dflash_tui.application.new_file import new_path, unwritable, why
from dflash_tui.chat.controller import Controller
from dflash_tui.text.pages import KINDS, render
from dflash_tui.widgets.dialogs import ask_line
from dflash_tui.widgets.flash import reported
from dflash_tui.widgets.strip import TitleRow

Say = Callable[[str | Exception], None]


class ConversationFiles(Controller):
    """Each method takes a conversation; without one it acts on the present one."""

    _reported = False  # that the disk refuses conversations

    def show_title(self) -> None:
        """Title and system message, in the row at the top; on the page of an empty conversation the last one."""
        current, row = self.state.conversation, self.screen.query_one(TitleRow)
        if current.card is None:
            self.transcript.start.offer(current.store.newest())
        row.conversation, row.system = current.card.title if current.card is not None else "", current.system

    def tell_problems(self) -> None:
        """Say once what is wrong with the disk; if it takes no conversation, other problems follow from that."""
        past, current = self.state.past, self.state.conversation
        problems = [*current.problems(), *filter(None, [past.problem])]
        past.problem, refuses = "", not current.store.on_disk
        if refuses:
            problems = [] if self._reported else problems[:1]
        self._reported = refuses
        for problem in problems:
            self.screen.notify(problem, title="Data folder", severity="warning", timeout=15)

    def rename(self, title: str, card: Card | None = None) -> str:
        """Rename a conversation, the present one if none is given; tells the user. Raises DFlashError."""
        self.state.conversation.rename(title, card.id if card is not None else None)
        self.show_title()
        return f"renamed: {title}"

    def ask_title(self, card: Card | None = None, then: Say | None = None) -> None:
        """Let the user type another title. `then` gets the message to show."""
        card = card or self.state.conversation.card
        title = card.title if card is not None else ""
        ask_line(self.screen.app, "A new title", title, lambda title: self.rename(title, card), then or self.say)

    def ask_file(self, card: Card | None = None, then: Say | None = None) -> None:
        """Let the user type where to export to. `then` gets the message to show."""
        say = then or self.say

        def export(name: str) -> None:
            kind = name.rpartition(".")[2]
            if name and kind not in KINDS:
                raise DFlashError(f"{name}: expected a name that ends in .md, .json or .svg")
            if name:
                self.export(kind, name if name != kind else "", card, say)

        ask_line(self.screen.app, "A file .md, .json or .svg, or just the format", "md", export, say)

    def export(self, kind: str, name: str, card: Card | None, then: Say) -> None:
        """Write a conversation, the present one if none is given, to a new file, on a worker. `then` gets the message:
        where it is, or why it is not. Raises DFlashError if there is nothing to write, or no such file can be made.

        Without a name, the file is named after the title, in the folder in which the program was started.
        """
        card = card or self.state.conversation.card
        if card is None:
            raise DFlashError("nothing to export yet")
        path = _new(name, card, kind)

        async def write() -> None:
            try:
                with reported(then):
                    then(await aside(lambda: self._fill(path, card, kind)))
            except asyncio.CancelledError:  # the app ends
                path.unlink(missing_ok=True)
                raise

        self.screen.run_worker(write(), group="export")

    def _fill(self, path: Path, card: Card, kind: str) -> str:
        """Write a conversation to its new file, which is removed if that fails; says where. Raises DFlashError."""
        try:
            data = render([self.state.conversation.whole(card, records=kind == "json")], kind)
            with path.open("r+b") as file:  # not by a second file, which an app that ends meanwhile would leave
                file.write(data)
        except BaseException as error:
            path.unlink(missing_ok=True)
            raise unwritable(path.name, error) if isinstance(error, OSError) else error from None
        return f"written: {path}"

    def elsewhere(self) -> str:
        """Write the present conversation to the folder of temporary files, because the disk of the store refuses it."""
        card = self.state.conversation.card
        if card is None:
            return ""
        try:
            path = _new(str(_free(Path(gettempdir()) / "conversation.json")), card, "json")
            return "the conversation " + self._fill(path, card, "json")
        except DFlashError as error:
            return str(error)

    def import_file(self, name: str, then: Say) -> None:
        """Start to import the conversations of a JSON export, on a worker. `then` gets the message: how many, or why
        none. Raises DFlashError if there is no file."""
        try:
            file = Path(name).expanduser()
            file.stat()
        except (OSError, RuntimeError) as error:
            raise _unreadable(name, error) from None
        self.screen.run_worker(self._bring_in(file, then), group="import")

    async def _bring_in(self, file: Path, then: Say) -> None:
        loop = asyncio.get_running_loop()

        def show_progress(share: float) -> None:
            """Called on the writing thread. Must not block: the app may wait for that thread's lock."""
            with contextlib.suppress(RuntimeError):  # the app has ended
                loop.call_soon_threadsafe(self.say, f"importing {file.name}: {share:.0%}")

        def take_in() -> int:
            found = from_file(file)
            for one in found:
                import_file(self.state.conversation.store, one, show_progress)
            return len(found)

        try:
            message: str | Exception = f"conversations imported: {await aside(take_in)}; Ctrl+O lists them"
        except DFlashError as error:
            message = error
        except OSError as error:
            message = _unreadable(str(file), error)
        self.tell_problems()
        then(message)


def _new(name: str, card: Card, kind: str) -> Path:
    """The path of a new empty file of this name, or of one after the title. Raises DFlashError."""
    path = new_path(name) if name else _free(Path(file_name(card, kind)))
    try:
        path.open("xb").close()
        return path.absolute()
    except OSError as error:
        raise unwritable(name or "the file", error) from None


def _unreadable(name: str, error: Exception) -> DFlashError:
    return DFlashError(f"{name} cannot be read: {why(error)}; name a JSON file that an export has written")


def _free(path: Path) -> Path:
    """`path`, with a number added if the file exists already."""
    names = (path.with_stem(f"{path.stem}-{number}") for number in range(2, 10_000))
    return path if not path.exists() else next(name for name in names if not name.exists())
