"""The messages that the decoder gets of a conversation."""

from __future__ import annotations

from collections.abc import Sequence

from dflash_core.messages import Message
from dflash_tui.application.conversations.branches import Node
from dflash_tui.application.conversations.tool_messages import ToolCall, calls_of, result_messages, without_results


def messages(path: Sequence[Node], system: str) -> list[Message]:
    """Those of the nodes of a path, after the system message."""
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
