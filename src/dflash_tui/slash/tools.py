"""The slash command for tools of MCP servers: /tools."""

from __future__ import annotations

from collections.abc import Mapping

from dflash_tui.chat.parts import ChatParts
from dflash_tui.slash.command import Slash, SlashError


async def _tools(host: ChatParts, rest: str) -> None:
    words = rest.split()
    known = [one.name for one in host.state.settings.servers]
    if not words:
        host.open_page("tools")
    elif words[0] not in ("on", "off") or len(words) > 2:
        raise SlashError("write /tools, /tools on [SERVER] or /tools off [SERVER]")
    elif words[0] == "on":
        await host.tools.start(words[1:] or known)
    else:
        await host.tools.end(words[1:] or known)
        host.say(f"ended: {', '.join(words[1:] or known)}")


def _words(host: ChatParts) -> Mapping[str, str]:
    return {"on": "start the servers of the settings, or the one named", "off": "end them"}


TOOLS = (Slash("tools", "/tools [on|off] [SERVER]", "tools of MCP servers that the model may call", _tools, _words),)
