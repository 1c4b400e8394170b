"""Sums, differences, products, comparisons and short worked calculations."""

from __future__ import annotations

from .base import Draw, Exchange

SUM = [
    "What is {a} + {b}?", "What is {a}+{b}?", "{a} + {b}", "{a}+{b}=", "{a} + {b} = ?", "Compute {a} + {b}.",
    "Calculate {a} + {b}.", "Add {a} and {b}.", "What do you get if you add {a} to {b}?", "What's {a} plus {b}?",
    "How much is {a} + {b}?", "What is the sum of {a} and {b}?", "Find the sum of {a} and {b}.", "{a} plus {b}?",
    "How much is {a} plus {b}?", "What does {a} + {b} equal?", "Can you add {a} and {b} for me?", "Sum {a} and {b}.",
    "I have {a} and get {b} more. How many do I have?", "Work out {a} + {b}.", "What is {b} more than {a}?",
    "Give me {a} + {b}.", "Solve {a} + {b}.", "Tell me the total of {a} and {b}.", "Evaluate {a} + {b}.",
]  # fmt: skip
DIFFERENCE = [
    "What is {a} - {b}?", "What is {a}-{b}?", "{a} - {b}", "{a}-{b}=", "{a} - {b} = ?", "Compute {a} - {b}.",
    "Calculate {a} - {b}.", "Subtract {b} from {a}.", "What do you get if you take {b} from {a}?",
    "What's {a} minus {b}?", "How much is {a} - {b}?", "What is the difference of {a} and {b}?", "{a} minus {b}?",
    "Find {a} - {b}.", "How much is {a} minus {b}?", "What does {a} - {b} equal?", "What is {b} less than {a}?",
    "Work out {a} - {b}.", "Give me {a} - {b}.", "Solve {a} - {b}.", "I had {a} and gave away {b}. How many are left?",
    "Can you subtract {b} from {a}?", "Evaluate {a} - {b}.",
]  # fmt: skip
PRODUCT = [
    "What is {a} * {b}?", "What is {a} times {b}?", "{a} x {b}", "{a} * {b} = ?", "Multiply {a} by {b}.",
    "Compute {a} * {b}.", "How much is {a} times {b}?", "What is the product of {a} and {b}?", "Calculate {a} x {b}.",
    "What's {a} times {b}?",
]  # fmt: skip
DIVIDE = [
    "What is {a} / {b}?", "What is {a} divided by {b}?", "Divide {a} by {b}.", "How much is {a} divided by {b}?",
    "{a} / {b} = ?", "Compute {a} / {b}.", "How many times does {b} go into {a}?",
]  # fmt: skip
COMPARE = [
    "Which is larger, {a} or {b}?", "Is {a} greater than {b}?", "Which number is bigger: {a} or {b}?",
    "Compare {a} and {b}.", "Is {a} smaller than {b}?", "What is the larger of {a} and {b}?",
]  # fmt: skip
SERIES = [
    "What is the sum of {list}?", "Add these numbers: {list}.", "Sum up {list}.", "Find the total of {list}.",
    "What do {list} add up to?",
]  # fmt: skip
AVERAGE = ["What is the average of {list}?", "Find the mean of {list}.", "Compute the average of {list}."]
PERCENT = ["What is {p}% of {n}?", "Find {p} percent of {n}.", "How much is {p}% of {n}?", "Calculate {p}% of {n}."]
EVEN = ["Is {a} even or odd?", "Is {a} an even number?", "Is {a} odd?", "Tell me whether {a} is even or odd."]


def sums(draw: Draw, high: int = 99) -> Exchange:
    a, b = draw.pair(0, high)
    text = draw.template("sum", SUM, keep=4).format(a=a, b=b)
    answer = draw.one([f"{a} + {b} = {a + b}.", f"{a} + {b} = {a + b}.", f"{a} + {b} = **{a + b}**."])
    return Exchange(draw.say(text), answer, _add_thought(a, b), "sum")


def _add_thought(a: int, b: int) -> str:
    if a < 10 or b < 10:
        return f"I need {a} + {b}. Counting on gives {a + b}."
    tens, ones = a // 10 * 10 + b // 10 * 10, a % 10 + b % 10
    return f"Tens: {a // 10 * 10} + {b // 10 * 10} = {tens}. Ones: {a % 10} + {b % 10} = {ones}. {tens} + {ones} = {a + b}."


def differences(draw: Draw, high: int = 99) -> Exchange:
    a, b = draw.pair(0, high)
    if draw.chance(0.75):
        a, b = max(a, b), min(a, b)
    text = draw.template("difference", DIFFERENCE, keep=4).format(a=a, b=b)
    answer = draw.one([f"{a} - {b} = {a - b}.", f"{a} - {b} = {a - b}.", f"{a} - {b} = **{a - b}**."])
    if a >= b:
        tens = a - b // 10 * 10
        thought = (
            f"Take away the tens first: {a} - {b // 10 * 10} = {tens}. Then the ones: {tens} - {b % 10} = {a - b}."
        )
    else:
        thought = f"{b} is larger than {a}, so the result is negative. {b} - {a} = {b - a}, so {a} - {b} = {a - b}."
    return Exchange(draw.say(text), answer, thought, "difference")


