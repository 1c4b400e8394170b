"""Lists, words, dates, units and small facts."""

from __future__ import annotations

from .base import Draw, Exchange

MONTHS = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
]
LENGTHS = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]
DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
THINGS: dict[str, list[str]] = {
    "fruits": ["apple", "banana", "cherry", "grape", "lemon", "mango", "orange", "peach", "pear", "plum", "kiwi", "melon"],
    "animals": ["cat", "dog", "horse", "cow", "sheep", "lion", "tiger", "bear", "rabbit", "fox", "wolf", "mouse"],
    "colors": ["red", "blue", "green", "yellow", "orange", "purple", "black", "white", "brown", "pink"],
    "vegetables": ["carrot", "potato", "onion", "tomato", "pepper", "spinach", "cabbage", "bean", "pea", "corn"],
    "tools": ["hammer", "saw", "drill", "wrench", "screwdriver", "pliers", "ruler", "file"],
    "planets": ["Mercury", "Venus", "Earth", "Mars", "Jupiter", "Saturn", "Uranus", "Neptune"],
    "programming languages": ["Python", "C", "Java", "Rust", "Go", "Ruby", "Haskell", "JavaScript"],
    "musical instruments": ["piano", "guitar", "violin", "drum", "flute", "trumpet", "cello", "harp"],
    "countries": ["France", "Japan", "Brazil", "Canada", "Egypt", "India", "Kenya", "Norway", "Spain", "Peru"],
    "sports": ["football", "tennis", "swimming", "running", "basketball", "cycling", "rowing", "hockey"],
    "rooms of a house": ["kitchen", "bedroom", "bathroom", "hall", "attic", "cellar", "study"],
    "drinks": ["water", "tea", "coffee", "milk", "juice", "lemonade", "cocoa"],
}  # fmt: skip
CAPITALS = {
    "France": "Paris", "Germany": "Berlin", "Italy": "Rome", "Spain": "Madrid", "Portugal": "Lisbon", "Japan": "Tokyo",
    "China": "Beijing", "India": "New Delhi", "Egypt": "Cairo", "Kenya": "Nairobi", "Canada": "Ottawa", "Brazil": "Brasilia",
    "Argentina": "Buenos Aires", "Chile": "Santiago", "Peru": "Lima", "Mexico": "Mexico City", "Norway": "Oslo",
    "Sweden": "Stockholm", "Finland": "Helsinki", "Denmark": "Copenhagen", "Poland": "Warsaw", "Austria": "Vienna",
    "Switzerland": "Bern", "Greece": "Athens", "Turkey": "Ankara", "Russia": "Moscow", "Ukraine": "Kyiv",
    "Ireland": "Dublin", "the United Kingdom": "London", "the United States": "Washington, D.C.", "Australia": "Canberra",
    "New Zealand": "Wellington", "South Korea": "Seoul", "Thailand": "Bangkok", "Vietnam": "Hanoi", "Cuba": "Havana",
    "Hungary": "Budapest", "the Czech Republic": "Prague", "Belgium": "Brussels", "the Netherlands": "Amsterdam",
}  # fmt: skip
OPPOSITES = {
    "hot": "cold", "big": "small", "fast": "slow", "up": "down", "light": "dark", "happy": "sad", "old": "young",
    "early": "late", "open": "closed", "full": "empty", "hard": "soft", "high": "low", "long": "short", "near": "far",
    "rich": "poor", "strong": "weak", "wet": "dry", "true": "false", "inside": "outside", "loud": "quiet",
    "cheap": "expensive", "deep": "shallow", "easy": "difficult", "first": "last", "left": "right", "wide": "narrow",
}  # fmt: skip
UNITS = [
    ("kilometers", "meters", 1000), ("meters", "centimeters", 100), ("centimeters", "millimeters", 10),
    ("hours", "minutes", 60), ("minutes", "seconds", 60), ("days", "hours", 24), ("weeks", "days", 7),
    ("years", "months", 12), ("kilograms", "grams", 1000), ("liters", "milliliters", 1000), ("feet", "inches", 12),
    ("yards", "feet", 3), ("dozens", "pieces", 12), ("gigabytes", "megabytes", 1000),
]  # fmt: skip
FACTS = [
    ("Why is the sky blue?", "The air scatters blue light more than red light, so blue reaches our eyes from every direction."),
    ("What is water made of?", "Water is made of hydrogen and oxygen: two hydrogen atoms and one oxygen atom, written H2O."),
    ("How many days are in a year?", "A year has 365 days, and a leap year has 366."),
    ("How many hours are in a day?", "A day has 24 hours."),
    ("How many continents are there?", "There are seven continents: Africa, Antarctica, Asia, Australia, Europe, North America and South America."),
    ("What is the largest planet?", "Jupiter is the largest planet of our solar system."),
    ("What is the closest planet to the sun?", "Mercury is the planet closest to the sun."),
    ("How many legs does a spider have?", "A spider has eight legs."),
    ("What do bees make?", "Bees make honey and wax."),
    ("What is a prime number?", "A prime number is a whole number above 1 that can only be divided by 1 and by itself, such as 2, 3, 5, 7 and 11."),
    ("What is the boiling point of water?", "At sea level, water boils at 100 degrees Celsius, which is 212 degrees Fahrenheit."),
    ("What is the freezing point of water?", "Water freezes at 0 degrees Celsius, which is 32 degrees Fahrenheit."),
    ("Why do we have seasons?", "The axis of the Earth is tilted, so each half of the planet gets more sunlight for one part of the year."),
    ("What is the moon?", "The moon is a ball of rock that goes around the Earth about once a month."),
    ("What is gravity?", "Gravity is the force that pulls things with mass toward each other. It keeps us on the ground and the moon in its orbit."),
    ("What is photosynthesis?", "Photosynthesis is how plants use sunlight to turn water and carbon dioxide into sugar and oxygen."),
    ("What is an algorithm?", "An algorithm is a list of clear steps that solves a problem. A recipe is a good everyday example."),
    ("What is a computer?", "A computer is a machine that follows instructions to store and change information."),
    ("What is Python?", "Python is a programming language that is easy to read. It is used for scripts, web servers, science and machine learning."),
    ("What is a variable?", "A variable is a name for a value in a program, so that the value can be used and changed later."),
    ("What is a function?", "A function is a named piece of code. It takes inputs, does some work and usually returns a result."),
    ("What is a list in Python?", "A list is an ordered collection of values. You write it with square brackets, for example `[1, 2, 3]`."),
    ("What is a dictionary in Python?", "A dictionary maps keys to values. You write it with braces, for example `{\"a\": 1, \"b\": 2}`."),
    ("What is recursion?", "Recursion means that a function calls itself on a smaller problem until it reaches a case that is simple enough to answer at once."),
    ("What is a neural network?", "A neural network is a program with many adjustable numbers. It learns from examples by changing those numbers until its answers fit."),
    ("What is machine learning?", "Machine learning means that a program learns rules from examples instead of being told the rules by a person."),
    ("What is a binary number?", "A binary number is written with the digits 0 and 1 only. Each place is worth twice the place to its right."),
    ("Who wrote Romeo and Juliet?", "William Shakespeare wrote Romeo and Juliet."),
    ("What is the speed of light?", "Light travels about 300,000 kilometers per second in empty space."),
    ("How many minutes are in an hour?", "An hour has 60 minutes."),
    ("What is the tallest mountain?", "Mount Everest is the tallest mountain above sea level, at about 8,849 meters."),
    ("What is the largest ocean?", "The Pacific Ocean is the largest ocean on Earth."),
    ("How do birds fly?", "Birds fly by pushing air down and back with their wings. Their bones are light and their chest muscles are strong."),
    ("What is a rainbow?", "A rainbow appears when sunlight is bent and split into colors by drops of water in the air."),
    ("How do I learn to program?", "Start small: pick one language such as Python, write short programs every day, and change examples to see what happens."),
    ("How do I make tea?", "1. Boil some water.\n2. Put a tea bag into a cup.\n3. Pour the hot water over it.\n4. Wait three to five minutes.\n5. Take out the bag and enjoy."),
    ("How do I boil an egg?", "1. Put the egg into a pot and cover it with water.\n2. Bring the water to a boil.\n3. Cook it for 6 minutes for a soft egg, or 10 for a hard one.\n4. Cool it in cold water and peel it."),
    ("How can I sleep better?", "- Go to bed at the same time every day.\n- Keep the room dark and cool.\n- Avoid screens and coffee late in the evening."),
    ("How can I stay healthy?", "- Move a little every day.\n- Eat plenty of vegetables and fruit.\n- Drink water.\n- Sleep enough."),
    ("Give me three tips for learning.", "1. Practice a little every day.\n2. Explain what you learned in your own words.\n3. Take breaks and sleep well."),
]  # fmt: skip
SORT = [
    "Sort these numbers: {x}.",
    "Sort {x} in ascending order.",
    "Put these numbers in order: {x}.",
    "Arrange {x} from smallest to largest.",
    "Order the numbers {x}.",
]
SORT_DOWN = [
    "Sort {x} in descending order.",
    "Arrange {x} from largest to smallest.",
    "Sort these numbers from high to low: {x}.",
]
BIGGEST = ["What is the largest number in {x}?", "Find the maximum of {x}.", "Which is the biggest of {x}?"]
SMALLEST = ["What is the smallest number in {x}?", "Find the minimum of {x}.", "Which is the smallest of {x}?"]
REVERSE = [
    "Reverse this list: {x}.",
    "Write {x} in reverse order.",
    "What is {x} backwards?",
    "Turn this list around: {x}.",
]
ALPHA = [
    "Sort these words alphabetically: {x}.",
    "Put {x} in alphabetical order.",
    "Arrange these words from A to Z: {x}.",
]
COUNT = ["How many items are in this list: {x}?", "Count the words: {x}.", "How many words are there in {x}?"]
NAME = [
    "Name {n} {kind}.",
    "List {n} {kind}.",
    "Give me {n} {kind}.",
    "Can you name {n} {kind}?",
    "Tell me {n} {kind}.",
    "I need a list of {n} {kind}.",
    "Write down {n} {kind}.",
]
AFTER = [
    "What day comes after {d}?",
    "Which day follows {d}?",
    "If today is {d}, what day is tomorrow?",
    "Today is {d}. What is tomorrow?",
]
BEFORE = ["What day comes before {d}?", "If today is {d}, what day was yesterday?", "Which day is before {d}?"]
LATER = [
    "What day is it {n} days after {d}?",
    "If today is {d}, what day is it in {n} days?",
    "Today is {d}. Which day is it {n} days from now?",
]
MONTH = [
    "How many days does {m} have?",
    "How many days are in {m}?",
    "How long is {m}?",
    "What is the number of days in {m}?",
]
NEXT_MONTH = ["Which month comes after {m}?", "What month follows {m}?", "What is the month after {m}?"]
DATE = ["What date is {n} days after {m} {d}?", "What is the date {n} days after {m} {d}?", "Add {n} days to {m} {d}."]
CONVERT = [
    "How many {b} are in {n} {a}?",
    "Convert {n} {a} to {b}.",
    "What is {n} {a} in {b}?",
    "Express {n} {a} in {b}.",
    "{n} {a} is how many {b}?",
    "Turn {n} {a} into {b}.",
]
CELSIUS = [
    "Convert {c} degrees Celsius to Fahrenheit.",
    "What is {c} C in Fahrenheit?",
    "How much is {c} degrees Celsius in Fahrenheit?",
]
CAPITAL = [
    "What is the capital of {c}?",
    "Name the capital of {c}.",
    "Which city is the capital of {c}?",
    "Tell me the capital of {c}.",
    "Do you know the capital of {c}?",
]
OPPOSITE = [
    "What is the opposite of {w}?",
    "Give me the opposite of {w}.",
    "Which word means the opposite of {w}?",
    "What's the antonym of {w}?",
]
UPPER = ["Write {w} in capital letters.", "Put {w} in upper case.", "Convert {w} to uppercase."]
LENGTH = ["How many letters does the word {w} have?", "How many letters are in {w}?", "Count the letters in {w}."]
SPELL = ["Spell the word {w}.", "How do you spell {w}?", "Spell {w} letter by letter."]


