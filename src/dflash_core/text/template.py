"""A model's chat template: messages to the text of a prompt."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

from dflash_core.errors import TemplateError
from dflash_core.text import sandbox
from dflash_core.text.tokenizer import Tokenizer

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_SOURCE_LENGTH = 2**20


class ChatTemplate:
    """The template of a model file, or plain ChatML where the file has none; then `notice` says so, for showing once.

    Thread-safe. Raises TemplateError for a source that does not compile.
    """

    def __init__(self, source: str | None, variables: Mapping[str, str] | None = None) -> None:
        """`variables` are further names that the template may use, such as `bos_token`."""
        self.notice: str | None = None
        if source is None:
            source = CHATML
            self.notice = "the model file has no chat template; plain ChatML is used"
        if len(source) > _SOURCE_LENGTH:
            raise TemplateError(f"the chat template has {len(source):,} characters, the limit is {_SOURCE_LENGTH:,}")
        self.source = source
        self._variables = dict(variables or {})
        self._lock = threading.Lock()
        self._sandbox = sandbox.Sandbox()
        try:
            self._template = self._sandbox.from_string(source)
        except Exception as error:  # hostile source also makes Python's own compiler raise, RecursionError for one
            raise _refusal("does not compile", error) from None

    @classmethod
    def for_tokenizer(cls, tokenizer: Tokenizer) -> ChatTemplate:
        """The template of the file that `tokenizer` came from. Raises TemplateError."""
        ids = {"bos_token": tokenizer.bos_token_id, "eos_token": tokenizer.eos_token_id}
        return cls(tokenizer.chat_template, {key: tokenizer.name(id) for key, id in ids.items() if id is not None})

    def render(self, messages: Sequence[Mapping[str, str]], *, thinking: bool, generate: bool = True) -> str:
        """The text of a prompt. `generate` ends it with the opening of the assistant's answer.

        Each message has `role` and `content`, the assistant's also `reasoning_content`. Raises TemplateError with the
        template's own words and line if it refuses the messages, fails, or runs away.
        """
        parts: list[str] = []
        length = 0
        try:
            with self._lock:
                self._sandbox.start()
                for part in self._template.generate(
                    self._variables,
                    messages=[dict(message) for message in messages],
                    add_generation_prompt=generate,
                    enable_thinking=thinking,  # a boolean: templates compare with `is false`
                    tools=None,
                    documents=None,
                ):
                    self._sandbox.tick()
                    length += len(part)
                    if length > sandbox.LENGTH:
                        raise ValueError(f"writes more than {sandbox.LENGTH:,} characters")
                    parts.append(part)
        except Exception as error:  # whatever a template can make Python raise; the engine has not been touched
            raise _refusal("failed", error) from None
        return "".join(parts)


def _refusal(what: str, error: Exception) -> TemplateError:
    line = sandbox.line_of(error)
    where = "" if line is None else f", line {line}"
    return TemplateError(f"the chat template {what}{where}: {str(error)[:300] or type(error).__name__}")
