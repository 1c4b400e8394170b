"""The app's actions in the command palette."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from textual.command import DiscoveryHit, Hit, Hits, Provider

from dflash_tui.keys import ACTIONS, Action


class ActionProvider(Provider):
    """Every action of the table that the screen below the palette can run."""

    def _actions(self) -> Iterator[Action]:
        scope = getattr(self.screen, "SCOPE", "chat")
        actions = getattr(self.app, "actions", ACTIONS)
        return (one for one in actions if one.action and (one.scope == scope or one.action.startswith("app.")))

    async def discover(self) -> Hits:
        for one in self._actions():
            yield DiscoveryHit(one.label, partial(self._run, one), help=self._help(one))

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for one in self._actions():
            score = matcher.match(one.label)
            if score > 0:
                yield Hit(score, matcher.highlight(one.label), partial(self._run, one), help=self._help(one))

    @staticmethod
    def _help(one: Action) -> str:
        return f"{one.help}  ({one.shown})" if one.shown else one.help

    async def _run(self, one: Action) -> None:
        await self.screen.run_action(one.action)