def _join(items: list[str]) -> str:
    return ", ".join(items)


def number_lists(draw: Draw) -> Exchange:
    numbers = draw.rng.sample(range(1, 100), draw.number(3, 7))
    x = _join([str(n) for n in numbers])
    kind = draw.number(0, 4)
    if kind <= 1:
        down = kind == 1
        text = draw.template("sort", SORT_DOWN if down else SORT).format(x=x)
        out = _join([str(n) for n in sorted(numbers, reverse=down)])
        answer = draw.one([f"{out}", f"Sorted: {out}.", f"In order, that is {out}."])
        thought = f"The {'largest' if down else 'smallest'} is {max(numbers) if down else min(numbers)}. Going on from there: {out}."
    elif kind == 2:
        text = draw.template("max", BIGGEST).format(x=x)
        answer, thought = (
            f"The largest number is {max(numbers)}.",
            f"Looking through {x}, nothing is above {max(numbers)}.",
        )
    elif kind == 3:
        text = draw.template("min", SMALLEST).format(x=x)
        answer, thought = (
            f"The smallest number is {min(numbers)}.",
            f"Looking through {x}, nothing is below {min(numbers)}.",
        )
    else:
        out = _join([str(n) for n in reversed(numbers)])
        text = draw.template("reverse", REVERSE).format(x=x)
        answer, thought = f"{out}", f"Reading the list from the end: {out}."
    return Exchange(draw.say(text), answer, thought, "number lists")


