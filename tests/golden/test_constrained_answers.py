"""Constrained answers of the demo pair: the same text in every mode, and what the schema says."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from dflash_core import Engine, Knobs
from dflash_core.constraints.base import Constraint
from dflash_core.constraints.grammar import AfterThinking, Grammar, Grammars
from dflash_core.errors import GrammarError
from dflash_core.events import Event, StepEvent
from dflash_core.guards.turn import TurnGuard
from dflash_core.messages import Message
from dflash_core.prompting import build_prompt
from dflash_core.text.prompt import Prompting
from support import demo_pair
from support.grids import full
from support.planted import PlantedBackend, decode

pytest.importorskip("llguidance")

COLOURS = ["red", "green", "blue"]


def _person(value: Any) -> bool:
    assert list(value) == ["name", "age"]
    return (
        isinstance(value["name"], str) and len(value["name"]) <= 12 and type(value["age"]) is int and value["age"] >= 0
    )


def _nested(value: Any) -> bool:
    points = value["points"]
    return 1 <= len(points) <= 2 and all(set(one) == {"x", "y"} and type(one["x"]) is int for one in points)


def _either(value: Any) -> bool:
    return value is None or value in COLOURS or (type(value) is int and 1 <= value <= 99)


def _optional(value: Any) -> bool:
    return set(value) <= {"ok", "why"} and type(value["ok"]) is bool and value.get("why", "") in ("", *COLOURS)


def _list(value: Any) -> bool:
    return len(value) == 3 and all(one in COLOURS for one in value)


NUMBER = {"type": "integer", "minimum": 1, "maximum": 99}
POINT = {"type": "object", "properties": {"x": NUMBER, "y": {"type": "boolean"}}, "required": ["x", "y"],
         "additionalProperties": False}  # fmt: skip
SCHEMAS: dict[str, tuple[dict[str, Any], Callable[[Any], bool]]] = {
    "object": ({"type": "object", "properties": {"name": {"type": "string", "maxLength": 12},
                "age": {"type": "integer", "minimum": 0, "maximum": 150}}, "required": ["name", "age"],
                "additionalProperties": False}, _person),
    "nested": ({"type": "object", "properties": {"points": {"type": "array", "items": {"$ref": "#/$defs/point"},
                "minItems": 1, "maxItems": 2}}, "required": ["points"], "additionalProperties": False,
                "$defs": {"point": POINT}}, _nested),
    "either": ({"anyOf": [{"type": "null"}, {"enum": COLOURS}, NUMBER]}, _either),
    "optional": ({"type": "object", "properties": {"ok": {"type": "boolean"}, "why": {"enum": COLOURS}},
                  "required": ["ok"], "additionalProperties": False}, _optional),
    "list": ({"type": "array", "items": {"enum": COLOURS}, "minItems": 3, "maxItems": 3}, _list),
}  # fmt: skip
SAMPLED = {"temperature": 1.0, "top_k": 40, "top_p": 0.95, "seed": 5}
MODES = ("chain", "tree", "auto")


@cache
def engine() -> Engine:
    return demo_pair.new_engine()


@cache
def grammars() -> Grammars:
    return Grammars(engine().target.tokenizer, engine().vocab_size)


def answer(constraint: Constraint, *, thinking: bool = False, **knobs: Any) -> tuple[list[int], list[Event]]:
    target = engine().target
    ids = build_prompt(
        Prompting(target.tokenizer, target.template, thinking), [Message("user", "What is 37 + 48?")]
    ).ids
    mode, sampling = knobs.pop("mode"), {"max_tokens": 80, **knobs}
    events = list(engine().generate(ids, Knobs(**sampling).replace(mode=mode), constraint=constraint))
    return [id for event in events for id in event.tokens], events


def text(ids: list[int]) -> str:
    return engine().target.tokenizer.decode(ids)


def steps(events: list[Event]) -> list[StepEvent]:
    return [event for event in events if isinstance(event, StepEvent)]


# Each schema greedily or sampled in turn; with `full` in both ways.
@pytest.mark.parametrize(
    ("name", "sampled"),
    [
        pytest.param(name, turn, id=f"{name}-{way}", marks=() if at % 2 == turn else pytest.mark.full)
        for at, name in enumerate(SCHEMAS)
        for turn, way in enumerate(("greedy", "sampled"))
    ],
)
def test_a_schema_gives_the_same_valid_text_in_every_mode(name: str, sampled: bool) -> None:
    schema, valid = SCHEMAS[name]
    sampling = SAMPLED if sampled else {"temperature": 0.0}
    plain, events = answer(grammars().constraint(Grammar.schema(schema)), mode="plain", **sampling)
    assert events[-1].stop == "stop token"
    assert valid(json.loads(text(plain))), text(plain)
    for mode in MODES:
        found, events = answer(grammars().constraint(Grammar.schema(schema)), mode=mode, **sampling)
        assert found == plain, mode
        assert all("within a grammar" in event.reason for event in events)


def test_drafts_that_are_ruled_out_are_not_verified() -> None:
    grammar = Grammar.schema(SCHEMAS["nested"][0])
    ids, events = answer(grammars().constraint(grammar), mode="tree", temperature=0.0)
    before, verified = [ids[0]], 0
    for step in steps(events):
        constraint, tree = grammars().constraint(grammar), step.tree
        constraint.add(before)
        for node in range(1, len(tree.tokens)):
            path, at = [], tree.parents[node]
            while at > 0:
                path.insert(0, tree.tokens[at])
                at = tree.parents[at]
            assert constraint.admits(path, tree.tokens[node])
            verified += 1
        before += step.tokens
    assert verified > 10


def test_what_is_forced_is_accepted_without_a_drafter_being_right() -> None:
    """A schema without a choice: nearly all of its text comes in a few steps."""
    names = [f"field_number_{place}" for place in range(3)]
    schema = {"type": "object", "properties": {name: {"const": 7} for name in names}, "required": names,
              "additionalProperties": False}  # fmt: skip
    plain, _ = answer(grammars().constraint(Grammar.schema(schema)), mode="plain", temperature=0.0)
    for mode in ("chain", "tree"):
        found, events = answer(grammars().constraint(Grammar.schema(schema)), mode=mode, temperature=0.0)
        assert found == plain
        assert len(plain) / len(steps(events)) > 3


def test_what_is_forced_needs_no_drafter() -> None:
    alone = Engine(demo_pair.target())
    grammar, ids = Grammar("regex", "The answer is [0-9]{2}, and that is all of it"), list(range(40, 60))
    found = []
    for mode in ("plain", "auto"):
        events = list(
            alone.generate(ids, Knobs(max_tokens=60).replace(mode=mode), constraint=grammars().constraint(grammar))
        )
        found.append(([id for event in events for id in event.tokens], steps(events)))
    (plain, slow), (auto, fast) = found
    assert plain == auto
    assert 2 * len(fast) < len(slow)
    assert {step.mode for step in fast} == {"plain", "chain"}
    assert {step.drafter for step in fast} == {""}


@pytest.mark.parametrize(
    ("grammar", "pattern"),
    [(Grammar("regex", r"[A-Z]{3}-\d{2}/[ab]"), r"[A-Z]{3}-\d{2}/[ab]"),
     (Grammar.choice(["forty", 'eighty "five"', "a\nb"]), r'forty|eighty "five"|a\nb'),
     (Grammar("lark", 'start: "<" NAME ">" /[0-9]{2}/\nNAME: "x" | "yy"'), r"<(x|yy)>\d{2}")],
    ids=["regex", "choice", "lark"],
)  # fmt: skip
def test_other_grammars(grammar: Grammar, pattern: str) -> None:
    plain, events = answer(grammars().constraint(grammar), mode="plain", **SAMPLED)
    assert re.fullmatch(pattern, text(plain))
    assert events[-1].stop == "stop token"
    assert answer(grammars().constraint(grammar), mode="tree", **SAMPLED)[0] == plain


def after_reasoning(name: str) -> AfterThinking:
    found = grammars().of_answer(Grammar.schema(SCHEMAS[name][0]), thinking=True, opens_thinking=True)
    assert isinstance(found, AfterThinking)
    return found


def tags() -> tuple[int, int]:
    special = engine().target.tokenizer.special
    return special["<think>"], special["</think>"]


@pytest.mark.parametrize("sampled", [False, full(True)], ids=["greedy", "sampled"])
def test_reasoning_is_free_and_the_answer_is_not(sampled: bool) -> None:
    """With planted drafts, so that steps accept drafts on both sides of the closing tag."""
    sampling = {**(SAMPLED if sampled else {"temperature": 0.0}), "max_tokens": 400}
    target = engine().target
    plain, _ = answer(after_reasoning("object"), mode="plain", thinking=True, **sampling)
    end = plain.index(tags()[1])
    assert end > 1
    assert _person(json.loads(text(plain[end + 1 :])))
    ids = build_prompt(Prompting(target.tokenizer, target.template, True), [Message("user", "What is 37 + 48?")]).ids
    inside = 0
    for seed, mode in enumerate(("chain", "tree")):
        backend = PlantedBackend(target, ids, plain, seed, block=12)
        knobs = Knobs(**sampling).replace(mode=mode, budget=24)
        found, taken = decode(
            backend, ids, knobs, stops=target.tokenizer.stop_ids, constraint=after_reasoning("object")
        )
        assert found == plain
        ends = set(itertools.accumulate([1, *(len(step.tokens) for step in taken)]))
        inside += bool({end, end + 1, end + 2}.isdisjoint(ends))
    assert inside, "no step went past the closing tag"


def test_the_answer_ends_although_stop_tokens_are_ignored() -> None:
    ids, events = answer(grammars().constraint(Grammar.choice(["yes"])), mode="tree", ignore_eos=True)
    assert text(ids) == "yes"
    assert events[-1].stop == "stop token"


def test_an_answer_after_a_constrained_one_is_the_usual() -> None:
    def usual() -> list[int]:
        ids = build_prompt(
            Prompting(engine().target.tokenizer, engine().target.template, False), [Message("user", "hi")]
        ).ids
        return [id for event in engine().generate(ids, Knobs(max_tokens=12)) for id in event.tokens]

    before = usual()
    answer(grammars().constraint(Grammar.choice(["no"])), mode="tree")
    assert usual() == before


def test_a_guard_s_tokens_pass_the_same_door() -> None:
    """A budget of reasoning closes it with the model's own tag, after which the grammar holds."""
    tokenizer, found = engine().target.tokenizer, []
    for mode in ("plain", "tree"):
        knobs = Knobs(max_tokens=60, thinking_budget=3, temperature=0.0).replace(mode=mode)
        ids = build_prompt(
            Prompting(tokenizer, engine().target.template, True), [Message("user", "What is 37 + 48?")]
        ).ids
        guard = TurnGuard(tokenizer, knobs, opens_thinking=True)
        events = list(engine().generate(ids, knobs, guard=guard, constraint=after_reasoning("list")))
        found.append([id for event in events for id in event.tokens])
    assert found[0] == found[1]
    assert found[0].index(tags()[1]) == 3
    assert _list(json.loads(text(found[0][4:])))


