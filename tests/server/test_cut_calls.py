"""An answer that a limit cuts within a call: what each dialect says of it."""

from __future__ import annotations

import json
from typing import Any

from support.scripted import ScriptedEngine
from support.serving import running

CALL = "<tool_call>\n<function=look>\n<parameter=path>\n/tmp/a\n</parameter>\n</function>\n</tool_call>"
SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}


def test_a_cut_call_is_no_complete_one() -> None:
    """Regressions: an item of the Responses API was completed, with {} where no argument had come yet; a call that was
    cut before its name was complete came as text."""
    tool: dict[str, Any] = {"type": "function", "name": "look", "parameters": SCHEMA}
    statuses = set[tuple[str, str]]()
    with running(ScriptedEngine(lambda prompt: f"Let me see.\n\n{CALL}", width=1)) as server:
        client = server.openai()
        asked: dict[str, Any] = {"model": "demo", "input": "hi", "tools": [tool]}
        for limit in range(1, 60):
            found = client.responses.create(max_output_tokens=limit, **asked)
            cut = found.status == "incomplete"
            assert "Let me see.\n\n".startswith(found.output_text)
            for item in found.output:
                assert item.type in ("message", "function_call")
                statuses.add((item.type, item.status))
                assert item.status == "completed" or (cut and item is found.output[-1])
                if item.type == "function_call":
                    assert item.status == "incomplete" or json.loads(item.arguments) == {"path": "/tmp/a"}
            if not cut:
                break
            last: Any = None
            for event in client.responses.create(stream=True, max_output_tokens=limit, **asked):
                last = event
            assert [(one.type, one.status) for one in last.response.output] == [
                (one.type, one.status) for one in found.output
            ]
    assert not cut
    assert len(statuses) == 4, "of two kinds, cut and complete"
