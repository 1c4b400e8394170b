"""The app's actions in the command palette."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from textual import work
from textual.command import CommandList, CommandPalette, DiscoveryHit, Hit, Hits, Provider, SearchIcon
from textual.css.query import NoMatches
from textual.events import Mount
from textual.markup import escape

from dflash_tui.chat.state import AppState
from dflash_tui.settings.keys import Action, actions_of, offered
from dflash_tui.widgets.literal import PAGING, can_page

BY_HELP = 0.1  # the score of a match in an action's help; matches in the name come first

_SEARCH: Any = CommandPalette._gather_commands.__wrapped__  # type: ignore[attr-defined]


class Palette(CommandPalette):
    """Textual's palette, made safe for very small terminals, with the same mark as the app's other input lines."""

    def on_mount(self, event: Mount) -> None:
        if self not in self.app.screen_stack:
            event.prevent_default()  # already closed: Textual's handler would query the screen below it
            return
        icon = self.query_one(SearchIcon)
        icon.icon = "❯"  # not every terminal font has the magnifying glass
        icon.refresh()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        paging = action == "command_list" and parameters[0] in PAGING
        return super().check_action(action, parameters) and (
            not paging or any(can_page(commands) for commands in self.query(CommandList))
        )

    @work(exclusive=True, group=CommandPalette._GATHER_COMMANDS_GROUP)
    async def _gather_commands(self, search_value: str) -> None:
        """Search. The palette may have been closed since the text was typed, and a search that fails ends the app."""
        try:
            await _SEARCH(self, search_value)
        except NoMatches:
            if self.is_mounted and self.query(CommandList):
                raise


class ActionProvider(Provider):
    """Every action that the screen below the palette can run."""

    def _actions(self) -> Iterator[Action]:
        scope = getattr(self.screen, "SCOPE", "chat")
        state = getattr(self.screen, "state", None)
        refused = state.refused if isinstance(state, AppState) else frozenset[str]()
        actions = (one for one in actions_of(self.app) if one.action and offered(one, refused))
        return (one for one in actions if one.scope == scope or one.action.startswith("app."))

    async def discover(self) -> Hits:
        for one in self._actions():
            yield DiscoveryHit(one.label, partial(self._run, one), help=self._help(one))

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for one in self._actions():
            score = matcher.match(one.label)
            if not score and query.casefold() in one.help.casefold():
                score = BY_HELP
            if score > 0:
                yield Hit(score, matcher.highlight(one.label), partial(self._run, one), help=self._help(one))

    @staticmethod
    def _help(one: Action) -> str:
        return escape(f"{one.help}  ({one.shown})" if one.shown else one.help)

    async def _run(self, one: Action) -> None:
        await self.screen.run_action(one.action)
