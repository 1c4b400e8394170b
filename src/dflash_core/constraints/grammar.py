"""Schemas and grammars by llguidance, which is imported here and nowhere else, when the first one is compiled.

The library's masks are words of 32 bits, the lowest bit the lowest id. A matcher consumes tokens and goes back by any
number of them. It does not raise: every call is followed by a look at its error.
"""

from __future__ import annotations

import json
import re
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from dflash_core.constraints.base import Constraint, Mask
from dflash_core.errors import CompilerBusyError, GrammarError
from dflash_core.text.template_values import JSON
from dflash_core.text.thinking import Channels
from dflash_core.text.tokenizer import THINK_TAGS, Tokenizer
from dflash_core.text.tool_calls.lark import JSON_STYLE, Lark, literal

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer


class AfterThinking:
    """Implements `base.Constraint`: `inner` begins after the first closing tag, also in the middle of a step.

    `opened`: the prompt ends inside the reasoning. Otherwise the answer may begin with the opening tag.
    """

    def __init__(self, inner: Constraint, tags: tuple[int, int], *, opened: bool) -> None:
        """`tags`: the ids of the opening and the closing tag."""
        self._inner, self._open, self._close = inner, *tags
        self._opened = opened
        self._tokens: list[int] = []
        self._begin: int | None = None  # how many tokens come before the answer; None while that is not known

    def add(self, tokens: Sequence[int]) -> None:
        before: int | None = len(self._tokens)
        self._tokens += tokens
        if self._begin is None:
            self._begin = before = self._begun(self._tokens)
        if before is not None:
            self._inner.add(self._tokens[before:])

    def drop(self) -> None:
        self._tokens.pop()
        if self._begin is not None and self._begin <= len(self._tokens):
            self._inner.drop()
        self._begin = self._begun(self._tokens)

    def allowed(self, path: Sequence[int]) -> Mask | None:
        inner = self._path(path)
        if inner is None:
            return None
        mask = self._inner.allowed(inner)
        if mask is not None and self._may_open(path):
            mask = mask.copy()
            mask[self._open // 32] |= np.uint32(1) << np.uint32(self._open % 32)
        return mask

    def admits(self, path: Sequence[int], token: int) -> bool:
        inner = self._path(path)
        return inner is None or (token == self._open and self._may_open(path)) or self._inner.admits(inner, token)

    def forced(self) -> Sequence[int]:
        return self._inner.forced() if self._begin is not None else ()

    def _may_open(self, path: Sequence[int]) -> bool:
        return not (self._opened or self._tokens or path)

    def _path(self, path: Sequence[int]) -> Sequence[int] | None:
        """The part of `path` that `inner` knows; None inside the reasoning."""
        if self._begin is not None:
            return path
        if self._may_open(path):
            return ()
        if self._tokens:
            return path[path.index(self._close) + 1 :] if self._close in path else None
        begin = self._begun(path)
        return None if begin is None else path[begin:]

    def _begun(self, tokens: Sequence[int]) -> int | None:
        """The number of tokens before the answer; None inside the reasoning, or before the first token shows whether
        there is any."""
        if self._opened or (tokens and tokens[0] == self._open):
            return tokens.index(self._close) + 1 if self._close in tokens else None
        return 0 if tokens else None


MAX_COMPILED = 64
MAX_SOURCE = 2**20  # characters
COMPILE_S = 2.0
"""The longest that a grammar may take to compile. The library's time grows with the square of optional keys."""
MAX_LATE = 2
"""As many grammars may go on being compiled after that."""
_SLASH = re.compile(r"\\.|/", re.DOTALL)
AFTER_REASONING = "start: space @body\nspace: /[ \\n]{0,4}/"
"""Line breaks usually follow a closing tag."""


@dataclass(frozen=True, slots=True)
class Grammar:
    """What an answer must conform to. `source`: a JSON schema, a regular expression, a JSON list of texts to choose
    from, or a grammar in Lark's syntax as llguidance extends it. `lenient`: ignore what the library does not know in a
    schema. `whole`: it describes all of the answer, the names of channels and reasoning in them included. `calls`: a
    grammar in Lark's syntax that has this one as @answer: calls of tools may come in its place."""

    kind: Literal["schema", "regex", "choice", "lark"]
    source: str
    lenient: bool = False
    whole: bool = False
    calls: str = ""

    @property
    def title(self) -> str:
        return "grammar" if self.kind == "lark" else self.kind

    @classmethod
    def schema(cls, schema: Mapping[str, JSON] | bool, *, lenient: bool = False) -> Grammar:
        """Raises GrammarError for one that is nested too deep."""
        try:
            return cls("schema", json.dumps(schema, ensure_ascii=False), lenient)
        except RecursionError:
            raise GrammarError("this schema cannot be followed: it is nested too deep") from None

    @classmethod
    def choice(cls, texts: Sequence[str]) -> Grammar:
        return cls("choice", json.dumps(list(texts), ensure_ascii=False))


class Grammars:
    """Compiles grammars for one tokenizer, and caches the newest. Thread-safe.

    The first one builds the library's tables of the vocabulary: a second at 248,000 tokens.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        """`vocab_size`: the width of the target's logits."""
        self._tokenizer, self._vocab_size = tokenizer, vocab_size
        self._lock = threading.Lock()
        self._tables: LLTokenizer | None = None
        self._library: Any = None
        self._compiled: OrderedDict[tuple[Grammar, str], LLMatcher] = OrderedDict()
        self._late: list[threading.Thread] = []
        """They compile what took longer than the limit."""

    def of_answer(self, grammar: Grammar, *, thinking: bool, opens_thinking: bool) -> Constraint:
        """The constraint of an answer, which does not hold for the reasoning before it. `thinking`: the model may
        reason; `opens_thinking`: the prompt ends within its reasoning. Raises what `constraint` raises."""
        special, channels = self._tokenizer.special, self._tokenizer.channels
        if channels is not None:
            return self.constraint(grammar, "" if grammar.whole else _in_channels(channels, special))
        if not (thinking or opens_thinking) or any(tag not in special for tag in THINK_TAGS):
            return self.constraint(grammar)
        opening, closing = (special[tag] for tag in THINK_TAGS)
        return AfterThinking(self.constraint(grammar, AFTER_REASONING), (opening, closing), opened=opens_thinking)

    def constraint(self, grammar: Grammar, around: str = "") -> GrammarConstraint:
        """The constraint of one answer. `around`: a grammar that has `grammar` as @body. Raises GrammarError for what
        the library refuses, and where it is not installed."""
        with self._lock:
            found = self._compiled.pop((grammar, around), None) or self._compiled_in_time(grammar, around)
            self._compiled[grammar, around] = found
            if len(self._compiled) > MAX_COMPILED:
                self._compiled.popitem(last=False)
            return GrammarConstraint(found.deep_copy(), self._tokenizer.stop_ids)

    def _compiled_in_time(self, grammar: Grammar, around: str) -> LLMatcher:
        """Raises GrammarError. The library cannot be interrupted: what takes too long goes on in the background, and
        while there is too much of that nothing else is compiled, so that requests cannot fill the processor."""
        if len(grammar.source) > MAX_SOURCE:
            raise GrammarError(
                f"a {grammar.title} of {len(grammar.source):,} characters, expected {MAX_SOURCE:,} at most"
            )
        self._late = [one for one in self._late if one.is_alive()]
        if len(self._late) >= MAX_LATE:
            raise CompilerBusyError(
                "other grammars, which took too long, are still being compiled; send this one later"
            )
        if self._tables is None:
            self._load()
        compiled: Future[LLMatcher] = Future()

        def work() -> None:
            try:
                compiled.set_result(self._compile(grammar, around))
            except Exception as error:
                compiled.set_exception(error)

        thread = threading.Thread(target=work, name="dflash-grammar", daemon=True)
        thread.start()
        try:
            return compiled.result(COMPILE_S)
        except TimeoutError:
            self._late.append(thread)
            raise GrammarError(
                f"this {grammar.title} takes more than {COMPILE_S:g} s to compile, the limit; simplify it"
            ) from None

    def _load(self) -> None:
        try:
            import llguidance
        except ImportError:
            raise GrammarError("constrained answers need the package llguidance, which is not installed") from None
        if not self._tokenizer.stop_ids:
            raise GrammarError("this model has no token that ends an answer, so none can be constrained")
        self._library = llguidance
        wrapped = llguidance.TokenizerWrapper(_Vocabulary(self._tokenizer, self._vocab_size))
        stops = sorted(self._tokenizer.stop_ids)
        self._tables = llguidance.LLTokenizer(wrapped, n_vocab=self._vocab_size, eos_token=stops)

    def _compile(self, grammar: Grammar, around: str) -> LLMatcher:
        assert self._tables is not None, "compiled before the tables are built"
        parts: list[dict[str, Any]] = [{"lark_grammar": around}] if around else []
        parts += [{"name": "body", "lark_grammar": grammar.calls}] if grammar.calls else []
        parts.append({"name": "answer" if grammar.calls else "body", **_described(grammar)})
        limits = self._library.LLParserLimits(verbose_errors=False)
        matcher: LLMatcher = self._library.LLMatcher(
            self._tables, json.dumps({"grammars": parts}), log_level=0, limits=limits
        )
        _check(matcher, f"this {grammar.title} cannot be followed")
        # Some are found to be too large, or without any text, by their first mask.
        first = matcher.deep_copy()
        first.compute_bitmask()
        _check(first, f"this {grammar.title} cannot be followed")
        return matcher


class GrammarConstraint:
    """Implements `base.Constraint`."""

    def __init__(self, matcher: LLMatcher, stop_ids: frozenset[int]) -> None:
        self._matcher, self._stop_ids = matcher, stop_ids
        self._walked: list[int] = []  # tokens after the answer that the matcher has consumed
        self._ended = False

    def add(self, tokens: Sequence[int]) -> None:
        self._walk_to(())
        for token in tokens:
            self._consume(token)

    def drop(self) -> None:
        self._walk_to(())
        self._back(1)

    def allowed(self, path: Sequence[int]) -> Mask | None:
        if self._ends(path):
            return None
        self._walk_to(path)
        words = self._matcher.compute_bitmask()
        _check(self._matcher, "the grammar cannot be followed on")
        return np.frombuffer(words, np.uint32)

    def admits(self, path: Sequence[int], token: int) -> bool:
        if self._ends(path):
            return False
        self._walk_to(path)
        if token in self._stop_ids:
            return bool(self._matcher.is_accepting())
        return not self._matcher.is_stopped() and self._matcher.validate_tokens([token]) == 1

    def forced(self) -> Sequence[int]:
        self._walk_to(())
        return () if self._matcher.is_stopped() else self._matcher.compute_ff_tokens()

    def _ends(self, path: Sequence[int]) -> bool:
        """Nothing follows a stop token. The matcher does not get back to the state before one, so none is walked."""
        return not self._stop_ids.isdisjoint(path)

    def _walk_to(self, path: Sequence[int]) -> None:
        shared = 0
        for one, other in zip(self._walked, path):
            if one != other:
                break
            shared += 1
        if more := len(self._walked) - shared:
            self._back(more)
            del self._walked[shared:]
        for token in path[shared:]:
            self._consume(token)
            self._walked.append(token)

    def _consume(self, token: int) -> None:
        self._matcher.consume_token(token)
        _check(self._matcher, "the grammar cannot be followed on")

    def _back(self, count: int) -> None:
        self._matcher.rollback(count)
        _check(self._matcher, "the grammar cannot be followed back")


class _Vocabulary:
    """What the library needs of a tokenizer. Special tokens are never part of text."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self._tokenizer = tokenizer
        self.tokens = [tokenizer.token_bytes(id) for id in range(vocab_size)]
        self.special_token_ids = sorted(tokenizer.special.values())
        self.eos_token_id = min(tokenizer.stop_ids)
        self.bos_token_id = None

    def __call__(self, text: bytes) -> list[int]:
        return self._tokenizer.encode(text.decode("utf-8", "replace"), special=False)


def _in_channels(channels: Channels, special: Mapping[str, int]) -> str:
    """A grammar of an answer in channels: its reasoning, then @body."""
    lark = Lark(special)
    named = lark.token(channels.named) if channels.named else literal("\n")
    name = [literal(channels.thinking), named] if channels.thinking else []
    thinks = [lark.token(channels.opens), *name, lark.text(), lark.token(channels.closes)]
    if not channels.begins:
        return lark.source(f"({' '.join(thinks)})? @body")
    answers = [lark.token(channels.opens), literal("final"), named]
    return lark.source(f'({" ".join(thinks)} {lark.token(channels.begins)} "assistant")? {" ".join(answers)} @body')


def _described(grammar: Grammar) -> dict[str, Any]:
    """The grammar as the library takes it."""
    if grammar.kind == "schema":
        schema = json.loads(grammar.source)
        schema = schema if isinstance(schema, dict) else {"anyOf": [schema]}
        return {"json_schema": {**schema, "x-guidance": {**JSON_STYLE, "lenient": grammar.lenient}}}
    if grammar.kind == "regex":
        return {"lark_grammar": f"start: {_pattern(grammar.source)}"}
    if grammar.kind == "choice":
        texts = json.loads(grammar.source)
        if not texts:
            raise GrammarError("a choice without texts, expected one at least")
        return {"lark_grammar": "start: " + " | ".join(map(literal, texts))}
    return {"lark_grammar": grammar.source}


def _pattern(source: str) -> str:
    """A regular expression as Lark writes one: a slash of its own is escaped, if it is not yet."""
    escaped = _SLASH.sub(lambda found: "\\/" if found[0] == "/" else found[0], source).replace("\n", "\\n")
    return f"/{escaped}/" if source else '""'


def _check(matcher: LLMatcher, what: str) -> None:
    if matcher.is_error():
        reason = matcher.get_error().strip()
        raise GrammarError(f"{what}: {' '.join(reason.split())}")
