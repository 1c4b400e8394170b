"""What the forms with a tag before and after a call share: text up to a block, and what follows one."""

from __future__ import annotations

import abc

from dflash_core.text.tool_calls.parser import Parser
from dflash_core.text.tool_calls.reader import Reading

SPACE = " \n\r\t"


class TaggedParser(Parser):
    """Text and blocks. White space before a call is layout, and goes; after the last call as well.

    `bare`: what a block without an opening tag begins with, "" for nothing.
    """

    open, close = "<tool_call>", "</tool_call>"
    bare = ""

    @abc.abstractmethod
    def read_block(self) -> Reading[None]:
        """Read one block, from what it begins with. Raises BrokenCallError."""

    def accepts(self, begin: str, before: str) -> Reading[bool]:
        """Whether a block may begin here: the text `before` it ends so."""
        yield from ()
        return True

    def parse(self) -> Reading[None]:
        line = ""  # the end of the text so far
        after_call = False

        def emit(text: str) -> None:
            nonlocal line, after_call
            line, after_call = text[-1:], False
            self.text(text)

        ends = (self.open, self.close, *([self.bare] if self.bare else []))
        while True:
            begin, space = yield from self.reader.until(ends, emit, SPACE)
            if begin == self.close and after_call:  # closed twice
                yield from self.reader.take(len(begin))
            elif not begin:
                self.text("" if after_call else space)
                return
            elif begin != self.close and (yield from self.accepts(begin, line + space)):
                after_call = yield from self.block(space, self.read_block)
                line = "" if after_call else ">"
            else:
                emit(space + (yield from self.reader.take(len(begin))))
