"""Text of a file, a model or a user, made safe to show: whatever a terminal would obey is replaced by a mark."""

from __future__ import annotations

import re
import unicodedata

LINE = 500  # characters of one line of an error, a note or the log
MARK = "�"

# Control characters of both sets, overrides of the writing direction (they make shown text read differently from what
# it is), halves of surrogate pairs, and the two that no XML file may hold. A line end stays.
_HIDDEN = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")
_INSTEAD = {"\t": "    ", "\r": ""} | dict.fromkeys("\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029", " ")


def clean(text: str) -> str:
    """Replace control characters; a CR is dropped, so CRLF becomes LF even when it is split between two pieces."""
    return _HIDDEN.sub(lambda found: _INSTEAD.get(found[0], MARK), text)


def one_line(text: str, most: int = LINE) -> str:
    """`text` on one line of at most `most` characters; of a longer one the middle is left out."""
    if len(text) > 4 * most:  # drop most of the middle first: cleaning it would be wasted time
        text = f"{text[: 2 * most]} … {text[-2 * most :]}"
    return _cut(clean(" ".join(text.split())), most)


def lines(text: str, most: int = LINE) -> str:
    """Clean text whose line ends and indents stay; the middle of each line longer than `most` is left out."""
    return "\n".join(_cut(line, most) for line in clean(text).split("\n"))


def _cut(line: str, most: int) -> str:
    if len(line) <= most:
        return line
    head = most * 2 // 3
    return f"{line[:head]}…{line[len(line) - (most - head - 1) :]}"


def stripped(text: str) -> str:
    """`text` without hidden characters, of unchanged width on a terminal: for text that is already laid out."""
    return _HIDDEN.sub(lambda found: MARK if found[0] >= "\ud800" else "", text)


def marked(text: str) -> str:
    """`text` with a mark for each hidden character but tabs. The length stays, so indices into it stay valid."""
    return _HIDDEN.sub(lambda found: "\t" if found[0] == "\t" else MARK, text)


def escaped(json: str) -> str:
    """JSON with its hidden characters written as escapes: the same value, safe to show."""
    return _HIDDEN.sub(lambda found: f"\\u{ord(found[0]):04x}", json)


def quoted(data: bytes) -> str:
    """Bytes of a file for a message: as text where it is plain text, else as numbers."""
    if all(0x20 <= one < 0x7F for one in data):
        return f"'{data.decode()}'"
    return f"the bytes {data.hex(' ')}"


_NOTHING = ("Zs", "Zl", "Zp", "Cc", "Cf", "Cs", "Mn")  # categories of characters that show nothing by themselves
_FILLERS = frozenset("\u115f\u1160\u3164\uffa0\u2800")


def blank(text: str) -> bool:
    """Whether there is nothing to read in `text`: only white space and characters without width."""
    return all(unicodedata.category(one) in _NOTHING or one in _FILLERS for one in text)


_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")


def joined(text: str) -> str:
    """`text` with both halves of each surrogate pair as the character that they stand for."""
    return _PAIR.sub(lambda pair: pair[0].encode("utf-16", "surrogatepass").decode("utf-16"), text)


def encodable(text: str) -> str:
    """`text` with a question mark for each half of a surrogate pair without the other, which no file, database or
    tokenizer takes.

    Python uses such halves for bytes of file names and command-line arguments that are not UTF-8.
    """
    return joined(text).encode(errors="replace").decode()


def token_label(text: str) -> str:
    """A token as the tree shows it: its spaces, line ends and tabs made visible."""
    shown = text.replace("\r", "␍").replace("\n", "↵").replace("\t", "⇥").replace(" ", "␣")
    return clean(shown) or "∅"
