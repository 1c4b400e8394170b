"""Answers that follow the schemas of a public suite.

python -m tools.bench.schema_suite FOLDER [--skip 0] [--every 1] [--sample 100] [--tokens 60] [--seconds 300]

FOLDER has JSON files of the official suite (github.com/json-schema-org/JSON-Schema-Test-Suite, tests/draft2020-12) or
of JSONSchemaBench (github.com/guidance-ai/jsonschemabench, maskbench/data). The demo pair answers under each schema
that can be followed, on the CPU, greedily and at temperature 1, by plain decoding, a chain and a tree: the three must
agree, and an answer that came to its end must be valid by the package `jsonschema`. Prints a line for each that does
not or is not, then the counts. Exits with 1 if there was one.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.validators import validator_for

from dflash_core.constraints.grammar import Grammar, Grammars
from dflash_core.demo import demo_draft_path, demo_target_path
from dflash_core.engine import Engine, load_pair
from dflash_core.errors import GrammarError
from dflash_core.knobs import Knobs
from dflash_core.messages import Message
from dflash_core.prompting import build_prompt
from dflash_core.text.prompt import Prompting
from tools.bench.tool import run_tool

MODES = ("plain", "chain 4", "tree 16")
SAMPLINGS: tuple[dict[str, Any], ...] = ({"temperature": 0.0}, {"temperature": 1.0, "seed": 5})
SEED = 1  # of a sample


def schemas(folder: Path) -> Iterator[tuple[str, Any]]:
    """The schemas of the suite, each once, with the names of their tests."""
    seen = set[str]()
    for file in sorted(folder.glob("*.json")):
        cases = json.loads(file.read_text(encoding="utf-8"))
        for case in cases if isinstance(cases, list) else [cases]:
            if (text := json.dumps(case["schema"])) not in seen:
                seen.add(text)
                yield f"{file.stem}: {case['description']}", case["schema"]


class Answers:
    """Answers of the demo pair to one question."""

    def __init__(self, tokens: int) -> None:
        """`tokens`: the longest answer."""
        self._tokens = tokens
        self._engine: Engine = load_pair(demo_target_path(), demo_draft_path(), "cpu")
        self._target = self._engine.target
        self._grammars = Grammars(self._target.tokenizer, self._engine.vocab_size)
        prompting = Prompting(self._target.tokenizer, self._target.template, thinking=False)
        self._ids = build_prompt(prompting, [Message("user", "What is 37 + 48?")]).ids

    def answer(self, schema: Any, drafting: str, sampling: dict[str, Any]) -> tuple[str, bool]:
        """The text, and whether it came to its end. Raises GrammarError."""
        constraint = self._grammars.constraint(Grammar.schema(schema))
        knobs = Knobs(drafting=drafting, max_tokens=self._tokens, **sampling)
        events = list(self._engine.generate(self._ids, knobs, constraint=constraint))
        text = self._target.tokenizer.decode([token for event in events for token in event.tokens])
        return text, events[-1].stop == "stop token"


def found(answers: Answers, schema: Any) -> Iterator[str]:
    """What an answer under a schema is, a word for each sampling. Raises GrammarError."""
    for sampling in SAMPLINGS:
        texts = [answers.answer(schema, drafting, sampling) for drafting in MODES]
        if len(set(texts)) > 1:
            yield f"MODES DIFFER: {texts}"
        elif not texts[0][1]:
            yield "cut at the limit"
        else:
            try:
                validator = validator_for(schema, Draft202012Validator)(schema)
                errors = list(validator.iter_errors(json.loads(texts[0][0])))
            except ValueError:
                errors = ["no JSON"]
            yield f"INVALID: {texts[0][0]}: {errors[0]!s:.100}" if errors else "valid"


def main() -> None:
    """The command line of this module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--skip", type=int, default=0, help="leave out so many schemas at the beginning")
    parser.add_argument("--every", type=int, default=1, help="only every so many schemas")
    parser.add_argument("--sample", type=int, default=0, help="so many of them, drawn at random (0: all, in order)")
    parser.add_argument("--tokens", type=int, default=60, help="the longest answer (60)")
    parser.add_argument("--seconds", type=float, default=300.0, help="no further schema begins after so many (300)")
    args = parser.parse_args()
    counts, answers, until = Counter[str](), Answers(args.tokens), time.perf_counter() + args.seconds
    chosen = list(schemas(args.folder))[args.skip :: args.every]
    if args.sample:
        chosen = random.Random(SEED).sample(chosen, min(args.sample, len(chosen)))
    for name, schema in chosen:
        if time.perf_counter() > until:
            counts["schemas not reached"] += 1
            continue
        try:
            for word in found(answers, schema):
                counts[word.partition(":")[0]] += 1
                if word[0].isupper():
                    sys.stdout.write(f"{name}: {word}\n")
        except GrammarError:
            counts["schemas that are refused"] += 1
        else:
            counts["schemas that are followed"] += 1
    sys.stdout.write(json.dumps(counts) + "\n")
    sys.exit(bool(counts["INVALID"] or counts["MODES DIFFER"]))


if __name__ == "__main__":
    run_tool(main)
