"""Prompt sets from files that the user has: HumanEval, GSM8K, MATH-500, MT-bench, plain JSON lines and plain text.

A file is UTF-8, gzipped where its name ends in .gz. JSON lines hold one object a line; the fields of the first one
identify the set. Plain text holds one prompt a line. Spaces and line ends around a prompt are dropped; half of a
surrogate pair is a question mark, in names too.
"""

from __future__ import annotations

import gzip
import json
import random
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from dflash_core.clean import encodable
from dflash_core.errors import FormatError
from dflash_core.files import open_input, read_limited

SAMPLES, SEED = 10, 42
MAX_BYTES = 256 * 2**20  # of a file, unpacked: the largest set here has some 10 MiB
# The prompts where no file is named.
PROMPTS = (
    "Hello! What can you do?",
    "Tell me a story about a fox.",
    "Write a Python function that returns the largest of three numbers.",
    "Give me a shopping list for a picnic.",
)


@dataclass(frozen=True, slots=True)
class Task:
    """One prompt. `reference` is the right answer of a GSM8K or MATH task, as its file has it; else empty."""

    name: str
    text: str
    reference: str = ""


@dataclass(frozen=True, slots=True)
class PromptLayout:
    """How a set writes a task: the fields that identify it, the field of the prompt, of its name and of the answer."""

    set: str
    known_by: frozenset[str]
    text: str
    name: str = ""
    reference: str = ""


# The first that fits counts: the more telling ones come first.
LAYOUTS = (
    PromptLayout("HumanEval", frozenset({"task_id", "prompt"}), "prompt", "task_id"),
    PromptLayout("MATH", frozenset({"problem", "answer"}), "problem", "unique_id", "answer"),
    PromptLayout("MATH", frozenset({"problem", "solution"}), "problem", "unique_id", "solution"),
    PromptLayout("GSM8K", frozenset({"question", "answer"}), "question", reference="answer"),
    PromptLayout("MT-bench", frozenset({"turns"}), "turns", "question_id"),
    *(PromptLayout("plain", frozenset({field}), field, "id") for field in ("prompt", "text", "question", "problem")),
)


def read_prompts(path: Path) -> tuple[Task, ...]:
    """Every prompt of a file, in its order; of an MT-bench dialogue the first turn.

    Raises FormatError for a file that is missing, unreadable, damaged or without prompts; a line is named.
    """
    text = _read(path)
    lines = [(number, line.strip()) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not lines:
        raise FormatError(f"{path} holds no prompts; expected one a line")
    stem = path.name.removesuffix(".gz")
    if not stem.endswith((".jsonl", ".json", ".ndjson")):
        return tuple(Task(f"line {number}", line) for number, line in lines)
    objects = [(number, _object(path, number, line)) for number, line in lines]
    layout = _layout(path, *objects[0])
    return tuple(_task(path, number, fields, layout) for number, fields in objects)


def sample(tasks: Sequence[Task], count: int = SAMPLES, seed: int = SEED) -> tuple[Task, ...]:
    """`count` of the tasks, drawn by `seed` without replacement, in the file's order; all where there are fewer."""
    if count >= len(tasks):
        return tuple(tasks)
    return tuple(tasks[at] for at in sorted(random.Random(seed).sample(range(len(tasks)), count)))


def _read(path: Path) -> str:
    try:
        with open_input(path) as file:
            if path.name.endswith(".gz"):
                with gzip.open(file) as unpacked:
                    data = read_limited(cast(BinaryIO, unpacked), MAX_BYTES, str(path))
            else:
                data = read_limited(file, MAX_BYTES, str(path))
        return data.decode("utf-8-sig")
    except (gzip.BadGzipFile, EOFError, zlib.error):
        raise FormatError(f"{path} is not a whole gzip file; get it again") from None
    except UnicodeDecodeError as error:
        raise FormatError(f"{path} is not UTF-8 text (byte {error.start:,}); convert it, or check the path") from None
    except OSError as error:
        raise FormatError(f"{path} cannot be read: {error.strerror}; check the path") from None


def _object(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        raise FormatError(f"{path}, line {number} is not JSON; expected one object a line") from None
    if isinstance(value, str):
        value = {"text": value}
    if not isinstance(value, dict):
        raise FormatError(f"{path}, line {number} is a JSON {type(value).__name__}, expected an object or a string")
    return value


def _layout(path: Path, number: int, fields: dict[str, Any]) -> PromptLayout:
    layout = next((one for one in LAYOUTS if one.known_by <= fields.keys()), None)
    if layout is None:
        found = ", ".join(sorted(map(str, fields))[:8]) or "none"
        raise FormatError(
            f"{path}, line {number} has the fields {found}; expected prompt, text, question, problem or turns"
        )
    return layout


def _task(path: Path, number: int, fields: dict[str, Any], layout: PromptLayout) -> Task:
    text = fields.get(layout.text)
    if layout.text == "turns" and isinstance(text, list) and text:
        text = text[0]
    if not isinstance(text, str) or not text.strip():
        raise FormatError(
            f"{path}, line {number} has no text under {layout.text!r}, as line 1 has; add it, or remove the line"
        )
    name = fields.get(layout.name) if layout.name else None
    reference = _shown(fields.get(layout.reference)) if layout.reference else ""
    if layout.set == "GSM8K" and "####" not in reference:
        reference = ""  # questions and answers of some other kind, which no rule here can score
    return Task(_shown(name) or f"{layout.set} {number}", encodable(text.strip()), reference)


def _shown(value: Any) -> str:
    """A name or an answer as text; "" for what is neither, such as a list, which may be nested without end."""
    return encodable(str(value)) if isinstance(value, (str, int, float)) else ""