def word_lists(draw: Draw) -> Exchange:
    kind = draw.one(list(THINGS))
    words = draw.rng.sample(THINGS[kind], draw.number(3, min(6, len(THINGS[kind]))))
    x = _join(words)
    which = draw.number(0, 3)
    if which == 0:
        out = _join(sorted(words, key=str.lower))
        text, answer = draw.template("alpha", ALPHA).format(x=x), f"{out}"
        thought = f"Compare the first letters: {_join(sorted(w[0].lower() for w in words))}. That gives {out}."
    elif which == 1:
        out = _join(words[::-1])
        text, answer, thought = (
            draw.template("reverse", REVERSE).format(x=x),
            f"{out}",
            f"From the end to the start: {out}.",
        )
    elif which == 2:
        text = draw.template("count", COUNT).format(x=x)
        answer = f"There are {len(words)}."
        thought = "Counting: " + _join([f"{i} {w}" for i, w in enumerate(words, 1)]) + "."
    else:
        n = len(words)
        text = draw.template("name", NAME).format(
            n=draw.one([str(n), ["three", "four", "five", "six"][n - 3]]), kind=kind
        )
        words = THINGS[kind][:n]
        style = draw.number(0, 2)
        if style == 0:
            answer = "\n".join(f"- {w}" for w in words)
        elif style == 1:
            answer = f"Here are {n} {kind}:\n\n" + "\n".join(f"{i}. {w}" for i, w in enumerate(words, 1))
        else:
            answer = (
                f"{_join(words[:-1])} and {words[-1]}.".capitalize()
                if words[0].islower()
                else f"{_join(words[:-1])} and {words[-1]}."
            )
        thought = f"The user wants {n} {kind}. I can name {_join(words)}."
    return Exchange(draw.say(text), answer, thought, "word lists")


