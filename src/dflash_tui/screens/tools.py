"""Servers of tools and their tools: state, on and off."""

from __future__ import annotations

from rich.cells import cell_len
from textual import on

from dflash_core.clean import one_line
from dflash_core.errors import DFlashError
from dflash_tui.application.advice import at_home
from dflash_tui.application.settings.config import user_file
from dflash_tui.application.tools.offered import needs
from dflash_tui.chat.tools import NONE
from dflash_tui.screens.lab import RowsScreen
from dflash_tui.text.bars import clip
from dflash_tui.widgets.flash import reported
from dflash_tui.widgets.literal import DataTable, row_key

MAX_NAME = 32
BESIDE = 16  # cells of a row beside the name and what it is about


class ToolsScreen(RowsScreen):
    """A row for each server, and below it one for each of its tools."""

    SCOPE = "tools"
    HEADING = "Tools"
    headings = ("server or tool", "state", "about")
    ENTER = ("On or off", "↑ and ↓ choose a server or a tool, Enter turns it on or off.")
    AUTO_FOCUS = "#tools-list"

    def words(self) -> str:
        try:
            needs()
        except DFlashError as error:
            return str(error)
        if not self.chat.state.settings.servers:
            none = at_home(NONE.format(path=user_file()))
            return f"{none[:1].upper()}{none[1:]}."
        session = self.chat.state.session
        note = session.conversation.tools_note if session is not None else ""
        usual = "A call is shown and asked about first, unless it is allowed."
        return f"{usual} {note[:1].upper()}{note[1:]}." if note else usual

    def cells(self) -> dict[str, tuple[str, ...]]:
        rows: dict[str, tuple[str, str, str]] = {}
        tools = self.chat.tools
        for server in self.chat.state.settings.servers:
            connection = tools.servers.connections.get(server.name) if tools.servers is not None else None
            allowed = tools.permissions.shown(server.name)
            about = f"allowed: {allowed}" if allowed else server.where
            if tools.servers is None or connection is None:
                rows[server.name] = server.name, "off", about
                continue
            rows[server.name] = server.name, connection.state, connection.why if connection.state == "failed" else about
            for tool in connection.tools:
                state = "offered" if tools.servers.offers(tool) else "off"
                rows[f"{server.name}:{tool.own}"] = f"  {one_line(tool.own)}", state, tool.description
            for place, left in enumerate(connection.left_out):
                rows[f"{server.name}::{place}"] = f"  {left.name}", "left out", left.why
        # What does not fit is cut, not scrolled to: the page has no keys for that.
        names = [clip(cells[0], MAX_NAME) for cells in rows.values()]
        width = max(self.text_width - BESIDE - max(map(cell_len, names), default=0), 0)
        shown = zip(rows.items(), names)
        return {key: (name, state, clip(one_line(about), width)) for (key, (_, state, about)), name in shown}

    @on(DataTable.RowSelected)
    async def _chosen(self, event: DataTable.RowSelected) -> None:
        """Enter: the server or the tool under the cursor, on or off."""
        key, tools = row_key(event) or "", self.chat.tools
        connections = tools.servers.connections if tools.servers is not None else {}
        with reported(self.say):
            if key in {server.name for server in self.chat.state.settings.servers}:
                running = key in connections and connections[key].state in ("on", "starting")
                await (tools.end([key]) if running else tools.start([key]))
            elif tools.servers is not None:
                for tool in (tool for one in connections.values() for tool in one.tools):
                    if key == f"{tool.server}:{tool.own}":
                        tools.servers.toggle_tool(tool)
        self.draw()
