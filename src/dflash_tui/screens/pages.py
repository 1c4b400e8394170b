"""The screens that open over the chat, by the name that `open('name')` in keys.py gives. Imported when opened."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from textual.screen import Screen

if TYPE_CHECKING:
    from dflash_tui.screens.chat import ChatScreen


def _whatif(chat: ChatScreen) -> Screen[None]:
    from dflash_tui.screens.whatif import WhatIfScreen

    return WhatIfScreen(chat)


def _sweep(chat: ChatScreen) -> Screen[None]:
    from dflash_tui.screens.sweep import SweepScreen

    return SweepScreen(chat)


def _ab(chat: ChatScreen) -> Screen[None]:
    from dflash_tui.screens.ab import ABScreen

    return ABScreen(chat)


def _steps(chat: ChatScreen) -> Screen[None]:
    from dflash_tui.screens.steps import StepsScreen

    return StepsScreen(chat)


def _plain(chat: ChatScreen) -> Screen[None]:
    from dflash_tui.screens.plain import PlainScreen

    return PlainScreen(chat)


def _chats(chat: ChatScreen) -> Screen[None]:
    from dflash_tui.screens.chats import ChatsScreen

    return ChatsScreen(chat)


def _themes(chat: ChatScreen) -> Screen[None]:
    from dflash_tui.screens.themes import ThemesScreen

    return ThemesScreen(chat)


def _models(chat: ChatScreen) -> Screen[None]:
    from dflash_tui.screens.models import ModelsScreen

    return ModelsScreen(chat)


PAGES: dict[str, Callable[[ChatScreen], Screen[Any]]] = {
    "whatif": _whatif,
    "sweep": _sweep,
    "ab": _ab,
    "steps": _steps,
    "plain": _plain,
    "chats": _chats,
    "themes": _themes,
    "models": _models,
}
