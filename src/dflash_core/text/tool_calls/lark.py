"""Writes grammars in Lark's syntax as llguidance extends it: special tokens, JSON by a schema, text up to a suffix."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from dflash_core.text.template_values import JSON

# White space that is free lets weak models write it for ever; one space after commas and colons is what most text has.
JSON_STYLE: Mapping[str, JSON] = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


def literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def either(bodies: Sequence[str]) -> str:
    return f"({' | '.join(bodies)})"


class Lark:
    """The rules of one grammar. `special`: the special tokens of the vocabulary by name."""

    def __init__(self, special: Mapping[str, int]) -> None:
        self._special = special
        self._rules: dict[str, str] = {}  # by body, with what follows the name

    def has(self, name: str) -> bool:
        """Whether the vocabulary has a special token of this name."""
        return name in self._special

    def token(self, name: str) -> str:
        """A token that is special where the vocabulary says so; text otherwise."""
        return f"<[{self._special[name]}]>" if self.has(name) else literal(name)

    def rule(self, body: str, attributes: str = "") -> str:
        """A rule of its own; its name."""
        return self._rules.setdefault(f"{attributes}: {body}", f"rule_{len(self._rules)}")

    def text(self) -> str:
        """Any text; special tokens are none."""
        return self.rule("/(.|\\n)*/")

    def text_until(self, suffix: str) -> str:
        """Any text up to `suffix`, and that."""
        return self.rule("/(.|\\n)*/", f"[suffix={literal(suffix)}]")

    def json(self, schema: Mapping[str, JSON], root: Mapping[str, JSON]) -> str:
        """JSON by `schema`, whose references are into `root`."""
        shared = {key: root[key] for key in ("$defs", "definitions") if key in root}
        whole = {**shared, **schema, "x-guidance": {**JSON_STYLE, "lenient": True}}
        return self.rule(f"%json {json.dumps(whole, ensure_ascii=False)}")

    def source(self, start: str) -> str:
        return "\n".join([f"start: {start}", *(f"{name}{rest}" for rest, name in self._rules.items())])
