"""What an answer must conform to: a format that the request names, or calls of its tools."""

from __future__ import annotations

from dflash_core.constraints.base import Constraint
from dflash_core.constraints.grammar import Grammar, Grammars
from dflash_core.errors import CompilerBusyError, GrammarError
from dflash_core.messages import Prompt
from dflash_core.text.tokenizer import Tokenizer
from dflash_core.text.tool_calls.forms import Form, tool_grammar
from dflash_tui.server.asked import GRAMMAR, Asked
from dflash_tui.server.request_error import busy, invalid


class Constraining:
    """Compiles grammars of requests for one model. `form`: how it writes calls; None where that is not known."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, form: Form | None) -> None:
        self._tokenizer, self._form = tokenizer, form
        self._grammars = Grammars(tokenizer, vocab_size)

    def constraint(self, asked: Asked, prompt: Prompt, *, thinking: bool) -> Constraint | None:
        """That of a request's answer; it does not hold for the reasoning. Raises RequestError for what cannot be
        followed."""
        required = asked.choice == "required"
        if asked.grammar is not None and required:
            raise invalid("a call is required and a format is given, which exclude each other", "tool_choice")
        place = asked.places.get(GRAMMAR) if asked.grammar is not None else "tool_choice" if required else "tools"
        try:
            grammar = asked.grammar or self._of_tools(asked, required=required)
            if grammar is None:
                return None
            return self._grammars.of_answer(grammar, thinking=thinking, opens_thinking=prompt.opens_thinking)
        except CompilerBusyError as error:
            raise busy(str(error), "compiler_busy") from None
        except GrammarError as error:
            raise invalid(str(error), place) from None

    def _of_tools(self, asked: Asked, *, required: bool) -> Grammar | None:
        """The grammar of calls that must be made, or must follow their schemas. Where a call could begin anywhere in a
        text, those that are only strict are left as they are."""
        form, special = self._form, self._tokenizer.special
        if not required and not (
            asked.strict and asked.tools and asked.choice == "auto" and form is not None and form.begins in special
        ):
            return None
        source = tool_grammar(form, asked.tools, special, name=asked.tool, several=asked.parallel, free=not required)
        # A form that reads the names of channels itself has them in its grammar too.
        channels = self._tokenizer.channels
        whole = form is not None and channels is not None and form.shown.issuperset(channels.tokens)
        return Grammar("lark", source, whole=whole)
