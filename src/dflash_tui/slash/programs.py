"""Slash commands for other programs: servers of models, our own server, servers of tools."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from dflash_tui.application.attach.server import AttachedServer
from dflash_tui.chat.parts import ChatParts
from dflash_tui.server.settings import ServerSettings, keys_given
from dflash_tui.slash.command import Slash, SlashError
from dflash_tui.widgets.flash import Note

PORT = 8080
USAGE = "write /attach URL [MODEL]; alone it lists the servers of this machine. DFLASH_TUI_API_KEY is the key"


async def _attach(host: ChatParts, rest: str) -> None:
    match rest.split():
        case []:
            host.screen.run_worker(_list(host), group="attach", exclusive=True)
            host.say("looking at the usual ports of this machine…")
        case [url, *model] if len(model) <= 1:
            server = AttachedServer(url)  # refuses what is no address
            request = host.state.request
            known = request.attach_key if AttachedServer(request.attach or url).url == server.url else ""
            host.program.attach(server.url, known or next(iter(keys_given()), ""), "".join(model))
        case _:
            raise SlashError(USAGE)


async def _list(host: ChatParts) -> None:
    from dflash_tui.application.attach.local import find, lines

    found = [one for one in await asyncio.to_thread(find) if one.url != host.state.serving]
    await host.transcript.mount(Note("\n".join(lines(found)), "/attach URL uses one" if found else "", kind="info"))
    host.say("")


async def _detach(host: ChatParts, rest: str) -> None:
    if rest:
        raise SlashError("write /detach alone")
    host.program.detach()


def _servers(host: ChatParts) -> Mapping[str, str]:
    from dflash_tui.application.attach.registry import usual_urls

    return usual_urls()


async def _serve(host: ChatParts, rest: str) -> None:
    if rest == "off":
        await host.serving.end()
        host.say("other programs cannot use the model any more")
        return
    if not rest and host.state.serving:
        host.open_page("requests")
        return
    if rest and not (rest.isascii() and rest.isdigit() and int(rest) < 65_536):
        raise SlashError("write /serve, /serve PORT (0: any that is free) or /serve off")
    await host.serving.begin(ServerSettings(port=int(rest or PORT), keys=keys_given()))
    host.say(f"programs of this machine can use the model at {host.state.serving}; /requests lists what they ask")


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


ON_OFF = {"on": "start the servers of the settings, or the one named", "off": "end them"}
PROGRAMS = (
    Slash(
        "serve", "/serve [PORT|off]", "let agents and editors use this model over HTTP", _serve,
        lambda host: {"off": "end the server"} if host.state.serving else {str(PORT): "the usual port"},
    ),
    Slash(
        "tools", "/tools [on|off] [SERVER]", "tools of MCP servers that the model may call", _tools,
        lambda host: ON_OFF,
    ),
    Slash(
        "attach", "/attach [URL [MODEL]]", "use the model of a server; alone, list those of this machine", _attach,
        _servers,
    ),
    Slash("detach", "/detach", "back from a server to the model of this program", _detach),
)  # fmt: skip
