"""A conversation as a tree: every version of a message and every answer is stored; one path is the present one."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

import msgspec

from dflash_core.messages import Message
from dflash_core.turn_stats import TurnReport
from dflash_tui.application.conversations.tool_messages import (
    ToolCall,
    ToolResult,
    calls_of,
    result_messages,
    without_results,
)

Time = Annotated[float, msgspec.Meta(ge=0, le=253_402_300_799)]
"""Seconds since 1970, up to the year 9999: no later date can be shown."""


def new_id() -> str:
    """A unique id for a conversation or message, across machines."""
    return secrets.token_hex(8)


@dataclass(frozen=True, slots=True)
class Node:
    """One message of the tree. Without a parent it starts the conversation; siblings have the same parent.

    `outcome` says how an answer without a report ended: failed, or cut off with the program. `calls`: an answer's. A
    message of the user's side with `results` has those of the calls before it, in place of a text.
    """

    role: Literal["user", "assistant"]
    content: str
    parent: str | None = None
    thinking: str = ""
    outcome: str = ""
    report: TurnReport | None = None
    id: str = field(default_factory=new_id)
    created: Time = field(default_factory=time.time)
    calls: tuple[ToolCall, ...] = ()
    results: tuple[ToolResult, ...] = ()

    @property
    def asks(self) -> bool:
        return self.role == "user" and not self.results

    @property
    def size(self) -> int:
        """Characters of what the model reads of it."""
        texts = (
            self.content,
            self.thinking,
            *(one.arguments for one in self.calls),
            *(one.text for one in self.results),
        )
        return sum(map(len, texts))


class Branches:
    """Nodes in the order of writing, and the `leaf`, the end of the present path."""

    def __init__(self, nodes: Iterable[Node] = (), leaf: str | None = None) -> None:
        self._nodes: dict[str, Node] = {}
        self._children: dict[str | None, list[str]] = {None: []}
        self._visited: dict[str | None, str] = {}  # the child of each node on the most recent path through it
        self.leaf: str | None = None
        for node in nodes:
            self._put(node)
        self._visit_newest()
        if leaf in self._nodes:
            self.go(leaf)

    def __len__(self) -> int:
        return len(self._nodes)

    def __getitem__(self, id: str) -> Node:
        return self._nodes[id]

    @property
    def nodes(self) -> tuple[Node, ...]:
        """Every node, parents before their children."""
        return tuple(self._nodes.values())

    @property
    def path(self) -> tuple[Node, ...]:
        """From the first message to the leaf."""
        return self.path_to(self.leaf)

    def path_to(self, id: str | None) -> tuple[Node, ...]:
        """From the first message to `id`."""
        path = []
        while id is not None:
            path.append(self._nodes[id])
            id = self._nodes[id].parent
        return tuple(reversed(path))

    @property
    def path_ids(self) -> frozenset[str]:
        return frozenset(node.id for node in self.path)

    def siblings(self, id: str) -> tuple[str, ...]:
        """`id` and its siblings on other branches, in the order of writing."""
        return tuple(self._children[self._nodes[id].parent])

    def children(self, id: str | None) -> tuple[str, ...]:
        """The children of `id`, one per branch."""
        return tuple(self._children[id])

    def add(self, node: Node) -> None:
        """Add a node below its parent and make it the leaf. A node whose parent is lost starts a separate branch.

        Raises ValueError for an id that exists already.
        """
        on_path = node.parent == self.leaf
        id = self._put(node)
        if on_path:
            self._visited[node.parent], self.leaf = id, id
        else:
            self.go(id)

    def _put(self, node: Node) -> str:
        if node.id in self._nodes:
            raise ValueError(f"two messages have the id {node.id!r}")
        if node.parent not in self._children:
            node = replace(node, parent=None)
        self._nodes[node.id] = node
        self._children[node.parent].append(node.id)
        self._children[node.id] = []
        return node.id

    def _visit_newest(self) -> None:
        """Set the state that visiting every node in the order of writing would leave, in one pass."""
        newest: dict[str | None, int] = {}  # the position of the newest node at or below a node
        for place, node in reversed(list(enumerate(self._nodes.values()))):
            below = newest.setdefault(node.id, place)
            if below > newest.get(node.parent, -1):
                newest[node.parent] = below
                self._visited[node.parent] = node.id
        self.leaf = next(reversed(self._nodes), None)

    def go(self, id: str) -> None:
        """Make `id` the leaf of the present path."""
        self.leaf = id
        for node in self.path:
            self._visited[node.parent] = node.id

    def switch(self, id: str, by: int) -> str | None:
        """Switch to the sibling of `id` at offset `by`, and down its branch to where it was last left.

        Returns that sibling, or None if there is none in that direction.
        """
        there = self.siblings(id)
        place = there.index(id) + by
        if not 0 <= place < len(there):
            return None
        self.go_below(there[place])
        return there[place]

    def go_below(self, id: str) -> None:
        """Switch to `id` and down its branch to where it was last left."""
        leaf: str | None = id
        while leaf is not None:
            self.leaf = leaf
            leaf = self._visited.get(leaf) or next(reversed(self._children[leaf]), None)
        assert self.leaf is not None
        self.go(self.leaf)


def messages(path: Sequence[Node], system: str) -> list[Message]:
    found = [Message("system", system)] if system else []
    open_calls: tuple[ToolCall, ...] = ()
    for node in path:
        if node.results:
            found += result_messages(node.results)
            open_calls = ()
            continue
        # Calls without results: the program ended before they were made.
        found += result_messages(without_results(open_calls))
        open_calls = node.calls
        found.append(Message(node.role, node.content, node.thinking, node.report, calls_of(node.calls)))
    return found
