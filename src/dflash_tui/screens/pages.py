"""The screens that open over the chat, by the name used as `open('name')` in keys.py. Imported when opened."""

from __future__ import annotations

from collections.abc import Mapping
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


# By name: the module, and what makes the screen. Some take a text, which may be "": for the lab's screens an
# experiment to run at once, for `models` words that filter its list, for `get` the name of a pair to fetch.
PAGES: Mapping[str, tuple[str, str]] = {
    "whatif": ("whatif", "WhatIfScreen"), "sweep": ("experiments", "SweepScreen"), "ab": ("experiments", "ABScreen"),
    "steps": ("steps", "StepsScreen"), "plain": ("experiments", "PlainScreen"), "chats": ("chats", "ChatsScreen"),
    "themes": ("full", "ThemesScreen"), "models": ("models", "ModelsScreen"), "get": ("models", "get_page"),
    "prompt": ("explain", "PromptScreen"), "full": ("full", "FullScreen"), "tune": ("experiments", "TuneScreen"),
    "past": ("lab", "PastScreen"), "requests": ("requests", "RequestsScreen"), "tools": ("tools", "ToolsScreen"),
    "tour": ("tour", "TourScreen"),
}  # fmt: skip


def page(name: str, chat: ChatParts, text: str) -> Screen[Any]:
    """A new screen."""
    module, maker = PAGES[name]
    arguments = [text] if module in ("experiments", "models") else []
    at_once = {"at_once": bool(text) or name in ("plain", "tune")} if module == "experiments" else {}
    screen: Screen[Any] = of_screens(module, maker)(chat, *arguments, **at_once)
    return screen