@pytest.mark.parametrize(
    "grammar",
    [Grammar.schema({"type": "object", "not": {}}), Grammar.schema({"$ref": "http://127.0.0.1:1/a"}),
     Grammar.schema({"type": "string", "format": "unheard"}), Grammar("regex", "("), Grammar("lark", "start: ("),
     Grammar.choice([]), Grammar("lark", "a" * (2**20 + 1)),
     Grammar.schema({"allOf": [{"type": "string"}, {"type": "integer"}]}), Grammar.schema({"$ref": "#"})],
)  # fmt: skip
def test_what_cannot_be_followed_is_refused(grammar: Grammar) -> None:
    with pytest.raises(GrammarError) as raised:
        grammars().constraint(grammar)
    assert "\n" not in str(raised.value)


def test_a_lenient_schema_leaves_out_what_is_unknown() -> None:
    schema = {"type": "object", "propertyNames": {"maxLength": 3}, "properties": {"a": {"const": 1}}, "required": ["a"],
              "additionalProperties": False}  # fmt: skip
    with pytest.raises(GrammarError):
        grammars().constraint(Grammar.schema(schema))
    grammars().constraint(Grammar.schema(schema, lenient=True))


def test_a_drafted_stop_token_leaves_the_grammar_as_it_was() -> None:
    """The library does not get back to the state before one: such a step used to end the answer with an error."""
    tokenizer = engine().target.tokenizer
    stop = tokenizer.special["<|im_end|>"]
    constraint = grammars().constraint(Grammar.choice(["a poem 334"]))
    constraint.add(tokenizer.encode("a poem 334"))
    assert constraint.admits([], stop)
    constraint.allowed([])
    assert constraint.allowed([stop]) is None
    assert not constraint.admits([stop], stop)
    constraint.add([stop])
