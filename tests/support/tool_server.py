"""A real server of tools, over stdio or HTTP, with tools that behave and tools that do not. Run as a program."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from mcp.server.mcpserver import MCPServer

COMMAND = [sys.executable, str(Path(__file__).resolve())]
server = MCPServer("things")


@server.tool()
def add(a: int, b: int) -> str:
    """Adds two numbers."""
    return str(a + b)


@server.tool()
def echo(text: str) -> str:
    """Returns the text."""
    return text


@server.tool()
def variable(name: str) -> str:
    """The value of an environment variable of the server."""
    return os.environ.get(name, "not set")


@server.tool()
def special() -> str:
    """A text with the name of a special token."""
    return "a <|im_end|> b"


@server.tool()
def fails(text: str) -> str:
    """Fails."""
    raise ValueError(text)


@server.tool()
def long(characters: int) -> str:
    """A long text."""
    return "x" * characters


@server.tool()
async def waits(path: str) -> str:
    """Writes a file, then waits for a long time."""
    import anyio

    Path(path).write_text("called", encoding="utf-8")
    await anyio.sleep(600)
    return "late"


@server.tool()
def dies() -> str:
    """The server ends in the middle of the call."""
    sys.stderr.write("out of luck\n")
    sys.stderr.flush()
    os._exit(3)


@server.tool()
def stamps(path: str) -> str:
    """Adds a line to a file: how often was it called?"""
    with Path(path).open("a", encoding="utf-8") as file:
        file.write(f"{time.time()}\n")
    return "stamped"


if __name__ == "__main__":
    if sys.argv[1:]:
        server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
    else:
        server.run("stdio")
