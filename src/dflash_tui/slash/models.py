"""Slash commands for models: /profile, /get."""

from __future__ import annotations

from collections.abc import Mapping

from dflash_tui.application.hub.catalogue import load_catalogue
from dflash_tui.chat.parts import ChatParts
from dflash_tui.slash.command import Slash, SlashError

USAGE = "write /profile NAME, /profile save NAME, /profile rename NAME TO, /profile delete NAME or /profile undo"


async def _profile(host: ChatParts, rest: str) -> None:
    profiles, words = host.profiles, rest.split()
    match words:
        case []:
            host.open_page("models")
        case ["save", name]:
            host.say(profiles.save(profiles.of_present(name)))
        case ["rename", name, to]:
            host.say(profiles.rename(name, to))
        case ["delete", name]:
            host.say(profiles.delete(name))
        case ["undo"]:
            host.say(profiles.undo())
        case [name] if name not in ("save", "rename", "delete"):
            profiles.load(name, host.say)
        case _:
            raise SlashError(USAGE)


def _profile_words(host: ChatParts) -> Mapping[str, str]:
    return {one.name: one.words for one in host.profiles.presets.profiles.values()} | {
        "save": "keep what is loaded, with the present parameters", "rename": "another name",
        "delete": "take one out", "undo": "bring back what was deleted or replaced last",
    }  # fmt: skip


async def _get(host: ChatParts, rest: str) -> None:
    if rest and host.downloads.of(rest) is None:
        load_catalogue()[rest]  # refuses a name that it does not have
    host.open_page("get", rest)


MODELS = (
    Slash("profile", "/profile [save] NAME", "a model with all its settings by name", _profile, _profile_words),
    Slash(
        "get", "/get [NAME]", "fetch a model and its drafter; size and licence first", _get,
        lambda host: {one.name: one.about for one in load_catalogue().pairs.values()},
    ),
)  # fmt: skip
