"""The screens that open over the chat, by the name used as `open('name')` in keys.py. Imported when opened."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from textual.screen import Screen

if TYPE_CHECKING:
    from dflash_tui.chat.parts import ChatParts
    from dflash_tui.screens.palette import ActionProvider


def of_screens(module: str, name: str) -> Any:
    """A class or function of a module of screens, which is imported now."""
    return getattr(import_module(f"dflash_tui.screens.{module}"), name)


def action_provider() -> type[ActionProvider]:
    provider: type[ActionProvider] = of_screens("palette", "ActionProvider")
    return provider


Make = Callable[["ChatParts", str], Screen[Any]]


def _made(module: str, name: str) -> Make:
    """A screen whose only argument is the chat."""
    return lambda chat, text: of_screens(module, name)(chat)


def _with_text(module: str, name: str) -> Make:
    """A screen that gets the text too."""
    return lambda chat, text: of_screens(module, name)(chat, text)


def _experiment(name: str, *, at_once: bool = False) -> Make:
    """An experiment, which starts at once, or where a text says what to run."""
    return lambda chat, text: of_screens("experiments", name)(chat, text, at_once=at_once or bool(text))


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
    "models": _with_text("models", "models_page"),
    "get": _with_text("models", "get_page"),
    "prompt": _made("prompt", "PromptScreen"),
    "full": _made("full", "FullScreen"),
    "tune": _experiment("TuneScreen", at_once=True),
    "past": _made("past", "PastScreen"),
    "requests": _made("requests", "RequestsScreen"),
    "tools": _made("tools", "ToolsScreen"),
    "tour": _made("tour", "TourScreen"),
}
