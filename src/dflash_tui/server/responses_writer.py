"""Writes a response: items one after the other, each with its events, then the whole of it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from dflash_core.events import PrefillEvent
from dflash_core.messages import arguments_of
from dflash_core.text.tool_calls.parts import CallArguments, CallStart, Part, Text, Thinking
from dflash_tui.server.exchange import event
from dflash_tui.server.extensions import extended
from dflash_tui.server.parts import new_id
from dflash_tui.server.request_error import RequestError
from dflash_tui.server.responses import INPUT_FIELD, ResponseRequest, ToolName, names_of
from dflash_tui.server.updates import Ended, Reading
from dflash_tui.server.usage import figures, responses_usage


class ResponseWriter:
    """The unstreamed response is what the last event of the stream holds."""

    def __init__(self, request: ResponseRequest, model: str) -> None:
        self._names: Mapping[str, ToolName] = names_of(request)
        self._detail = bool(extended(request.dflash)[2].get("detail"))
        self._number = 0
        self._begun = False
        self._item: dict[str, Any] | None = None  # the open one
        self._text = ""  # of the open one, so far
        self._response: dict[str, Any] = {
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
        assert self._item is not None
        place = {"item_id": self._item["id"], "output_index": len(self._response["output"])}
        return self._event(f"response.{kind}", **place, **fields)

    def waits(self, place: int, waiting: int, read: Reading | None) -> bytes:
        # Comments do not keep every client waiting; this event does.
        return self.begin(None) or self._event("response.in_progress", response=self._response)

    def progress(self, read: Reading) -> bytes:
        return b""

    def begin(self, read: PrefillEvent | None) -> bytes:
        if self._begun:
            return b""
        self._begun = True
        created = self._event("response.created", response=self._response)
        return created + self._event("response.in_progress", response=self._response)

    def parts(self, parts: Sequence[Part]) -> bytes:
        return b"".join(map(self._part, parts))

    def _part(self, part: Part) -> bytes:
        if isinstance(part, (Text, Thinking)):
            kind = "message" if isinstance(part, Text) else "reasoning"
            opened = b"" if self._item is not None and self._item["type"] == kind else self._close() + self._open(kind)
            self._text += part.text
            name = "output_text" if kind == "message" else "reasoning_text"
            logprobs: dict[str, Any] = {"logprobs": []} if kind == "message" else {}
            return opened + self._of_item(f"{name}.delta", content_index=0, delta=part.text, **logprobs)
        if isinstance(part, CallStart):
            return self._close() + self._call(self._names.get(part.name, ToolName(part.name)))
        if isinstance(part, CallArguments):
            self._text += part.text
            if self._item is None or self._item["type"] != "function_call":
                return b""  # free text is sent when it is complete
            return self._of_item("function_call_arguments.delta", delta=part.text)
        return self._close()

    def _open(self, kind: str) -> bytes:
        if kind == "reasoning":
            self._item = {"id": new_id("rs_"), "type": "reasoning", "summary": [], "content": []}
            return self._of_added()
        self._item = {"id": new_id("msg_"), "type": "message", "status": "in_progress", "role": "assistant",
                      "content": []}  # fmt: skip
        return self._of_added() + self._of_item("content_part.added", content_index=0, part=_output_text(""))

    def _call(self, tool: ToolName) -> bytes:
        kind, id, field = ("custom_tool_call", "ctc_", "input") if tool.free else ("function_call", "fc_", "arguments")
        self._item = {"id": new_id(id), "type": kind, "status": "in_progress", "call_id": new_id("call_"),
                      "name": tool.name, field: ""}  # fmt: skip
        if tool.namespace:
            self._item["namespace"] = tool.namespace
        return self._of_added()

    def _of_added(self) -> bytes:
        assert self._item is not None
        return self._event(
            "response.output_item.added", output_index=len(self._response["output"]), item=dict(self._item)
        )

    def _close(self) -> bytes:
        """End the open item."""
        if self._item is None:
            return b""
        item, text = self._item, self._text
        found = b""
        if item["type"] == "message":
            found += self._of_item("output_text.done", content_index=0, text=text, logprobs=[])
            found += self._of_item("content_part.done", content_index=0, part=_output_text(text))
            item["content"] = [_output_text(text)]
        elif item["type"] == "reasoning":
            found += self._of_item("reasoning_text.done", content_index=0, text=text)
            item["content"] = [{"type": "reasoning_text", "text": text}]
        elif item["type"] == "function_call":
            item["arguments"] = text or "{}"
            found += self._of_item("function_call_arguments.done", name=item["name"], arguments=item["arguments"])
        else:
            item["input"] = str(arguments_of(text).get(INPUT_FIELD, text))
            found += self._of_item("custom_tool_call_input.delta", delta=item["input"])
            found += self._of_item("custom_tool_call_input.done", input=item["input"])
        if item["type"] != "reasoning":
            item["status"] = "completed"
        found += self._event("response.output_item.done", output_index=len(self._response["output"]), item=item)
        self._response["output"].append(item)
        self._item, self._text = None, ""
        return found

    def end(self, ended: Ended) -> bytes:
        found = self._close()
        cut = ended.why in ("length", "context")
        status = "incomplete" if cut else "cancelled" if ended.why == "cancelled" else "completed"
        self._response |= {"status": status, "usage": responses_usage(ended), **figures(ended, detail=self._detail)}
        if cut:
            self._response["incomplete_details"] = {"reason": "max_output_tokens"}
        return found + self._event(f"response.{'incomplete' if cut else 'completed'}", response=self._response)

    def failed(self, error: RequestError) -> bytes:
        about = error.body("openai", "")["error"]
        self._response |= {"status": "failed", "error": {"code": error.code or about["type"], "message": error.message}}
        return self._event("response.failed", response=self._response)

    def whole(self, parts: Sequence[Part], ended: Ended) -> dict[str, Any]:
        self.parts(parts)
        self.end(ended)
        return self._response


def _output_text(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
