"""The Jinja environment that a chat template runs in: no way out, no endless loop, no giant string.

Jinja's own sandbox keeps a template away from Python's internals and from the caller's objects. Added here: a deadline
that every loop and macro checks, and a bound on the length of everything an operator, a filter or a call returns. They
stop most runaway templates with an error that has a line. They cannot stop a single library call, nor what Jinja
evaluates at compile time: an unknown template is therefore compiled and rendered in a process that can be killed
(`render_process`).
"""

from __future__ import annotations

import functools
import json
import re
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from types import CodeType
from typing import TYPE_CHECKING, Any

from jinja2 import TemplateRuntimeError, TemplateSyntaxError, nodes
from jinja2.exceptions import TemplateError as JinjaError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from dflash_core.errors import LateTemplateError, TemplateError

if TYPE_CHECKING:
    from dflash_core.text.reasoning import Messages, Variables

SECONDS = 2.5  # of a render
LENGTH = 16 * 2**20  # characters of a string, items of a list
_WIDTH = 1000  # columns that a layout filter or method may produce
_BITS = 4096  # of an integer

_LAYOUT_FILTERS = frozenset({"batch", "center", "indent", "slice", "tojson", "wordwrap"})
_LAYOUT_METHODS = frozenset({"center", "expandtabs", "ljust", "rjust", "zfill"})
_WIDE_FORMAT = re.compile(r"%[-+ #0]*(\d*\.)?(\*|\d{5,})|\{[^{}]*(\d{5,}|:[^{}]*\{)")  # in "%..." or "{...}"


class _LateError(TemplateRuntimeError):
    """The deadline of a render has passed."""


class Sandbox(ImmutableSandboxedEnvironment):
    """An environment for one render at a time, which may take `seconds`: call `start`, then generate."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, seconds: float) -> None:
        # trim_blocks and lstrip_blocks as in Hugging Face's code: published templates rely on them.
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", GenerationBlock])
        self._seconds, self._deadline = seconds, 0.0
        self.filters["tojson"] = _to_json
        self.filters = {name: self._bounded(name, function) for name, function in self.filters.items()}
        del self.globals["lipsum"]
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now

    def start(self) -> None:
        """Begin a render: the deadline counts from now."""
        self._deadline = time.monotonic() + self._seconds

    def tick(self) -> None:
        """Called by the compiled template on every pass of a loop and every call of a macro."""
        if time.monotonic() > self._deadline:
            raise _LateError(f"still running after {self._seconds:g} s")

    def sized(self, value: Any) -> Any:
        """Return `value`. Raises TemplateRuntimeError if it is too long."""
        if isinstance(value, (str, bytes, list, tuple, dict)) and len(value) > LENGTH:
            raise TemplateRuntimeError(f"builds a value of {len(value):,} parts, the limit is {LENGTH:,}")
        if isinstance(value, int) and value.bit_length() > _BITS:
            raise TemplateRuntimeError(f"builds a number of {value.bit_length():,} bits, the limit is {_BITS:,}")
        return value

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "*":
            for one, other in ((left, right), (right, left)):
                if isinstance(one, int) and isinstance(other, (str, list, tuple)) and one * len(other) > LENGTH:
                    raise TemplateRuntimeError(f"builds a value of {one * len(other):,} parts, the limit is {LENGTH:,}")
        if operator == "**" and isinstance(left, int) and isinstance(right, int) and left.bit_length() * right > _BITS:
            raise TemplateRuntimeError(f"builds a number of more than {_BITS:,} bits")
        if operator == "%" and isinstance(left, str):
            _check_format(left)
        return self.sized(super().call_binop(context, operator, left, right))

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        # Jinja's own parameter names, so that a template's keyword arguments cannot collide with them.
        method = getattr(__obj, "__wrapped__", __obj)  # the sandbox wraps str.format
        if isinstance(text := getattr(method, "__self__", None), str):
            if method.__name__ in _LAYOUT_METHODS:
                _check_widths(method.__name__, args, kwargs)
            if method.__name__ in ("format", "format_map"):
                _check_format(text)
        return __self.sized(super().call(__context, __obj, *args, **kwargs))

    def _bounded(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)  # carries Jinja's marks over, such as "wants the environment"
        def bounded(*args: Any, **kwargs: Any) -> Any:
            if name in _LAYOUT_FILTERS:
                _check_widths(name, args, kwargs)
            if name == "format":
                _check_format(str(args[0]))
            return self.sized(function(*args, **kwargs))

        return bounded

    def _generate(self, source: nodes.Template, *args: Any, **kwargs: Any) -> str:
        # The hook between Jinja's parser and its compiler.
        return super()._generate(_Metered().visit(source), *args, **kwargs)


@functools.lru_cache(maxsize=8)
def _code(source: str) -> CodeType:
    """What Jinja makes of a template. A model that is loaded again, or with another drafter, has the same one."""
    return Sandbox(SECONDS).compile(source)


class Compiled:
    """A template, ready to render in this process. Raises TemplateError for a source that does not compile."""

    def __init__(self, source: str, variables: Mapping[str, str], seconds: float = SECONDS) -> None:
        """`variables` are further names that it may use; `seconds` is what a render may take."""
        self._variables = dict(variables)
        self._sandbox = Sandbox(seconds)
        try:
            code, names = _code(source), self._sandbox.make_globals(None)
            self._template = self._sandbox.template_class.from_code(self._sandbox, code, names)
        except Exception as error:  # hostile source also makes Python's own compiler raise, RecursionError for one
            raise _refusal("does not compile", error) from None

    def render(self, messages: Messages, *, thinking: bool, generate: bool, variables: Variables) -> str:
        """The text of a prompt. Raises TemplateError with the template's own words and line."""
        parts: list[str] = []
        length = 0
        try:
            self._sandbox.start()
            for part in self._template.generate(
                {**self._variables, **variables},
                messages=[dict(message) for message in messages],
                add_generation_prompt=generate,
                enable_thinking=thinking,  # a boolean: templates compare with `is false`
                tools=None,
                documents=None,
            ):
                self._sandbox.tick()
                length += len(part)
                if length > LENGTH:
                    raise ValueError(f"writes more than {LENGTH:,} characters")
                parts.append(part)
        except Exception as error:  # whatever a template can make Python raise; the engine has not been touched
            raise _refusal("failed", error) from None
        return "".join(parts)


