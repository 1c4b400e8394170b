"""The screens that open over the chat, by the name that `open('name')` in keys.py gives. Imported when opened."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from textual.screen import Screen

from dflash_tui.chat.host import ChatHost


def _whatif(chat: ChatHost, text: str) -> Screen[None]:
    from dflash_tui.screens.whatif import WhatIfScreen

    return WhatIfScreen(chat)


def _sweep(chat: ChatHost, text: str) -> Screen[None]:
    from dflash_tui.screens.sweep import SweepScreen

    return SweepScreen(chat, text, at_once=bool(text))


def _ab(chat: ChatHost, text: str) -> Screen[None]:
    from dflash_tui.screens.ab import ABScreen

    return ABScreen(chat, text, at_once=bool(text))


def _steps(chat: ChatHost, text: str) -> Screen[None]:
    from dflash_tui.screens.steps import StepsScreen

    return StepsScreen(chat)


def _plain(chat: ChatHost, text: str) -> Screen[None]:
    from dflash_tui.screens.plain import PlainScreen

    return PlainScreen(chat)


def _chats(chat: ChatHost, text: str) -> Screen[None]:
    from dflash_tui.screens.chats import ChatsScreen

    return ChatsScreen(chat)


def _themes(chat: ChatHost, text: str) -> Screen[None]:
    from dflash_tui.screens.themes import ThemesScreen

    return ThemesScreen(chat)


def _models(chat: ChatHost, text: str) -> Screen[None]:
    from dflash_tui.screens.models import ModelsScreen

    return ModelsScreen(chat, only=text)


def _get(chat: ChatHost, text: str) -> Screen[Any]:
    """`text`: the name of a pair; without one the catalogue is shown."""
    from dflash_tui.hub.catalogue import load_catalogue
    from dflash_tui.screens.get import GetScreen

    begun = chat.downloads.of(text)
    pair = begun.pair if begun is not None else load_catalogue().pairs.get(text)
    return _models(chat, text or "get") if pair is None else GetScreen(chat, pair)


def _prompt(chat: ChatHost, text: str) -> Screen[None]:
    from dflash_tui.screens.prompt import PromptScreen

    return PromptScreen(chat)


def _tune(chat: ChatHost, text: str) -> Screen[None]:
    from dflash_tui.screens.tune import TuneScreen

    return TuneScreen(chat, text)


def _past(chat: ChatHost, text: str) -> Screen[None]:
    from dflash_tui.screens.tune import PastScreen

    return PastScreen(chat)


def _full(chat: ChatHost, text: str) -> Screen[None]:
    from dflash_tui.screens.full import FullScreen

    return FullScreen(chat)


def _tour(chat: ChatHost, text: str) -> Screen[None]:
    from dflash_tui.screens.tour import TourScreen

    return TourScreen(chat)


# Each takes what to run at once, "" for nothing: the lab's screens an experiment, `models` words that its list begins
# narrowed to, `get` the name of a pair to fetch.
PAGES: dict[str, Callable[[ChatHost, str], Screen[Any]]] = {
    "whatif": _whatif,
    "sweep": _sweep,
    "ab": _ab,
    "steps": _steps,
    "plain": _plain,
    "chats": _chats,
    "themes": _themes,
    "models": _models,
    "get": _get,
    "prompt": _prompt,
    "full": _full,
    "tune": _tune,
    "past": _past,
    "tour": _tour,
}
