"""Mixes the families into conversations, with and without thinking, in two splits that share no template."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from . import arithmetic, everyday, problems, program, python_code, smalltalk
from .base import Draw, Exchange, NothingHeldError
from .splits import Split, split_of

Generator = Callable[[Draw], Exchange]

SHARES: list[tuple[Sequence[tuple[Generator, float]], float]] = [
    (arithmetic.FAMILIES, 0.22),
    (everyday.FAMILIES, 0.21),
    (problems.FAMILIES, 0.09),
    (python_code.FAMILIES, 0.19),
    (smalltalk.FAMILIES, 0.10),
    (program.FAMILIES, 0.19),
]
"""What a generated document asks about, by share of documents."""

THINKING_SHARE = 0.25
SYSTEM = [
    "You are a helpful assistant.",
    "You are a helpful and friendly assistant.",
    "Answer briefly.",
    "You are the demo model of dflash-tui.",
]


@dataclass(frozen=True)
class Document:
    """A conversation that ends with an answer. `history` holds (question, answer) turns before it."""

    exchange: Exchange
    history: tuple[tuple[str, str], ...] = ()
    thinking: bool = False
    system: str = ""

    def prompt(self) -> str:
        """Everything up to the answer, as the chat template renders it with a generation prompt."""
        parts = [f"<|im_start|>system\n{self.system}<|im_end|>\n"] if self.system else []
        for question, answer in self.history:
            parts.append(
                f"<|im_start|>user\n{question.strip()}<|im_end|>\n<|im_start|>assistant\n{answer.strip()}<|im_end|>\n"
            )
        think = "<think>\n" if self.thinking else "<think>\n\n</think>\n\n"
        parts.append(f"<|im_start|>user\n{self.exchange.user.strip()}<|im_end|>\n<|im_start|>assistant\n{think}")
        return "".join(parts)

    def answer(self) -> str:
        """What the model has to write, the end token included."""
        thought = f"{self.exchange.thought.strip()}\n</think>\n\n" if self.thinking else ""
        return f"{thought}{self.exchange.answer.strip()}<|im_end|>"


def exchange(draw: Draw) -> Exchange:
    """One exchange of the mixture."""
    while True:
        families, _ = draw.rng.choices(SHARES, [share for _, share in SHARES])[0]
        generator, _ = draw.rng.choices(families, [weight for _, weight in families])[0]
        try:
            return generator(draw)
        except NothingHeldError:
            continue


def document(seed: str, split: Split) -> Document:
    """The generated document number `seed`: one question, or a few turns before it."""
    draw = Draw(seed, split)
    turns = draw.rng.choices([0, 1, 2, 3, 6], [0.66, 0.18, 0.1, 0.05, 0.01])[0]
    history = tuple((e.user, e.answer) for e in (exchange(draw) for _ in range(turns)))
    system = draw.one(SYSTEM) if draw.chance(0.04) else ""
    return Document(exchange(draw), history, draw.chance(THINKING_SHARE), system)


def generated(count: int, split: Split, seed: int = 0, first: int = 0) -> Iterator[Document]:
    """Documents from number `first` on; each depends on its own number and the seed alone."""
    return (document(f"{seed}:{split}:{i}", split) for i in range(first, first + count))


def read_documents(exchanges: Sequence[Exchange], split: Split) -> Iterator[Document]:
    """Exchanges that were read from somewhere, this split's part of them, answered without thinking.

    School math comes with thinking too: its answer already is the reasoning, so that version answers with the result.
    """
    for e in exchanges:
        if split_of(f"{e.family}:{e.user}") != split:
            continue
        yield Document(e)
        if e.family == "school math":
            result = e.answer.rsplit("\n", 1)[-1]
            e = Exchange(e.user, result, e.thought, e.family)
            yield Document(e, thinking=True)


def sources(school_math: Path | None) -> list[Exchange]:
    """The exchanges that are read rather than generated."""
    out = python_code.standard_library()
    if school_math is not None:
        out += problems.school_math(school_math)
    return out


def sample(split: Split, count: int, seed: int = 0) -> list[Document]:
    return list(islice(generated(count, split, seed), count))
