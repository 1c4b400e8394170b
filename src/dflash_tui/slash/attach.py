"""Slash commands for models on servers: /attach, /detach."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from dflash_tui.chat.parts import ChatParts
from dflash_tui.slash.command import Slash, SlashError
from dflash_tui.widgets.note import Note

USAGE = "write /attach URL [MODEL]; alone it lists the servers of this machine. DFLASH_TUI_API_KEY is the key"


async def _attach(host: ChatParts, rest: str) -> None:
    from dflash_tui.application.attach.server import AttachedServer
    from dflash_tui.server.settings import keys_given

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
    await host.transcript.note(Note("\n".join(lines(found)), "/attach URL uses one" if found else "", kind="info"))
    host.say("")


async def _detach(host: ChatParts, rest: str) -> None:
    if rest:
        raise SlashError("write /detach alone")
    host.program.detach()


def _words(host: ChatParts) -> Mapping[str, str]:
    from dflash_tui.application.attach.registry import usual_urls

    return usual_urls()


ATTACH = (
    Slash(
        "attach",
        "/attach [URL [MODEL]]",
        "use the model of a server; alone, list those of this machine",
        _attach,
        _words,
    ),
    Slash("detach", "/detach", "back from a server to the model of this program", _detach),
)
