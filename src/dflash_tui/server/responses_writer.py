"""Writes a response: items one after the other, each with its events, then the whole of it."""

from __future__ import annotations

import time
from typing import Any

import msgspec

from dflash_core.events import PrefillEvent
from dflash_core.messages import arguments_of
from dflash_tui.server.parts import new_id
from dflash_tui.server.request_error import RequestError
from dflash_tui.server.responses import INPUT_FIELD, ResponseRequest, ToolName, tools_of
from dflash_tui.server.updates import Ended, Reading
from dflash_tui.server.usage import responses_usage
from dflash_tui.server.writer import BlockWriter, Kind, event
from dflash_tui.server.written import Thoughts

CALLS = {True: ("custom_tool_call", "ctc_", "input"), False: ("function_call", "fc_", "arguments")}
"""The type of a call's item, the prefix of its id, and the field of its arguments; by whether it takes free text."""

ENCRYPTED = "reasoning.encrypted_content"
"""What a request includes to get a key of each reasoning, which it may send back in place of the text."""


class ResponseWriter(BlockWriter):
    """The unstreamed response is what the last event of the stream holds."""

    def __init__(self, request: ResponseRequest, model: str, thoughts: Thoughts) -> None:
        super().__init__(request)
        self._thoughts = thoughts if ENCRYPTED in (request.include or ()) else None
        self._names = {name: tool for name, (tool, _) in tools_of(request).items()}
        self._number = 0
        self._item: dict[str, Any] = {}  # the open one
        self.answer = {
            "id": new_id("resp_"), "object": "response", "created_at": int(time.time()), "status": "in_progress",
            "model": model, "output": [], "instructions": request.instructions, "error": None,
            "incomplete_details": None, "max_output_tokens": request.max_output_tokens,
            "metadata": request.metadata or {}, "parallel_tool_calls": request.parallel_tool_calls is not False,
            "previous_response_id": None, "store": False, "temperature": request.temperature,
            "tool_choice": request.tool_choice or "auto", "tools": [], "top_p": request.top_p, "truncation": "disabled",
            "usage": None,
        }  # fmt: skip

    def _event(self, kind: str, **fields: Any) -> bytes:
        data = {"type": kind, "sequence_number": self._number, **fields}
        self._number += 1
        return event(msgspec.json.encode(data), kind)

    def _of_item(self, kind: str, **fields: Any) -> bytes:
        place = {"item_id": self._item["id"], "output_index": len(self.answer["output"])}
        return self._event(f"response.{kind}", **place, **fields)

    def waits(self, place: int, waiting: int, read: Reading | None) -> bytes:
        # Comments do not keep every client waiting; this event does.
        return self.begin(None) or self._event("response.in_progress", response=self.answer)

    def begin(self, read: PrefillEvent | None) -> bytes:
        if self._number:
            return b""
        created = self._event("response.created", response=self.answer)
        return created + self._event("response.in_progress", response=self.answer)

    def open(self, kind: Kind, name: str) -> bytes:
        if kind == "thinking":
            self._item = {"id": new_id("rs_"), "type": "reasoning", "summary": [], "content": []}
        elif kind == "text":
            self._item = {
                "id": new_id("msg_"), "type": "message", "status": "in_progress", "role": "assistant", "content": [],
            }  # fmt: skip
            return self._of_output("added") + self._of_item(
                "content_part.added", content_index=0, part=_output_text("")
            )
        else:
            tool = self._names.get(name, ToolName(name))
            type, id, field = CALLS[tool.free]
            self._item = {
                "id": new_id(id), "type": type, "status": "in_progress", "call_id": new_id("call_"), "name": tool.name,
                field: "", **({"namespace": tool.namespace} if tool.namespace else {}),
            }  # fmt: skip
        return self._of_output("added")

    def _of_output(self, what: str) -> bytes:
        item, place = dict(self._item), len(self.answer["output"])
        return self._event(f"response.output_item.{what}", output_index=place, item=item)

    def more(self, text: str) -> bytes:
        type = self._item["type"]
        if type == "custom_tool_call":
            return b""  # free text is sent when it is complete
        if type == "function_call":
            return self._of_item("function_call_arguments.delta", delta=text)
        if type == "reasoning":
            return self._of_item("reasoning_text.delta", content_index=0, delta=text)
        return self._of_item("output_text.delta", content_index=0, delta=text, logprobs=[])

    def close(self, kind: Kind, text: str) -> bytes:
        item = self._item
        if kind == "text":
            item["content"] = [_output_text(text)]
            found = self._of_item("output_text.done", content_index=0, text=text, logprobs=[])
            found += self._of_item("content_part.done", content_index=0, part=_output_text(text))
        elif kind == "thinking":
            item["content"] = [{"type": "reasoning_text", "text": text}]
            if self._thoughts is not None:
                item["encrypted_content"] = self._thoughts.add(text)
            found = self._of_item("reasoning_text.done", content_index=0, text=text)
        elif item["type"] == "function_call":
            item["arguments"] = text or "{}"
            found = self._of_item("function_call_arguments.done", name=item["name"], arguments=item["arguments"])
        else:
            item["input"] = str(arguments_of(text).get(INPUT_FIELD, text))
            found = self._of_item("custom_tool_call_input.delta", delta=item["input"])
            found += self._of_item("custom_tool_call_input.done", input=item["input"])
        if "status" in item:
            item["status"] = "completed"
        found += self._of_output("done")
        self.answer["output"].append(item)
        return found

    def end(self, ended: Ended) -> bytes:
        found = self.over()
        cut = ended.why in ("length", "context")
        status = "incomplete" if cut else "cancelled" if ended.why == "cancelled" else "completed"
        self.answer |= {"status": status, "usage": responses_usage(ended), **self.figures(ended)}
        if cut:
            self.answer["incomplete_details"] = {"reason": "max_output_tokens"}
        return found + self._event(f"response.{'incomplete' if cut else 'completed'}", response=self.answer)

    def failed(self, error: RequestError) -> bytes:
        about = error.body("openai", "")["error"]
        self.answer |= {"status": "failed", "error": {"code": error.code or about["type"], "message": error.message}}
        return self._event("response.failed", response=self.answer)


def _output_text(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