def products(draw: Draw) -> Exchange:
    a, b = draw.pair(2, 12) if draw.chance(0.7) else (draw.number(2, 9), draw.number(11, 40))
    text = draw.template("product", PRODUCT).format(a=a, b=b)
    thought = f"{a} times {b}: "
    if b > 12:
        t = b // 10 * 10
        thought += f"{a} * {t} = {a * t} and {a} * {b - t} = {a * (b - t)}, together {a * b}."
    else:
        thought += f"{a} groups of {b} make {a * b}."
    return Exchange(draw.say(text), f"{a} * {b} = {a * b}.", thought, "product")


def quotients(draw: Draw) -> Exchange:
    b, q = draw.pair(2, 12)
    a = b * q
    text = draw.template("divide", DIVIDE).format(a=a, b=b)
    return Exchange(draw.say(text), f"{a} / {b} = {q}.", f"{b} * {q} = {a}, so {a} / {b} = {q}.", "divide")


def comparisons(draw: Draw) -> Exchange:
    a, b = draw.pair(1, 200)
    if a == b:
        b += 1
    t = draw.template("compare", COMPARE)
    text, big, small = t.format(a=a, b=b), max(a, b), min(a, b)
    if t.startswith("Is"):
        yes = (a > b) == ("greater" in t)
        answer = f"{'Yes' if yes else 'No'}, {a} is {'larger' if a > b else 'smaller'} than {b}."
    else:
        answer = f"{big} is larger than {small}."
    return Exchange(
        draw.say(text), answer, f"Compare {a} with {b}: the difference {big} - {small} is {big - small}.", "compare"
    )


def series(draw: Draw) -> Exchange:
    numbers = [draw.number(1, 20) for _ in range(draw.number(3, 5))]
    text = draw.template("series", SERIES).format(list=", ".join(map(str, numbers[:-1])) + f" and {numbers[-1]}")
    steps, total = [], numbers[0]
    for n in numbers[1:]:
        steps.append(f"{total} + {n} = {total + n}")
        total += n
    if draw.chance(0.5):
        answer = "Add them one after the other:\n\n" + "\n".join(f"- {s}" for s in steps) + f"\n\nThe sum is {total}."
    else:
        answer = f"{' + '.join(map(str, numbers))} = {total}."
    return Exchange(draw.say(text), answer, ", ".join(steps) + ".", "series")


def averages(draw: Draw) -> Exchange:
    n = draw.number(2, 4)
    mean = draw.number(3, 30)
    numbers = [mean + draw.number(-3, 3) for _ in range(n - 1)]
    numbers.append(mean * n - sum(numbers))
    if numbers[-1] < 0:
        return averages(draw)
    text = draw.template("average", AVERAGE).format(list=", ".join(map(str, numbers)))
    total = mean * n
    answer = f"The sum is {' + '.join(map(str, numbers))} = {total}. There are {n} numbers, so the average is {total} / {n} = {mean}."
    return Exchange(draw.say(text), answer, f"Add the numbers to get {total}, then divide by {n}: {mean}.", "average")


def percents(draw: Draw) -> Exchange:
    p, n = draw.one([10, 20, 25, 50, 75, 5]), draw.number(1, 30) * 20
    text = draw.template("percent", PERCENT).format(p=p, n=n)
    value = p * n // 100
    answer = f"{p}% of {n} is {value}."
    return Exchange(
        draw.say(text), answer, f"1% of {n} is {n / 100:g}, so {p}% is {p} * {n / 100:g} = {value}.", "percent"
    )


def parity(draw: Draw) -> Exchange:
    a = draw.number(0, 999)
    t = draw.template("even", EVEN)
    word = "odd" if a % 2 else "even"
    lead = ""
    if "or" not in t:
        lead = "Yes, " if word in t else "No, "
    answer = f"{lead}{a} is {word}, because its last digit is {a % 10}."
    return Exchange(draw.say(t.format(a=a)), answer, f"The last digit of {a} is {a % 10}, which is {word}.", "even")


def big_sums(draw: Draw) -> Exchange:
    a, b = draw.pair(100, 999)
    if draw.chance(0.5):
        return Exchange(
            draw.say(draw.template("sum", SUM, keep=4).format(a=a, b=b)), f"{a} + {b} = {a + b}.",
            f"Hundreds: {a // 100 * 100} + {b // 100 * 100} = {a // 100 * 100 + b // 100 * 100}. "
            f"The rest: {a % 100} + {b % 100} = {a % 100 + b % 100}. Together {a + b}.", "big sum",
        )  # fmt: skip
    a, b = max(a, b), min(a, b)
    return Exchange(
        draw.say(draw.template("difference", DIFFERENCE, keep=4).format(a=a, b=b)), f"{a} - {b} = {a - b}.",
        f"{a} - {b // 100 * 100} = {a - b // 100 * 100}, and then - {b % 100} gives {a - b}.", "big difference",
    )  # fmt: skip


FAMILIES = [
    (sums, 6.0), (differences, 6.0), (products, 1.0), (quotients, 0.6), (comparisons, 0.7), (series, 0.6),
    (averages, 0.4), (percents, 0.5), (parity, 0.5), (big_sums, 1.2),
]  # fmt: skip
