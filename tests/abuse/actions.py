"""What the monkey does, as text: each action is made from the seed alone, so that a list of them is a replay."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from dflash_tui.settings.keys import ACTIONS


class Action(NamedTuple):
    """`kind` says what `data` is; `Hand.do` of the monkey has the table."""

    kind: str
    data: str = ""


_ARROWS = {"up": "A", "down": "B", "right": "C", "left": "D", "home": "H", "end": "F"}
_MODIFIED = {"shift": 2, "alt": 3, "ctrl": 5}
_PLAIN = {
    "enter": "\r", "tab": "\t", "shift+tab": "\x1b[Z", "escape": "\x1b[27u", "backspace": "\x7f", "delete": "\x1b[3~",
    "pageup": "\x1b[5~", "pagedown": "\x1b[6~", "shift+enter": "\x1b[13;2u", "slash": "/", "comma": ",",
    "full_stop": ".", "left_square_bracket": "[", "right_square_bracket": "]", "space": " ",
}  # fmt: skip
_F = {1: "\x1bOP", 2: "\x1bOQ", 3: "\x1bOR", 4: "\x1bOS", 5: "\x1b[15~", 6: "\x1b[17~", 7: "\x1b[18~", 8: "\x1b[19~"}
_F |= {9: "\x1b[20~", 10: "\x1b[21~", 11: "\x1b[23~", 12: "\x1b[24~"}


def sequence(key: str) -> str:
    """What a terminal sends for a key of Textual's name."""
    if key in _PLAIN:
        return _PLAIN[key]
    *modifiers, last = key.split("+")
    if last in _ARROWS:
        return f"\x1b[1;{_MODIFIED[modifiers[0]]}{_ARROWS[last]}" if modifiers else f"\x1b[{_ARROWS[last]}"
    if not modifiers and last[0] == "f" and last[1:].isdigit():
        return _F[int(last[1:])]
    if modifiers == ["ctrl"]:
        return chr(ord(last) & 0x1F)
    return "\x1b" * (modifiers == ["alt"]) + last


BOUND = sorted({key for one in ACTIONS for key in one.keys.split(",") if key} - {"ctrl+q"})
MOVING = ("up", "down", "left", "right", "home", "end", "pageup", "pagedown", "tab", "shift+tab")
EDITING = (
    "backspace", "delete", "ctrl+w", "ctrl+u", "ctrl+k", "ctrl+z", "ctrl+y", "ctrl+a", "ctrl+e", "ctrl+l", "ctrl+x",
    "ctrl+v", "shift+left", "shift+up", "shift+right", "ctrl+left", "ctrl+right", "ctrl+d", "ctrl+f", "ctrl+j",
)  # fmt: skip
LETTERS = tuple("abcdehimnorsuvxyz/1234[],. ")
SIZES = ((80, 24), (120, 40), (200, 60), (60, 20), (40, 12), (39, 11), (110, 34), (80, 1), (2, 60), (1, 1), (160, 16))
COMMANDS = (
    "/set budget 7", "/set temperature 1.0", "/set temperature 0", "/set nonsense 1", "/set", "/set max_tokens 12",
    "/set thinking on", "/set mode chain", "/set mode ar", "/set tree_width 3", "/preset", "/preset save mine",
    "/preset mine", "/preset none", "/think on", "/think off", "/theme nord", "/theme none", "/chats", "/clear",
    "/copy", "/help", "/log", "/stats", "/tree", "/params", "/memory", "/steps", "/whatif", "/plain", "/edit", "/retry",
    "/reload", "/load", "/load /no/such.gguf", "/reset", "/apply", "/rename another title", "/export talk.md",
    "/export talk.json", "/export talk.svg", "/export", "/unknown", "/", "//not a command",
)  # fmt: skip
PASTES = (
    "two\nlines", "tab\there", "\x1b[31mred\x1b[0m", "emoji 👩‍👩‍👧 木 ﷽", "[@click=app.quit]x[/]", "a\r\nb\rc",
    "\x00\x07", "é" * 300,     "long " * 400, "{{ messages }}", "<|im_end|>", "`" * 40, "| a | b |\n|---|---|\n" * 5,
)  # fmt: skip
ANSWERS = 7  # scripted ones; the session has them


def random_actions(rng: random.Random, count: int, mark: str) -> Iterator[Action]:
    """`count` actions; every text that is typed has a word of its own that begins with `mark`."""
    number = 0

    def word() -> str:
        nonlocal number
        number += 1
        return f"{mark}x{number}x"

    def text() -> str:
        return " ".join([word(), *rng.choices(("yes", "why", "木", "a", "tree"), k=rng.randrange(3))])

    def spot() -> str:
        return f"{rng.random():.3f} {rng.random():.3f}"

    makers = {
        "type": (14, text),
        "send": (14, text),
        "burst": (5, lambda: f"{text()}\r{word()}"),
        "paste": (3, lambda: f"{word()} {rng.choice(PASTES)}"),
        "bound": (18, lambda: sequence(rng.choice(BOUND))),
        "move": (8, lambda: sequence(rng.choice(MOVING)) * rng.choice((1, 1, 3))),
        "edit": (5, lambda: sequence(rng.choice(EDITING))),
        "letter": (4, lambda: rng.choice(LETTERS)),
        "enter": (5, lambda: "\r"),
        "escape": (10, lambda: sequence("escape") * rng.choice((1, 1, 2))),
        "command": (7, lambda: rng.choice(COMMANDS)),
        "click": (7, spot),
        "drag": (2, lambda: f"{spot()} {spot()}"),
        "scroll": (2, lambda: f"{rng.choice(('up', 'down'))} {spot()}"),
        "resize": (3, lambda: " ".join(map(str, rng.choice(SIZES)))),
        "empty": (2, str),
        "answer": (3, lambda: str(rng.randrange(ANSWERS))),
        "fault": (1, lambda: rng.choice(("refuse", "early", "fail", "break"))),
        "pause": (5, lambda: f"{rng.choice((0.01, 0.06, 0.12))}"),
        "wait": (6, str),
        "quit": (1, str),
    }
    kinds, weights = list(makers), [weight for weight, _ in makers.values()]
    for kind in rng.choices(kinds, weights, k=count):
        yield Action(kind, makers[kind][1]())


def save(path: Path, actions: list[Action]) -> Path:
    """A replay: `python -m abuse monkey --actions FILE`."""
    path.write_bytes(b"".join(msgspec.json.encode(one) + b"\n" for one in actions))
    return path


def load(path: Path) -> list[Action]:
    return [msgspec.json.decode(line, type=Action) for line in path.read_bytes().splitlines()]
