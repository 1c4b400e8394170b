"""POST /v1/completions: text that goes on without a chat template."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dflash_core.log_probs import MAX_TOP
from dflash_core.text.tokenizer import Tokenizer
from dflash_core.text.tool_calls.parts import Part, Text, Thinking
from dflash_tui.server.asked import Asked
from dflash_tui.server.chat import ChunkWriter, Sampling
from dflash_tui.server.drawn_tokens import LegacyLogProbs
from dflash_tui.server.request_error import invalid


class CompletionRequest(Sampling, kw_only=True):
    prompt: str | list[Any]
    suffix: str | None = None
    echo: bool | None = None
    best_of: int | None = None
    logprobs: int | None = None


def asked_of(request: CompletionRequest, tokenizer: Tokenizer, vocabulary: int) -> Asked:
    """The request in the decoder's terms. Raises RequestError."""
    request.check({"best_of": request.best_of}, {"suffix": request.suffix, "echo": request.echo})
    if request.logprobs is not None and not 0 <= request.logprobs <= MAX_TOP:
        raise invalid(f"logprobs is {request.logprobs}, expected 0 to {MAX_TOP}", "logprobs")
    ids = _ids(request.prompt, tokenizer, vocabulary, special=request.switch("special"))
    return request.asked(
        limits=(request.max_tokens,), stop=request.stop, thinking="off", ids=ids, place="prompt",
        log_probs=request.logprobs, timings=request.timings_per_token is True,
    )  # fmt: skip


def _ids(prompt: str | list[Any], tokenizer: Tokenizer, vocabulary: int, *, special: bool) -> tuple[int, ...]:
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], (str, list)):
        prompt = prompt[0]
    if isinstance(prompt, str):
        ids = tuple(tokenizer.encode(prompt, special=special))
    elif all(isinstance(one, int) and not isinstance(one, bool) and 0 <= one < vocabulary for one in prompt):
        ids = tuple(prompt)
    else:
        raise invalid(f"expected one prompt: a string, or a list of ids below {vocabulary}", "prompt")
    if not ids:
        raise invalid("the prompt is empty", "prompt")
    return ids


class CompletionWriter(ChunkWriter):
    """Writes a completion."""

    def __init__(self, request: CompletionRequest, model: str) -> None:
        super().__init__(request, "text_completion", "cmpl-", model)
        self._log_probs = request.logprobs is not None
        self._listing = LegacyLogProbs()

    def _choice(self, parts: Sequence[Part], listing: LegacyLogProbs, finish: str | None = None) -> dict[str, Any]:
        listed = listing.listed(parts) if self._log_probs else None
        return {"index": 0, "text": _text(parts), "finish_reason": finish, "logprobs": listed}

    def parts(self, parts: Sequence[Part]) -> bytes:
        return self._chunk(self._choice(parts, self._listing)) if _text(parts) else b""

    def last(self, reason: str) -> tuple[dict[str, Any], dict[str, Any]]:
        return self._choice((), self._listing, reason), self._choice(self.all_parts, LegacyLogProbs(), reason)


def _text(parts: Sequence[Part]) -> str:
    """All that was written: without a template, reasoning is text like any other."""
    return "".join(one.text for one in parts if isinstance(one, (Text, Thinking)))