class _Metered(NodeTransformer):
    """Puts `tick` into every loop and macro, and `sized` around every `~`, which cannot be intercepted otherwise."""

    def _with_tick(self, node: nodes.For | nodes.Macro | nodes.CallBlock) -> nodes.Node:
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(_method("tick", [], node.lineno), lineno=node.lineno))
        return node

    visit_For = visit_Macro = visit_CallBlock = _with_tick  # noqa: N815 - Jinja's names

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802 - Jinja's name
        self.generic_visit(node)
        return _method("sized", [node], node.lineno)


def _method(name: str, args: list[nodes.Expr], lineno: int) -> nodes.Call:
    return nodes.Call(nodes.EnvironmentAttribute(name, lineno=lineno), args, [], None, None, lineno=lineno)


class GenerationBlock(Extension):
    """`{% generation %}...{% endgeneration %}`, with which some templates mark the model's text: renders the body."""

    tags = {"generation"}  # noqa: RUF012 - as the base class declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> None:
    raise JinjaError(message)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False
) -> str:
    # Not Jinja's own: that one escapes <, > and & for HTML, and no model was trained on that. The order of the
    # arguments is that of Hugging Face's filter.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _check_widths(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    for argument in (*args, *kwargs.values()):
        if isinstance(argument, int) and argument > _WIDTH:
            raise TemplateRuntimeError(f"asks {name} for {argument:,} columns, the limit is {_WIDTH:,}")


def _check_format(format: str) -> None:
    if _WIDE_FORMAT.search(format):
        raise TemplateRuntimeError(f"uses a format with an unreasonable width: {format!r:.60}")


def _refusal(what: str, error: Exception) -> TemplateError:
    line = _line_of(error)
    where = "" if line is None else f", line {line}"
    words = "it needs more memory than it may take" if isinstance(error, MemoryError) else str(error)[:300]
    kind = LateTemplateError if isinstance(error, _LateError) else TemplateError
    return kind(f"the chat template {what}{where}: {words or type(error).__name__}")


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
