"""The Jinja environment that a chat template runs in: Jinja's own sandbox, which keeps a template away from Python's
internals and from the caller's objects, with the names that published templates count on.

Time and memory are bounded elsewhere: an unknown template is compiled and rendered in a process with limits, which can
be killed (`render_process`).
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from datetime import datetime
from types import CodeType
from typing import TYPE_CHECKING, Any

from jinja2 import TemplateSyntaxError, nodes
from jinja2.exceptions import TemplateError as JinjaError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from dflash_core.errors import TemplateError

if TYPE_CHECKING:
    from dflash_core.text.template_values import Messages, Tools, Variables

LENGTH = 16 * 2**20  # characters of a prompt


class Sandbox(ImmutableSandboxedEnvironment):
    """An environment with the names that published templates count on."""

    def __init__(self) -> None:
        # trim_blocks and lstrip_blocks as in Hugging Face's code: published templates rely on them.
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", GenerationBlock])
        self.filters["tojson"] = _to_json
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = lambda format: datetime.now().strftime(format)


@functools.lru_cache(maxsize=8)
def _code(source: str) -> CodeType:
    """What Jinja makes of a template. A model that is loaded again, or with another drafter, has the same one."""
    return Sandbox().compile(source)


class Compiled:
    """A template, ready to render in this process. Raises TemplateError for a source that does not compile."""

    def __init__(self, source: str, variables: Mapping[str, str]) -> None:
        """`variables` are further names that it may use."""
        self._variables, sandbox = dict(variables), Sandbox()
        try:
            self._template = sandbox.template_class.from_code(sandbox, _code(source), sandbox.make_globals(None))
        except Exception as error:  # hostile source also makes Python's own compiler raise, RecursionError for one
            raise _refusal("does not compile", error) from None

    def render(self, messages: Messages, *, thinking: bool, generate: bool, variables: Variables, tools: Tools) -> str:
        """The text of a prompt. Raises TemplateError with the template's own words and line."""
        parts: list[str] = []
        length = 0
        try:
            for part in self._template.generate(
                # Seed-OSS has a budget of tokens, unlimited without one, instead of a flag.
                {**self._variables, **variables, **({} if thinking else {"thinking_budget": 0})},
                messages=[dict(message) for message in messages],
                add_generation_prompt=generate,
                enable_thinking=thinking,  # a boolean: templates compare with `is false`
                tools=list(tools) or None,
                documents=None,
            ):
                length += len(part)
                if length > LENGTH:
                    raise ValueError(f"writes more than {LENGTH:,} characters")
                parts.append(part)
        except Exception as error:  # whatever a template can make Python raise; the engine has not been touched
            raise _refusal("failed", error) from None
        return "".join(parts)


class GenerationBlock(Extension):
    """`{% generation %}...{% endgeneration %}`, with which some templates mark the model's text: renders the body."""

    tags = {"generation"}  # noqa: RUF012 - as the base class declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> None:
    raise JinjaError(message)


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False
) -> str:
    # Not Jinja's own: that one escapes <, > and & for HTML, and no model was trained on that. The order of the
    # arguments is that of Hugging Face's filter.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _refusal(what: str, error: Exception) -> TemplateError:
    line = _line_of(error)
    where = "" if line is None else f", line {line}"
    words = "it needs more memory than it may take" if isinstance(error, MemoryError) else str(error)[:300]
    return TemplateError(f"the chat template {what}{where}: {words or type(error).__name__}")


def _line_of(error: BaseException) -> int | None:
    """The template's line that `error` comes from; Jinja maps tracebacks of compiled templates back to it."""
    if isinstance(error, TemplateSyntaxError):
        return error.lineno
    line, trace = None, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == "<template>":
            line = trace.tb_lineno
        trace = trace.tb_next
    return line
