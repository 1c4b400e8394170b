"""Slash commands for conversations: /export, /import, /rename, /version."""

from __future__ import annotations

from collections.abc import Callable

from dflash_tui.chat.parts import ChatParts
from dflash_tui.slash.command import Slash, SlashError
from dflash_tui.text.pages import KINDS


def _answer(host: ChatParts, command: str) -> Callable[[str | Exception], None]:
    """Says how a command has ended that ran on a worker. If it has failed, it is back in the prompt."""

    def ended(outcome: str | Exception) -> None:
        if isinstance(outcome, Exception):
            host.sending.give_back(command, outcome)
        else:
            host.say(outcome)

    return ended


async def _export(host: ChatParts, rest: str) -> None:
    kind, _, path = rest.partition(" ")
    if kind not in KINDS:
        raise SlashError("write /export md, /export json or /export svg, and a path if you like")
    host.conversation.files.export(kind, path.strip(), None, _answer(host, f"/export {rest}"))


async def _import(host: ChatParts, rest: str) -> None:
    if not rest:
        raise SlashError("write /import FILE, a JSON export of conversations")
    host.conversation.files.import_file(rest, _answer(host, f"/import {rest}"))


async def _rename(host: ChatParts, rest: str) -> None:
    host.say(host.conversation.files.rename(rest))


async def _version(host: ChatParts, rest: str) -> None:
    if rest not in ("", "-", "+"):
        raise SlashError("write /version - for the one before, /version + for the one after")
    await host.conversation.branching.switch(-1 if rest == "-" else 1)


VERSIONS = {"-": "the version before", "+": "the version after"}
CHATS = (
    Slash(
        "export", "/export md|json|svg [PATH]", "write this conversation to a file", _export,
        lambda host: dict.fromkeys(KINDS, ""),
    ),
    Slash("import", "/import FILE", "import the conversations of a JSON export", _import),
    Slash("rename", "/rename TITLE", "name this conversation", _rename),
    Slash("version", "/version -|+", "another version of a message or answer", _version, lambda host: VERSIONS),
)  # fmt: skip