def dates(draw: Draw) -> Exchange:
    which = draw.number(0, 5)
    d = draw.number(0, 6)
    m = draw.number(0, 11)
    if which == 0:
        text = draw.template("after", AFTER).format(d=DAYS[d])
        out = DAYS[(d + 1) % 7]
        answer, thought = (
            f"{out} comes after {DAYS[d]}.",
            f"The days run from Monday to Sunday; after {DAYS[d]} comes {out}.",
        )
    elif which == 1:
        text = draw.template("before", BEFORE).format(d=DAYS[d])
        out = DAYS[(d - 1) % 7]
        answer, thought = f"{out} comes before {DAYS[d]}.", f"The day before {DAYS[d]} is {out}."
    elif which == 2:
        n = draw.number(2, 20)
        out = DAYS[(d + n) % 7]
        text = draw.template("later", LATER).format(d=DAYS[d], n=n)
        answer = f"{n} days after {DAYS[d]} it is {out}."
        thought = f"{n} days are {n // 7} weeks and {n % 7} days. {n % 7} days after {DAYS[d]} is {out}."
    elif which == 3:
        text = draw.template("month", MONTH).format(m=MONTHS[m])
        extra = ", or 29 in a leap year" if m == 1 else ""
        answer, thought = (
            f"{MONTHS[m]} has {LENGTHS[m]} days{extra}.",
            f"{MONTHS[m]} is month {m + 1} and has {LENGTHS[m]} days.",
        )
    elif which == 4:
        text = draw.template("next month", NEXT_MONTH).format(m=MONTHS[m])
        out = MONTHS[(m + 1) % 12]
        answer, thought = f"{out} comes after {MONTHS[m]}.", f"{MONTHS[m]} is month {m + 1}, so the next is {out}."
    else:
        day, n = draw.number(1, LENGTHS[m]), draw.number(2, 20)
        end, month = day + n, MONTHS[m]
        thought = f"{day} + {n} = {end}. "
        if end > LENGTHS[m]:
            end, month = end - LENGTHS[m], MONTHS[(m + 1) % 12]
            thought += f"{MONTHS[m]} has {LENGTHS[m]} days, so that is {month} {end}."
        else:
            thought += f"{MONTHS[m]} has {LENGTHS[m]} days, so it stays in {month}."
        text = draw.template("date", DATE).format(n=n, m=MONTHS[m], d=day)
        answer = f"{n} days after {MONTHS[m]} {day} is {month} {end}."
    return Exchange(draw.say(text), answer, thought, "dates")


