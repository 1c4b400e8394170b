"""Slash commands: `/set budget 32`, `/retry`, … A message may begin with a slash when it is doubled."""

from __future__ import annotations

import difflib
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from dflash_core.errors import KnobError
from dflash_core.knobs import SPEC, SPECS, parse_settings

_COMMAND = re.compile(r"/([A-Za-z_][\w-]*)(?:\s+(.*))?", re.DOTALL)


class Commands(Protocol):
    """What a command may do: methods of the chat screen."""

    def action_help(self) -> None: ...
    async def action_clear(self) -> None: ...
    async def action_retry(self) -> None: ...
    def action_copy(self) -> None: ...
    def action_reset(self) -> None: ...
    def quit(self) -> None: ...
    def set_knobs(self, **changes: int | float | bool | str) -> None: ...
    def say(self, text: str) -> None: ...


class SlashError(Exception):
    """A command that cannot be done as typed; the text says what is possible."""


@dataclass(frozen=True, slots=True)
class Slash:
    """A command, how it is written, what it does."""

    name: str
    usage: str
    help: str
    run: Callable[[Commands, str], Awaitable[None]]


def is_command(text: str) -> bool:
    """`/name …` is a command; `/a/path` and `//text` are messages."""
    word = text.strip().split(maxsplit=1)[0] if text.strip() else ""
    return word.startswith("/") and _COMMAND.fullmatch(word) is not None


def as_message(text: str) -> str:
    """What is sent for text that is no command: a doubled slash loses one."""
    return text[1:] if text.startswith("//") else text


async def run(text: str, host: Commands) -> None:
    """Do a command. Raises SlashError for one that is unknown or wrongly used; nothing has happened then."""
    match = _COMMAND.fullmatch(text.strip())
    if match is None:
        raise SlashError(f"not a command: {text.strip()}; /help lists them")
    name, rest = match[1].lower(), (match[2] or "").strip()
    if name not in SLASH:
        near = difflib.get_close_matches(name, list(SLASH), n=1, cutoff=0.5)
        hint = f"did you mean /{near[0]}?" if near else "/help lists the commands"
        raise SlashError(f"unknown command /{name}; {hint}")
    await SLASH[name].run(host, rest)


async def _help(host: Commands, rest: str) -> None:
    host.action_help()


async def _set(host: Commands, rest: str) -> None:
    words = rest.replace("=", " ", 1).split()
    if len(words) == 1 and words[0] in SPEC:
        spec = SPEC[words[0]]
        raise SlashError(f"{spec.name}: {spec.help}; {spec.allowed}. Write /set {spec.name} VALUE")
    if len(words) != 2:
        raise SlashError(
            "write /set NAME VALUE, for example /set budget 32; names: " + ", ".join(s.name for s in SPECS)
        )
    try:
        host.set_knobs(**parse_settings({words[0]: words[1]}))
    except KnobError as error:
        raise SlashError(str(error)) from None
    host.say(f"{words[0]} {SPEC[words[0]].show(parse_settings({words[0]: words[1]})[words[0]])} from the next turn")


async def _think(host: Commands, rest: str) -> None:
    if rest.lower() not in ("on", "off"):
        raise SlashError("write /think on or /think off")
    host.set_knobs(thinking=rest.lower() == "on")
    host.say(f"thinking {rest.lower()} from the next turn")


async def _clear(host: Commands, rest: str) -> None:
    await host.action_clear()


async def _retry(host: Commands, rest: str) -> None:
    await host.action_retry()


async def _copy(host: Commands, rest: str) -> None:
    host.action_copy()


async def _reset(host: Commands, rest: str) -> None:
    host.action_reset()


async def _quit(host: Commands, rest: str) -> None:
    host.quit()


SLASH: dict[str, Slash] = {
    one.name: one
    for one in (
        Slash("help", "/help", "keys and commands", _help),
        Slash("set", "/set NAME VALUE", "set a parameter of the next turn", _set),
        Slash("think", "/think on|off", "thinking for the next turn", _think),
        Slash("reset", "/reset", "every parameter back to its default", _reset),
        Slash("retry", "/retry", "answer the last message again", _retry),
        Slash("copy", "/copy", "copy the last answer", _copy),
        Slash("clear", "/clear", "begin an empty conversation", _clear),
        Slash("quit", "/quit", "leave the app", _quit),
    )
}
