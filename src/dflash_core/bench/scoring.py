r"""Is a final answer right? For GSM8K and MATH: the last \boxed{...} of a text, or its last number, in normal form."""

from __future__ import annotations

import re
from fractions import Fraction

_NUMBER = re.compile(r"-?\$?\d[\d,]*(?:\.\d+)?(?:/\d+)?")
_PLAIN = re.compile(r"[-+]?\d*(?:\.\d+)?(?:/\d+)?")  # no exponent: 1e30000000 takes forever
_DROPPED = re.compile(r"\\left|\\right|\\[!,;: ]|\\(?:text|mathrm|mbox)\{\s*([^{}]*)\}|[\s$]|\^\{?\\circ\}?|\\%|%")
_FRACTION = re.compile(r"(-?)\\[dt]?frac(?:\{(-?\d+)\}|(\d))(?:\{(-?\d+)\}|(\d))")


def is_right(answer: str, reference: str) -> bool:
    """Whether the final answer of `answer` is that of `reference`: equal as numbers, or as normalised text.

    A GSM8K reference ends in `#### 18`, a MATH reference is the answer itself or a solution with a \\boxed{} one.
    """
    found, expected = final(answer), final(reference, exact=True)
    if found is None or expected is None:
        return False
    x, y = _value(found), _value(expected)
    return x == y if x is not None and y is not None else found == expected


def final(text: str, *, exact: bool = False) -> str | None:
    """The final answer in a text, normalised; None where there is none. `exact`: a bare text is itself the answer."""
    _, marked, after = text.rpartition("####")
    if marked:
        return normal(after)
    boxed = _last_boxed(text)
    if boxed is not None:
        return normal(boxed)
    if exact:
        return normal(text) or None
    numbers = _NUMBER.findall(text)
    return normal(numbers[-1]) if numbers else None


def normal(answer: str) -> str:
    """A normal form of answers: without spaces, currency signs, degree or percent units."""
    answer = _DROPPED.sub(lambda match: match[1] or "", answer).rstrip(".")
    answer = _FRACTION.sub(lambda m: f"{m[1]}{m[2] or m[3]}/{m[4] or m[5]}", answer)
    return re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", answer)


def _value(answer: str) -> Fraction | None:
    if _PLAIN.fullmatch(answer) is None:
        return None
    try:
        return Fraction(answer)
    except (ValueError, ZeroDivisionError):
        return None


def _last_boxed(text: str) -> str | None:
    r"""The content of the last \boxed{...}, with matched braces."""
    start = text.rfind("\\boxed{")
    if start < 0:
        return None
    inside = start + len("\\boxed{")
    depth = 1
    for at in range(inside, len(text)):
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        if depth == 0:
            return text[inside:at]
    return None
