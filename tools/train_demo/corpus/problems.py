"""Word problems: a reader for grade-school-math files, and generated stories of one and two steps."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

from .base import Draw, Exchange

NAMES = [
    "Tom",
    "Anna",
    "Ben",
    "Mia",
    "Sam",
    "Lucy",
    "Omar",
    "Nina",
    "Leo",
    "Ella",
    "Max",
    "Ivy",
    "Noah",
    "Zoe",
    "Paul",
    "Rosa",
    "Kim",
    "Ada",
    "Finn",
    "Maya",
]
ITEMS = [
    "apples",
    "books",
    "marbles",
    "stickers",
    "cookies",
    "pencils",
    "coins",
    "cards",
    "shells",
    "flowers",
    "candies",
    "toys",
    "oranges",
    "stamps",
]

GAIN = [
    "{n} has {a} {t} and gets {b} more. How many {t} does {n} have now?",
    "{n} had {a} {t}. A friend gave {n} {b} more. How many {t} does {n} have?",
    "{n} found {a} {t} on Monday and {b} on Tuesday. How many {t} is that in total?",
    "There are {a} {t} on the table. {n} adds {b}. How many {t} are there now?",
    "{n} buys {a} {t} in the morning and {b} in the evening. How many {t} did {n} buy?",
    "{n} collected {a} {t} last week and {b} this week. How many {t} did {n} collect altogether?",
]
LOSS = [
    "{n} has {a} {t} and gives away {b}. How many {t} are left?",
    "{n} had {a} {t} and lost {b} of them. How many does {n} still have?",
    "There were {a} {t} in a box. {n} took {b} out. How many are left in the box?",
    "{n} bought {a} {t} and used {b}. How many {t} remain?",
    "A shop had {a} {t}. {n} bought {b}. How many {t} does the shop still have?",
]
TIMES = [
    "{n} has {a} bags with {b} {t} each. How many {t} does {n} have?",
    "There are {a} boxes and each box holds {b} {t}. How many {t} are there?",
    "{n} reads {b} pages a day for {a} days. How many pages does {n} read?",
    "One of the {t} costs {b} dollars. How much do {a} of them cost?",
    "{n} earns {b} dollars an hour and works {a} hours. How much does {n} earn?",
]
SHARE = [
    "{n} shares {p} {t} equally among {a} friends. How many does each friend get?",
    "{p} {t} are put into {a} boxes, the same number in each. How many are in one box?",
    "{n} splits {p} {t} into {a} equal groups. How many {t} are in each group?",
]
TWO = [
    "{n} has {a} {t}, gets {b} more and then gives away {c}. How many {t} does {n} have now?",
    "{n} had {a} {t}. {n} bought {b} and later lost {c}. How many are left?",
    "A shelf holds {a} {t}. {n} adds {b} and takes {c} away. How many {t} are on the shelf?",
]
TWICE = [
    "{n} has {a} {t} and {m} has twice as many. How many {t} do they have together?",
    "{n} picked {a} {t}. {m} picked twice as many. How many did both pick in total?",
]


def stories(draw: Draw) -> Exchange:
    n, m = draw.rng.sample(NAMES, 2)
    t = draw.one(ITEMS)
    kind = draw.number(0, 5)
    if kind == 0:
        a, b = draw.pair(2, 60)
        text = draw.template("gain", GAIN).format(n=n, a=a, b=b, t=t)
        answer = draw.one(
            [
                f"{n} has {a} + {b} = {a + b} {t}." if "have" in text else f"The total is {a} + {b} = {a + b} {t}.",
                f"Add the two numbers: {a} + {b} = {a + b}. The answer is {a + b} {t}.",
            ]
        )
        thought = f"Start with {a} and add {b}. {a} + {b} = {a + b}."
    elif kind == 1:
        a, b = draw.pair(2, 80)
        a, b = max(a, b), min(a, b)
        text = draw.template("loss", LOSS).format(n=n, a=a, b=b, t=t)
        answer = draw.one(
            [
                f"There are {a} - {b} = {a - b} {t} left.",
                f"Subtract what is gone: {a} - {b} = {a - b}. The answer is {a - b} {t}.",
            ]
        )
        thought = f"Start with {a} and take away {b}. {a} - {b} = {a - b}."
    elif kind == 2:
        a, b = draw.pair(2, 12)
        text = draw.template("times", TIMES).format(n=n, a=a, b=b, t=t)
        answer = draw.one([f"Multiply: {a} * {b} = {a * b}. The answer is {a * b}.", f"That is {a} * {b} = {a * b}."])
        thought = f"There are {a} groups of {b}. {a} * {b} = {a * b}."
    elif kind == 3:
        a, b = draw.pair(2, 12)
        text = draw.template("share", SHARE).format(n=n, a=a, p=a * b, t=t)
        answer = draw.one(
            [f"Divide: {a * b} / {a} = {b}. The answer is {b}.", f"Each one gets {a * b} / {a} = {b} {t}."]
        )
        thought = f"Split {a * b} into {a} equal parts. {a * b} / {a} = {b}."
    elif kind == 4:
        a, b = draw.pair(5, 40)
        c = draw.number(1, a + b)
        text = draw.template("two", TWO).format(n=n, a=a, b=b, c=c, t=t)
        answer = f"First add: {a} + {b} = {a + b}.\nThen subtract: {a + b} - {c} = {a + b - c}.\nThe answer is {a + b - c} {t}."
        thought = f"Two steps. {a} + {b} = {a + b}, and {a + b} - {c} = {a + b - c}."
    else:
        a = draw.number(2, 40)
        text = draw.template("twice", TWICE).format(n=n, m=m, a=a, t=t)
        answer = f"{m} has 2 * {a} = {2 * a} {t}.\nTogether they have {a} + {2 * a} = {3 * a} {t}."
        thought = f"Twice {a} is {2 * a}. {a} + {2 * a} = {3 * a}."
    return Exchange(draw.say(text) if draw.chance(0.3) else text, answer, thought, "stories")


FAMILIES = [(stories, 5.0)]

_CALCULATION = re.compile(r"<<[^>]*>>")


def school_math(path: Path) -> list[Exchange]:
    """Exchanges from a grade-school-math .jsonl.gz file: the steps as the answer, or as the reasoning before it."""
    out = []
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            steps, _, result = row["answer"].partition("####")
            steps = _CALCULATION.sub("", steps).strip()
            result = result.strip()
            out.append(Exchange(row["question"].strip(), f"{steps}\nThe answer is {result}.", steps, "school math"))
    return out
