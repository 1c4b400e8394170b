"""Messages between the program and its template worker: JSON objects, each after its length in eight bytes."""

from __future__ import annotations

import json
import struct
from typing import Any

HEAD = struct.Struct(">Q")
MAX_BYTES = 2**28  # of one message: a prompt at its limit has 2^24 characters, an escaped one up to six bytes each


def packed(message: dict[str, Any]) -> bytes:
    """The bytes of a message. ASCII: lone surrogates, which UTF-8 has no bytes for, pass as escapes."""
    body = json.dumps(message, ensure_ascii=True).encode("ascii")
    return HEAD.pack(len(body)) + body


def unpacked(body: bytes) -> dict[str, Any]:
    """The opposite of `packed`, without the head."""
    message: dict[str, Any] = json.loads(body)
    return message