def units(draw: Draw) -> Exchange:
    if draw.chance(0.12):
        c = draw.number(-4, 20) * 5
        f = c * 9 // 5 + 32
        text = draw.template("celsius", CELSIUS).format(c=c)
        return Exchange(
            draw.say(text),
            f"{c} degrees Celsius is {f} degrees Fahrenheit.",
            f"{c} * 9 / 5 = {c * 9 // 5}, plus 32 is {f}.",
            "units",
        )
    a, b, factor = draw.one(UNITS)
    n = draw.number(2, 30)
    if draw.chance(0.7):
        text = draw.template("convert", CONVERT).format(a=a, b=b, n=n)
        answer = f"{n} {a} are {n * factor} {b}."
        thought = f"One of the {a} has {factor} {b}, so {n} * {factor} = {n * factor}."
    else:
        text = draw.template("convert", CONVERT).format(a=b, b=a, n=n * factor)
        answer = f"{n * factor} {b} are {n} {a}."
        thought = f"{factor} {b} make one of the {a}, so {n * factor} / {factor} = {n}."
    return Exchange(draw.say(text), answer, thought, "units")


def words(draw: Draw) -> Exchange:
    which = draw.number(0, 5)
    if which <= 1:
        c = draw.one(list(CAPITALS))
        text, answer = draw.template("capital", CAPITAL).format(c=c), f"The capital of {c} is {CAPITALS[c]}."
        thought = f"The question is about {c}. Its capital is {CAPITALS[c]}."
    elif which == 2:
        w, o = draw.one(list(OPPOSITES.items()))
        if draw.chance(0.5):
            w, o = o, w
        text, answer = draw.template("opposite", OPPOSITE).format(w=w), f"The opposite of {w} is {o}."
        thought = f"The word that means the reverse of {w} is {o}."
    else:
        w = draw.one(THINGS[draw.one(["fruits", "animals", "colors", "vegetables", "tools", "sports"])])
        if which == 3:
            text, answer, thought = (
                draw.template("upper", UPPER).format(w=w),
                w.upper(),
                f"Each letter of {w} becomes a capital: {w.upper()}.",
            )
        elif which == 4:
            text, answer = draw.template("length", LENGTH).format(w=w), f"The word {w} has {len(w)} letters."
            thought = f"Spelled out: {'-'.join(w)}. That is {len(w)}."
        else:
            text, answer, thought = (
                draw.template("spell", SPELL).format(w=w),
                f"{'-'.join(w.upper())}",
                f"The letters of {w} one by one.",
            )
    return Exchange(draw.say(text), answer, thought, "words")


def facts(draw: Draw) -> Exchange:
    question, answer = draw.one(FACTS)
    forms = [
        question,
        question,
        f"{question[:-1]}, do you know?" if question.endswith("?") else question,
        f"I would like to know: {question[:1].lower()}{question[1:]}",
        f"Explain briefly: {question}",
        f"A question: {question}",
    ]
    thought = draw.one(
        [
            "This is general knowledge, so a short and direct answer is best.",
            "I know this one. I will keep it short.",
            "A brief explanation is enough here.",
        ]
    )
    return Exchange(draw.say(draw.template("facts", forms)), answer, thought, "facts")


FAMILIES = [(number_lists, 4.5), (word_lists, 2.0), (dates, 1.5), (units, 1.5), (words, 1.5), (facts, 2.0)]
