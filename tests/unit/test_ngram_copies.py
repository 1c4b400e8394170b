"""Copied text alone, without a drafter: answers that repeat their prompt take half the steps of plain decoding.

The prompts are code, prose and tables with an instruction; the answers are those of a model that follows it. The target
does not matter: copied tokens are accepted where they are the target's own.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from tools.bench import replay
from tools.bench.recorded import Recorded

from dflash_core.demo import demo_target_path
from dflash_core.drafters.ngram import CAPABILITIES
from dflash_core.policy.costs import CPU, H200, CostTable
from dflash_core.text.tokenizer import Tokenizer

CODE = '''\
class Inventory:
    """Counts of items by name, with a history of changes."""

    def __init__(self, items=None):
        self.items = dict(items or {})
        self.history = []

    def add(self, name, count=1):
        if count < 1:
            raise ValueError(f"cannot add {count} of {name}")
        self.items[name] = self.items.get(name, 0) + count
        self.history.append(("add", name, count))

    def remove(self, name, count=1):
        left = self.items.get(name, 0) - count
        if left < 0:
            raise ValueError(f"only {self.items.get(name, 0)} of {name} left")
        if left == 0:
            del self.items[name]
        else:
            self.items[name] = left
        self.history.append(("remove", name, count))

    def total(self):
        return sum(self.items.values())

    def undo(self):
        if not self.history:
            return
        kind, name, count = self.history.pop()
        if kind == "add":
            self.remove(name, count)
        else:
            self.add(name, count)
        self.history.pop()

    def report(self):
        width = max((len(name) for name in self.items), default=0)
        for name in sorted(self.items):
            print(f"{name:<{width}} {self.items[name]:>6}")
        print(f"{'total':<{width}} {self.total():>6}")
'''
LOOP = """\
def moving_average(values, window):
    if window < 1:
        raise ValueError("window must be at least 1")
    result = []
    running = 0.0
    for index, value in enumerate(values):
        running += value
        if index >= window:
            running -= values[index - window]
        if index >= window - 1:
            result.append(running / window)
    return result


def smooth(values, window, rounds):
    for _ in range(rounds):
        values = moving_average(values, window)
    return values
"""
PROSE = """\
The old lighthouse at the end of the peninsula has not been used since the harbour moved to the north side of the bay in
1962. Its lamp was sold to a museum, but the stairs and the keeper's rooms are still as they were. Every summer some
two thousand visitors climb the one hundred and forty steps to see the cliffs from the gallery. The association that
looks after the building wants to repair the roof before winter, because last year's storms have loosened several of the
slates on the western side. They have collected about half of the money so far, and they hope that the town council will
pay for the rest when it meets in October.
"""
REPORT = """\
Minutes of the meeting on the third of March. Present were the chair, the treasurer and nine members. The treasurer said
that the account stands at four thousand two hundred euros, which is three hundred more than last year. The chair asked
for volunteers for the spring market, and five members put up their hands. It was decided that the club buys two new
tables and a tent, and that the old tent is given to the school. The next meeting will be on the seventh of April at
eight in the evening, in the same room as always.
"""
TABLE = (
    "\n".join(f"| item {n:02d} | {n * 7 % 31} pieces | {n * 13 % 97} euros | shelf {n % 5} |" for n in range(24)) + "\n"
)
CONFIG = "\n".join(f'[service.{name}]\nhost = "{name}.example.org"\nport = {port}\nretries = 3\n' for name, port in (
    ("mail", 25), ("web", 443), ("files", 22), ("cache", 6379), ("search", 9200), ("queue", 5672)))  # fmt: skip
EDITS = [
    ("Rename items to stock everywhere:", CODE, CODE.replace("items", "stock")),
    ("Rename the class to Warehouse:", CODE, CODE.replace("Inventory", "Warehouse")),
    ("Rename count to amount:", CODE, CODE.replace("count", "amount")),
    ("Use RuntimeError instead of ValueError:", CODE, CODE.replace("ValueError", "RuntimeError")),
    ("Rename history to log:", CODE, CODE.replace("history", "log")),
    ("Return it with a doc string for add:", CODE, CODE.replace("=1):\n", '=1):\n        """Add items."""\n', 1)),
    ("Rename running to total:", LOOP, LOOP.replace("running", "total")),
    ("Rename values to samples:", LOOP, LOOP.replace("values", "samples")),
    ("Indent with two spaces:", LOOP, LOOP.replace("    ", "  ")),
    ("Add type hints:", LOOP, LOOP.replace("values, window", "values: list[float], window: int")),
    ("Correct the year to 1968:", PROSE, PROSE.replace("1962", "1968")),
    ("Write meters instead of steps:", PROSE, PROSE.replace("one hundred and forty steps", "thirty meters of stairs")),
    ("Move the meeting to November:", PROSE, PROSE.replace("October", "November")),
    ("Repeat the text and change nothing:", PROSE, PROSE),
    ("Leave out the second sentence:", PROSE, PROSE.replace(PROSE.split(". ")[1] + ". ", "")),
    ("Correct the date to the fourth of March:", REPORT, REPORT.replace("third of March", "fourth of March")),
    ("The chair is called Anna Berg; use her name:", REPORT, REPORT.replace("The chair", "Anna Berg")),
    ("Nine in the evening, not eight:", REPORT, REPORT.replace("eight in", "nine in")),
    ("Write dollars instead of euros:", TABLE, TABLE.replace("euros", "dollars")),
    ("Item 07 costs 50 euros:", TABLE, TABLE.replace("18 pieces | 91 euros", "18 pieces | 50 euros")),
    ("Five retries everywhere:", CONFIG, CONFIG.replace("retries = 3", "retries = 5")),
    ("Change the domain to example.com:", CONFIG, CONFIG.replace("example.org", "example.com")),
]  # fmt: skip


@cache
def tokenizer() -> Tokenizer:
    from dflash_core import load_target

    return load_target(demo_target_path()).tokenizer


def recorded(ask: str, given: str, answer: str) -> Recorded:
    tokens = tokenizer()
    prompt, said = tokens.encode(f"{ask}\n```\n{given}```\n"), tokens.encode(f"```\n{answer}```\n")
    shape = (max(len(said) - 1, 0), 0, 1)  # no drafter has seen it
    return Recorded(tuple(prompt), tuple(said), np.zeros(shape, np.int64), np.zeros(shape))


def test_there_are_twenty_prompts_and_each_changes_what_it_says() -> None:
    assert len(EDITS) >= 20
    assert sum(given == answer for _, given, answer in EDITS) == 1
    assert len({ask for ask, _, _ in EDITS}) == len(EDITS)


@pytest.mark.parametrize("shape", [CPU, H200])
@pytest.mark.parametrize("edit", EDITS, ids=[ask for ask, _, _ in EDITS])
def test_answers_that_repeat_their_prompt_take_half_the_steps(edit: tuple[str, str, str], shape: CostTable) -> None:
    ran = replay.learned([recorded(*edit)], shape, frozenset(), pausing=True, drafter=CAPABILITIES)
    assert ran.length >= 2, f"{ran.length:.2f} tokens a step"
    assert ran.tok_s >= 1.0 / shape.plain * 1e3, "never slower than plain decoding"
