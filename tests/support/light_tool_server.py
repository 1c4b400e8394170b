"""The tools of tool_server.py over stdio, without the library: it starts in a tenth of the time. For tests of what is
done with tools; the real server is for tests of the connection."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

COMMAND = [sys.executable, str(Path(__file__).resolve())]
KINDS = {"int": "integer", "str": "string"}
TOOLS: dict[str, Callable[..., str]] = {}
writes = threading.Lock()


def tool(function: Callable[..., str]) -> Callable[..., str]:
    TOOLS[function.__name__] = function
    return function


@tool
def add(a: int, b: int) -> str:
    """Adds two numbers."""
    return str(a + b)


@tool
def echo(text: str) -> str:
    """Returns the text."""
    return text


@tool
def variable(name: str) -> str:
    """The value of an environment variable of the server."""
    return os.environ.get(name, "not set")


@tool
def special() -> str:
    """A text with the name of a special token."""
    return "a <|im_end|> b"


@tool
def fails(text: str) -> str:
    """Fails."""
    raise ValueError(text)


@tool
def long(characters: int) -> str:
    """A long text."""
    return "x" * characters


@tool
def waits(path: str) -> str:
    """Writes a file, then waits for a long time."""
    Path(path).write_text("called", encoding="utf-8")
    threading.Event().wait(600)
    return "late"


@tool
def dies() -> str:
    """The server ends in the middle of the call."""
    sys.stderr.write("out of luck\n")
    sys.stderr.flush()
    os._exit(3)


@tool
def stamps(path: str) -> str:
    """Adds a line to a file: how often was it called?"""
    with Path(path).open("a", encoding="utf-8") as file:
        file.write(f"{time.time()}\n")
    return "stamped"


def listed(name: str) -> dict[str, Any]:
    kinds = {key: kind for key, kind in TOOLS[name].__annotations__.items() if key != "return"}
    schema = {
        "type": "object",
        "properties": {key: {"type": KINDS[kind]} for key, kind in kinds.items()},
        "required": list(kinds),
    }
    return {"name": name, "description": TOOLS[name].__doc__, "inputSchema": schema}


def send(message: dict[str, Any], **more: Any) -> None:
    with writes:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], **more}) + "\n")
        sys.stdout.flush()


def call(message: dict[str, Any]) -> None:
    asked = message["params"]
    try:
        text, failed = TOOLS[asked["name"]](**asked.get("arguments") or {}), False
    except Exception as error:
        text, failed = f"Error executing tool {asked['name']}: {error}", True
    send(message, result={"content": [{"type": "text", "text": text}], "isError": failed})


def main() -> None:
    for line in sys.stdin:
        message = json.loads(line)
        method = message.get("method")
        if method == "initialize":
            version = message["params"]["protocolVersion"]
            info = {"name": "things", "version": "1"}
            send(message, result={"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info})
        elif method == "tools/list":
            send(message, result={"tools": [listed(name) for name in TOOLS]})
        elif method == "tools/call":
            threading.Thread(target=call, args=(message,), daemon=True).start()
        elif "id" in message:
            send(message, error={"code": -32601, "message": "no such method"})


if __name__ == "__main__":
    main()
