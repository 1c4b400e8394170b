"""Prompts as token ids: beginnings for documents that the target writes, and the held-out sets.

The tokenizer is read from the target's file, so that this part needs nothing of the decoder but its file reader.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import tokenizers
from tokenizers import models, pre_tokenizers

from dflash_core.bench.prompts import read_prompts
from dflash_core.formats.gguf import open_gguf

from .scripts import ANSWER, END, START, USER, Scripts

SPLIT = r"\p{N}|'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+(?=\p{N})|\s+(?!\S)|\s+"
"""The pre-tokenizer `smollm`: digits one by one, else GPT-2's."""
SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
"""What the template says to the model where a conversation has no system message."""

OPENINGS = {
    "": 24,
    "Write a Python function": 2, "Write a function that": 2, "Complete the following Python function": 1,
    "def ": 3, "from typing import List\n\n\ndef ": 5, "from typing import ": 1, "import math\n\n\ndef ": 1,
    "Fix the bug in this code": 1, "What does this code do": 1, "Explain how to": 2, "How do I": 2, "How can I": 2,
    "What is": 3, "What are": 2, "Why": 2, "Who": 1, "When": 1, "Can you": 2, "Tell me": 2, "Give me": 2, "List": 1,
    "Write": 3, "Create": 1, "Describe": 1, "Compare": 1, "Imagine": 1, "Pretend": 1, "Suppose": 1, "Solve": 1,
    "Rewrite": 1, "Summarize": 1, "Translate": 1, "Classify": 1, "Extract": 1, "Help me": 1, "I want": 1, "My": 1,
    "Hello": 1, "Hi": 1, "A": 2, "The": 2, "If": 2, "There are": 1, "In a": 1, "At a": 1, "Given": 1, "Which": 1,
    "Tom": 1, "Sarah": 1, "A train": 1, "A store": 1, "John has": 1, "Mary": 1,
}  # fmt: skip
"""How turns begin that the target writes by itself, and in which shares."""
SCHOOL_SHARE = 0.2
"""Share of the documents that begin with a question of the training part of GSM8K."""
LONGEST = 320
"""Tokens of a prompt; longer ones are left out."""
EVERYDAY = (
    "How long should I boil an egg?", "What is a good name for a cat?", "Why is the sky blue?",
    "Can you suggest a cheap dinner for two?", "How do I get a red wine stain out of a shirt?",
    "What should I pack for a weekend at the sea?", "Tell me a short joke.", "How do I say thank you in Spanish?",
    "What is the capital of Portugal?", "My plant has yellow leaves. What can I do?",
    "Write a birthday message for my grandmother.", "How many hours of sleep does an adult need?",
    "What is the difference between a virus and a bacterium?", "Give me three ideas for a rainy Sunday.",
    "How do I change a bicycle tube?", "Please explain interest rates to a child.",
    "I have a job interview tomorrow. Any advice?", "What can I cook with potatoes, onions and eggs?",
    "Who wrote Romeo and Juliet?", "How do I reset a router?", "Suggest a stretch for a stiff neck.",
    "What does a carpenter do?", "Write a polite note to a noisy neighbour.", "Is it safe to eat raw mushrooms?",
    "How far is the moon?", "Plan a day in Rome for me.", "What are good habits for saving money?",
    "How does a refrigerator work?", "Name five vegetables that grow in winter.", "Can dogs eat chocolate?",
    "Describe autumn in two sentences.", "How do I fold a fitted sheet?",
)  # fmt: skip
"""Everyday questions, never trained on."""
HELD = {"HumanEval": "HumanEval.jsonl.gz", "GSM8K": "gsm8k_test.jsonl.gz", "MT-bench": "mt_bench.jsonl"}


class Encoder:
    """Text to ids of the target, without special tokens."""

    def __init__(self, target: Path) -> None:
        meta = open_gguf(target).metadata

        def strings(key: str) -> list[str]:
            values = meta["tokenizer.ggml." + key]
            assert isinstance(values, list), f"{key} is no list"
            return [str(one) for one in values]

        pairs = [tuple(one.split(" ")) for one in strings("merges")]
        vocabulary = {name: number for number, name in enumerate(strings("tokens"))}
        self.bpe = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[(a, b) for a, b in pairs]))
        self.bpe.pre_tokenizer = pre_tokenizers.Sequence([
            pre_tokenizers.Split(tokenizers.Regex(SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ])  # fmt: skip
        self.bpe.decoder = tokenizers.decoders.ByteLevel()

    def __call__(self, text: str) -> list[int]:
        ids: list[int] = self.bpe.encode(text, add_special_tokens=False).ids
        return ids

    def opening(self, question: str) -> list[int]:
        """A conversation up to the beginning of the user's question, which is not closed."""
        return [START, *self(f"system\n{SYSTEM}"), END, *self("\n"), START, *self("user\n" + question)]

    def reply(self) -> list[int]:
        """What stands between the end of a user's turn and its answer."""
        return [*self("\n"), START, *self("assistant\n")]

    def prompt(self, question: str) -> list[int]:
        return [*self.opening(question), END, *self.reply()]


def training(encode: Encoder, folder: Path) -> Scripts:
    """The scripts of training: openings, and the questions of `gsm8k_train.jsonl.gz` in `folder`."""
    rows = [(encode.reply(), ANSWER), ([*encode("\n"), START, *encode("user\n")], USER)]
    order = []
    for text, share in OPENINGS.items():
        order += [len(rows)] * share
        rows.append((encode.opening(text), USER))
    school = [encode.prompt(task.text) for task in read_prompts(folder / "gsm8k_train.jsonl.gz")]
    first = len(rows)
    rows += [(ids, ANSWER) for ids in school if len(ids) <= LONGEST]
    questions = list(range(first, len(rows)))
    times = max(1, round((1 - SCHOOL_SHARE) / SCHOOL_SHARE * len(questions) / len(order)))
    return Scripts.of(rows, order * times + questions)


def held_out(encode: Encoder, folder: Path, most: int) -> Mapping[str, list[list[int]]]:
    """Name of a set -> its prompts as ids, `most` at most, spread evenly over the set."""
    texts = {name: [task.text for task in read_prompts(folder / file)] for name, file in HELD.items()}
    texts["everyday"] = list(EVERYDAY)
    out = {}
    for name, questions in texts.items():
        prompts = [ids for ids in map(encode.prompt, questions) if len(ids) <= LONGEST]
        out[name] = prompts[:: max(1, len(prompts) // most)][:most]
    return out
