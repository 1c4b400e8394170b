"""The slash command for other programs: /serve."""

from __future__ import annotations

from collections.abc import Mapping

from dflash_tui.chat.parts import ChatParts
from dflash_tui.slash.command import Slash, SlashError

PORT = 8080


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
    from dflash_tui.server.settings import ServerSettings, keys_given

    await host.serving.begin(ServerSettings(port=int(rest or PORT), keys=keys_given()))
    host.say(f"programs of this machine can use the model at {host.state.serving}; /requests lists what they ask")


def _words(host: ChatParts) -> Mapping[str, str]:
    return {"off": "end the server"} if host.state.serving else {str(PORT): "the usual port"}


SERVING = (Slash("serve", "/serve [PORT|off]", "let agents and editors use this model over HTTP", _serve, _words),)
