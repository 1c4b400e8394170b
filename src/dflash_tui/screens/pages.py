"""The screens that open over the chat, by the name used as `open('name')` in keys.py. Imported when opened."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from textual.screen import Screen

if TYPE_CHECKING:
    from dflash_tui.chat.parts import ChatParts
    from dflash_tui.screens.palette import ActionProvider


def action_provider() -> type[ActionProvider]:
    """The palette's actions on the chat and on pages with their own keys."""
    from dflash_tui.screens.palette import ActionProvider

    return ActionProvider


Make = Callable[["ChatParts", str], Screen[Any]]


def _made(module: str, name: str) -> Make:
    """A screen whose only argument is the chat."""

    def make(chat: ChatParts, text: str) -> Screen[Any]:
        screen: Screen[Any] = getattr(import_module(f"dflash_tui.screens.{module}"), name)(chat)
        return screen

    return make


def _experiment(name: str, *, at_once: bool = False) -> Make:
    """An experiment, which starts at once, or where a text says what to run."""

    def make(chat: ChatParts, text: str) -> Screen[None]:
        screen: Screen[None] = getattr(import_module("dflash_tui.screens.experiment"), name)(
            chat, text, at_once=at_once or bool(text)
        )
        return screen

    return make


def _models(chat: ChatParts, text: str) -> Screen[None]:
    from dflash_tui.screens.models import ModelsScreen

    return ModelsScreen(chat, only=text)


def _get(chat: ChatParts, text: str) -> Screen[Any]:
    """`text`: the name of a pair; if empty, the catalogue is shown."""
    from dflash_tui.application.hub.catalogue import load_catalogue
    from dflash_tui.screens.get import GetScreen

    begun = chat.downloads.of(text)
    pair = begun.pair if begun is not None else load_catalogue().pairs.get(text)
    return _models(chat, text or "get") if pair is None else GetScreen(chat, pair)


# Each takes a text, which may be "": for the lab's screens an experiment to run at once, for `models` words that
# filter its list, for `get` the name of a pair to fetch.
PAGES: dict[str, Make] = {
    "whatif": _made("whatif", "WhatIfScreen"),
    "sweep": _experiment("SweepScreen"),
    "ab": _experiment("ABScreen"),
    "steps": _made("steps", "StepsScreen"),
    "plain": _experiment("PlainScreen", at_once=True),
    "chats": _made("chats", "ChatsScreen"),
    "themes": _made("themes", "ThemesScreen"),
    "models": _models,
    "get": _get,
    "prompt": _made("prompt", "PromptScreen"),
    "full": _made("full", "FullScreen"),
    "tune": _experiment("TuneScreen", at_once=True),
    "past": _made("past", "PastScreen"),
    "tour": _made("tour", "TourScreen"),
}
