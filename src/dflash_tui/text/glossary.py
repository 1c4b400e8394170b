"""One glossary for every figure and parameter, used by `?`, the tour, the parameters' help and the README.

A figure is drawn with `figure(key, style)` as its style, or by `told` within a sentence. The drawn cells carry the
key: a click looks it up, `?` collects all keys of a panel, and a test finds every number without one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache

from textual.content import Content

from dflash_core.knobs import CONTEXT, SPEC, SPECS, Spec
from dflash_tui.text.knob_terms import MORE
from dflash_tui.text.terms import READING, TERMS, Term

META = "figure"  # the name of the key in a cell's style
SHORT = {
    "drafting": ("B=", "tree ", "chain ", "up to ", "budget ", "budget="), "p_min": ("p=",),
    "temperature": ("T ", "T="), "tree_temperature": ("tree T ",), "draft_window": ("window ",),
}  # fmt: skip
"""Short names of parameters, for narrow places."""
QUOTED = "quoted"
"""The key of text from elsewhere: names, paths, prompts, answers. Its numbers are not figures."""


def _of_knob(spec: Spec) -> Term:
    more, source = MORE.get(spec.name, ("", "dflash_core.knobs:Knobs"))  # a test checks that none is missing
    allowed = f"{more} Allowed: {spec.allowed}; default {spec.show(spec.default)}."
    names = "|".join(dict.fromkeys(re.escape(one) for one in (spec.name, spec.label)))
    units = (f"(?:{names})[ =]{{n}}", *(f"{short}{{n}}" for short in SHORT.get(spec.name, ())))
    return Term(spec.name, spec.label, spec.help, allowed, source, "parameters", units)


GLOSSARY: Mapping[str, Term] = {term.key: term for term in (*TERMS, *map(_of_knob, SPECS), _of_knob(CONTEXT))}


def reading(key: str) -> str:
    """What to read about a term."""
    part = GLOSSARY[key].part
    if key == CONTEXT.name:
        part = "memory"
    elif key in SPEC and SPEC[key].group == "speculation":
        part = "drafts"
    document, heading = READING[part]
    return f"{document}, {heading.replace('`', '')}"


def figure(key: str, style: str = "") -> str:
    """A style that carries the key of a figure, at its end."""
    return f"{style} {META}='{key}'".lstrip()


def told(text: str, style: str = "", otherwise: str = "") -> list[tuple[str, str]]:
    """A sentence in parts. Each number before a unit, or after a parameter's name, carries the key of its figure.

    `otherwise` is the key of the remaining numbers, if all of them are the same figure.
    """
    if not any(map(str.isdigit, text)):
        return [(text, style)] if text else []  # most texts have no digit, and the pattern is slow to build
    parts: list[tuple[str, str]] = []
    at = 0
    for match in _pattern(otherwise).finditer(text):
        key = _KEYS[int(match.lastgroup[1:])] if match.lastgroup else otherwise
        if match.start() > at:
            parts.append((text[at : match.start()], style))
        parts.append((match[0], figure(key, style)))
        at = match.end()
    if at < len(text):
        parts.append((text[at:], style))
    return parts


def sentence(text: str, style: str = "", otherwise: str = "") -> Content:
    """`told`, as content for a widget."""
    return Content.assemble(*told(text, style, otherwise))


_NUMBER = r"[~≈+−±-]?(?:\d(?:[\d,.]*\d)?|\.\d+)[kMG]?"
_UNITS = sorted(((unit, term.key) for term in GLOSSARY.values() for unit in term.units), key=lambda pair: -len(pair[0]))
_KEYS = [key for _, key in _UNITS]


@cache
def _pattern(otherwise: str) -> re.Pattern[str]:
    """Longer units come first: `130 tok/s` is not `130 tok`."""
    found = [f"(?P<u{place}>{unit.replace('{n}', _NUMBER)})" for place, (unit, _) in enumerate(_UNITS)]
    found += [_NUMBER] if otherwise else []
    return re.compile(rf"(?<![\w.])(?:{'|'.join(found)})(?!\w)")
