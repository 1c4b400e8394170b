"""Servers of tools and their tools: state, on and off."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from rich.cells import cell_len
from textual import on
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.widget import Widget

from dflash_core.clean import one_line
from dflash_core.errors import DFlashError
from dflash_tui.application.settings.config import user_file
from dflash_tui.application.tools.offered import needs
from dflash_tui.chat.tools import NONE
from dflash_tui.screens.lab import LabScreen
from dflash_tui.settings.keys import bindings
from dflash_tui.text.bars import clip
from dflash_tui.widgets.literal import DataTable, Static, row_key

UPDATE_S = 0.3
MAX_NAME = 32
BESIDE = 16  # cells of a row beside the name and what it is about
HEADINGS = ("server or tool", "state", "about")
SERVER, TOOL = "server:", "tool:"


class ToolsScreen(LabScreen):
    """A row for each server, and below it one for each of its tools."""

    SCOPE: ClassVar[str] = "tools"
    HEADING: ClassVar[str] = "Tools"
    WIDTH: ClassVar[int] = 140
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(SCOPE)]
    AUTO_FOCUS = "#tools-list"

    def body(self) -> Iterable[Widget]:
        yield Static("", id="tools-words")
        yield Vertical(_List(id="tools-list"), classes="lab-body")

    def on_mount(self) -> None:
        super().on_mount()
        self.query_one(_List).add_headings(HEADINGS)
        self.set_interval(UPDATE_S, self.draw)

    def draw(self) -> None:
        self.query_one("#tools-words", Static).update(self._words())
        self.query_one(_List).refill(self._now())

    def _words(self) -> str:
        settings = self.chat.state.settings
        try:
            needs()
        except DFlashError as error:
            return str(error)
        if not settings.servers:
            return NONE.format(path=user_file())
        session = self.chat.state.session
        note = session.conversation.tools_note if session is not None else ""
        usual = "A call is shown and asked about first, unless it is allowed."
        return f"{usual} {note[:1].upper()}{note[1:]}." if note else usual

    def _now(self) -> dict[str, tuple[str, ...]]:
        """The cells of each row, by its key."""
        rows: dict[str, tuple[str, str, str]] = {}
        tools = self.chat.tools
        for server in self.chat.state.settings.servers:
            connection = tools.servers.connections.get(server.name) if tools.servers is not None else None
            allowed = tools.permissions.shown(server.name)
            state, about = "off", f"allowed: {allowed}" if allowed else server.where
            if connection is not None:
                state = connection.state
                about = connection.why if state == "failed" else about
            rows[SERVER + server.name] = server.name, state, about
            for tool in connection.tools if connection is not None else ():
                offered = tools.servers is not None and tools.servers.offers(tool)
                cells = f"  {one_line(tool.own)}", "offered" if offered else "off", tool.description
                rows[f"{TOOL}{server.name}:{tool.own}"] = cells
            for place, left in enumerate(connection.left_out if connection is not None else ()):
                rows[f"left:{server.name}:{place}"] = f"  {left.name}", "left out", left.why
        # What does not fit is cut, not scrolled to: the page has no keys for that.
        names = [clip(cells[0], MAX_NAME) for cells in rows.values()]
        width = max(self.text_width - BESIDE - max(map(cell_len, names), default=0), 0)
        return {
            key: (clip(name, MAX_NAME), state, clip(one_line(about), width))
            for key, (name, state, about) in rows.items()
        }

    @on(DataTable.RowSelected)
    async def _chosen(self, event: DataTable.RowSelected) -> None:
        """Enter: the server or the tool under the cursor, on or off."""
        key, tools = row_key(event) or "", self.chat.tools
        try:
            if key.startswith(SERVER):
                name = key.removeprefix(SERVER)
                connection = tools.servers.connections.get(name) if tools.servers is not None else None
                running = connection is not None and connection.state in ("on", "starting")
                await (tools.end([name]) if running else tools.start([name]))
            elif tools.servers is not None:
                for connection in tools.servers.connections.values():
                    for tool in connection.tools:
                        if key == f"{TOOL}{tool.server}:{tool.own}":
                            tools.servers.toggle_tool(tool)
        except DFlashError as error:
            self.say(error)
        self.draw()


class _List(DataTable):
    """Servers and their tools."""

    HELP = "↑ and ↓ choose a server or a tool, Enter turns it on or off."
    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "select_cursor", "On or off")]
