"""The app's actions in the command palette."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from textual.command import CommandList, CommandPalette, DiscoveryHit, Hit, Hits, Provider
from textual.markup import escape

from dflash_tui.settings.keys import Action, actions_of
from dflash_tui.widgets.literal import PAGING, can_page

BY_HELP = 0.1  # the score of an action that has the words in its help; those in the name come first


class Palette(CommandPalette):
    """Textual's, for terminals however small."""

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        paging = action == "command_list" and parameters[0] in PAGING
        return super().check_action(action, parameters) and (not paging or can_page(self.query_one(CommandList)))


class ActionProvider(Provider):
    """Every action of the table that the screen below the palette can run."""

    def _actions(self) -> Iterator[Action]:
        scope = getattr(self.screen, "SCOPE", "chat")
        actions = actions_of(self.app)
        return (one for one in actions if one.action and (one.scope == scope or one.action.startswith("app.")))

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
