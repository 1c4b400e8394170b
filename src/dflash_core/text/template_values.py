"""What a chat template is given: messages, tools and variables, as JSON would hold them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

JSON: TypeAlias = bool | int | float | str | Sequence["JSON"] | Mapping[str, "JSON"] | None
Messages = Sequence[Mapping[str, JSON]]
"""Each has `role` and `content`; the assistant's also `reasoning_content`, and `tool_calls` if there are any; a tool's
`tool_call_id` and `name`."""
Tools = Sequence[Mapping[str, JSON]]
"""Each is {"type": "function", "function": {"name", "description", "parameters"}}, `parameters` a JSON schema."""
Variables = Mapping[str, str | bool]
NO_VARIABLES: Variables = {}
NO_TOOLS: Tools = ()
