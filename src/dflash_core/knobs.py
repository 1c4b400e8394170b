"""The one table of parameters: sliders, `/set`, `--set`, the config file and the docs are all made from it."""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from dflash_core.errors import KnobError

EFFORTS = ("low", "medium", "high", "xhigh")  # levels of reasoning that templates know, lowest first
DEFAULT_EFFORT = "medium"

Mode = Literal["ar", "chain", "tree", "auto"]
LoopAction = Literal["close", "stop", "off"]
PolicyName = Literal["auto", "capped", "fixed"]
Value = int | float | bool | str
Group = Literal["speculation", "sampling", "answer", "loading"]
Applies = Literal["next step", "next turn", "reload"]

SHAPES_FIXED = frozenset({"budget", "p_min", "chain_seed"})
"""Setting one of these means a fixed tree of that shape instead of the program's choice."""
RANDOM_SEED = -1
STATE = frozenset({"mode", "policy", "budget"})
"""The parts of one decision, which `Knobs.state` says in one word."""
MOST_MTP_DEPTH = 8
MOST_WIDTH = 64  # candidates per draft position, on any device


@dataclass(frozen=True, slots=True)
class Spec:
    """One parameter: how it is shown, what it may be, and when a change takes effect.

    `minimum` and `maximum` bound what is legal; `slider` bounds what a slider offers, where that is less. `words`:
    names that users see, and may type, for values that are stored under another name; of numbers, for the minimum.
    """

    name: str
    label: str
    help: str
    group: Group
    applies: Applies
    kind: Literal["int", "float", "switch", "choice"]
    default: Value
    minimum: float = 0.0
    maximum: float = 0.0
    step: float = 1.0
    slider: tuple[float, float] | None = None
    choices: tuple[str, ...] = ()
    words: tuple[tuple[str, str], ...] = ()

    @property
    def allowed(self) -> str:
        """The legal values in words, for messages and help."""
        if self.kind == "switch":
            return "on or off"
        if self.kind == "choice":
            return ", ".join(map(self.show, self.choices))
        bounds = self.minimum + bool(self.words), self.maximum
        low, high = (f"{int(n):,}" if n == int(n) else f"{n:g}" for n in bounds)
        return " or ".join([*(word for _, word in self.words), f"{low} to {high}"])

    def parse(self, text: str) -> Value:
        """Read a value as a user types it. Raises KnobError."""
        word = text.strip()
        if self.kind == "switch":
            if word.lower() in ("on", "true", "yes", "1"):
                return True
            if word.lower() in ("off", "false", "no", "0"):
                return False
            raise KnobError(f"{self.name}={text}: expected {self.allowed}")
        if self.kind == "choice":
            switch = {"true": "on", "false": "off"}.get(word.lower(), word)
            return self.check(switch if switch in self.choices else word)
        if word in [shown for _, shown in self.words]:
            return self.check(word)
        try:
            return self.check(int(word) if self.kind == "int" else float(word))
        except ValueError:
            kind = "a whole number" if self.kind == "int" else "a number"
            raise KnobError(f"{self.name}={text}: expected {kind} from {self.allowed}") from None

    def check(self, value: Value) -> Value:
        """Return `value` in the parameter's own type, or raise KnobError with the allowed range."""
        if self.kind == "switch":
            if isinstance(value, bool):
                return value
        elif self.kind == "choice":
            kept = next((kept for kept, word in self.words if word == value), value)
            if kept in self.choices:
                return kept
        elif value in [word for _, word in self.words]:
            return int(self.minimum)
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            # Compared before any conversion: a seed near 2**63 is not a float, and an int may be too large for one.
            whole = isinstance(value, int) or value.is_integer()
            if self.minimum <= value <= self.maximum and (whole or self.kind == "float"):
                return int(value) if self.kind == "int" else float(value)
        raise KnobError(f"{self.name}={value}: expected {self.allowed}")

    def show(self, value: Value) -> str:
        """The value as tables and the status strip print it."""
        if isinstance(value, bool):
            return "on" if value else "off"
        return f"{value:.2f}" if isinstance(value, float) else dict(self.words).get(str(value), str(value))


def _knob(
    default: Value,
    label: str,
    help: str,
    group: Group,
    *,
    applies: Applies = "next step",
    bounds: tuple[float, float] = (0.0, 0.0),
    step: float = 1.0,
    slider: tuple[float, float] | None = None,
    choices: tuple[str, ...] = (),
    words: tuple[tuple[str, str], ...] = (),
) -> Any:
    kind = "switch" if isinstance(default, bool) else "choice" if choices else type(default).__name__
    parts: dict[str, Any] = {"label": label, "help": help, "group": group, "applies": applies, "kind": kind}
    parts |= {"default": default, "minimum": bounds[0], "maximum": bounds[1], "step": step}
    parts |= {"slider": slider, "choices": choices, "words": words}
    return field(default=default, metadata=parts)


@dataclass(frozen=True, slots=True)
class Knobs:
    """The parameters of a turn. Frozen: every turn keeps its own. Raises KnobError for a value out of range."""

    mode: Mode = _knob(
        "auto", "mode", "plain decoding, a chain of drafts, a tree of drafts, or the program's choice",
        "speculation", choices=("ar", "chain", "tree", "auto"), words=(("ar", "plain"),),
    )  # fmt: skip
    policy: PolicyName = _knob(
        "auto", "policy",
        "under mode auto: as many candidates as pay, so many within budget and mtp_depth, or a tree of the budget",
        "speculation", choices=("auto", "capped", "fixed"),
    )  # fmt: skip
    budget: int = _knob(
        22, "tree budget",
        "draft tokens that a target pass verifies, the root not counted; the most under policy capped",
        "speculation", bounds=(1, 256), slider=(1, 64),
    )  # fmt: skip
    p_min: float = _knob(
        0.0, "p_min", "leave out a draft token whose own probability is under this; the first is exempt",
        "speculation", bounds=(0, 1), step=0.05,
    )  # fmt: skip
    tree_temperature: float = _knob(
        1.0, "tree temperature", "softens the drafter's probabilities before the tree is built",
        "speculation", bounds=(0.05, 5), step=0.05, slider=(0.05, 2),
    )  # fmt: skip
    tree_width: int = _knob(
        8, "tree width", "candidates per draft position; a card keeps 8 at most",
        "speculation", bounds=(1, MOST_WIDTH), slider=(1, 16),
    )  # fmt: skip
    by_parent: bool = _knob(
        True, "score by parent", "score a draft token by the token above it, where the drafter can", "speculation"
    )  # fmt: skip
    chain_seed: bool = _knob(
        False, "chain seed", "put the drafter's best chain into the tree before anything else", "speculation"
    )  # fmt: skip
    from_text: bool = _knob(
        True, "copy from text", "under policy auto, offer what followed the same words earlier", "speculation"
    )  # fmt: skip
    learn: bool = _knob(
        True, "learn", "under policy auto, learn from every step how likely candidates are", "speculation"
    )  # fmt: skip
    draft_window: int = _knob(
        0, "draft window", "context positions that the drafter may look back at; 0 is all of them",
        "speculation", bounds=(0, 1_048_576), step=64, slider=(0, 4096),
    )  # fmt: skip
    draft: Literal["auto", "dflash", "dflash2", "dspark", "mtp", "text"] = _knob(
        "auto", "drafter", "which of several loaded drafters drafts; auto picks one for each step",
        "speculation", choices=("auto", "dflash", "dflash2", "dspark", "mtp", "text"),
    )  # fmt: skip
    mtp_depth: int = _knob(
        3, "MTP depth", "tokens that an MTP head drafts one after the other",
        "speculation", bounds=(1, MOST_MTP_DEPTH), slider=(1, MOST_MTP_DEPTH),
    )  # fmt: skip
    draft_vocabulary: int = _knob(
        98_304, "draft vocabulary", "on a card drafts are chosen among so many tokens, the first ones; 0 is all",
        "speculation", bounds=(0, 1_048_576), step=1024, slider=(0, 262_144),
    )  # fmt: skip
    attention_window: int = _knob(
        0, "attention window",
        "last tokens that the target sees, beside the first 64 and the system message; 0 is all, else it is not the "
        "model's exact output. A change reads the conversation again",
        "answer", applies="next turn", bounds=(0, 1_048_576), step=64, slider=(0, 32_768),
    )  # fmt: skip
    thinking: bool = _knob(
        False, "thinking", "let the model reason before it answers; drafters are usually worse at it",
        "answer", applies="next turn",
    )  # fmt: skip
    reasoning_effort: Literal["low", "medium", "high", "xhigh"] = _knob(
        DEFAULT_EFFORT, "reasoning effort", "how long to reason, where the model's template knows levels of it",
        "answer", applies="next turn", choices=EFFORTS,
    )  # fmt: skip
    preserve_thinking: Literal["auto", "on", "off"] = _knob(
        "auto", "keep thinking", "earlier reasoning stays in the prompt; auto is what the model's template does",
        "answer", applies="next turn", choices=("auto", "on", "off"),
    )  # fmt: skip
    thinking_budget: int = _knob(
        0, "thinking budget", "tokens of reasoning before it is closed and the answer begins; 0 is no limit",
        "answer", applies="next turn", bounds=(0, 1_048_576), step=64, slider=(0, 8192),
    )  # fmt: skip
    loop_guard: LoopAction = _knob(
        "close", "loop guard", "reasoning that repeats itself is closed and the answer begins, or all of it stops",
        "answer", applies="next turn", choices=("close", "stop", "off"),
    )  # fmt: skip
    answer_loop_guard: Literal["stop", "off"] = _knob(
        "stop", "answer loop guard", "an answer that repeats itself is stopped", "answer", applies="next turn",
        choices=("stop", "off"),
    )  # fmt: skip
    end_in_thinking: Literal["close", "leave"] = _knob(
        "close", "end in thinking",
        "where the model ends its message inside its reasoning: close that and go on to the answer, once, or leave it",
        "answer", applies="next turn", choices=("close", "leave"),
    )  # fmt: skip
    temperature: float = _knob(
        0.0, "temperature", "0 takes the likeliest token, higher draws more freely",
        "sampling", bounds=(0, 5), step=0.05, slider=(0, 2),
    )  # fmt: skip
    top_k: int = _knob(
        0, "top_k", "draw among this many likeliest tokens; 0 is all", "sampling",
        bounds=(0, 1_000_000), slider=(0, 100),
    )  # fmt: skip
    top_p: float = _knob(
        1.0, "top_p", "draw among the likeliest tokens that hold this much probability", "sampling",
        bounds=(0, 1), step=0.05,
    )  # fmt: skip
    min_p: float = _knob(
        0.0, "min_p", "leave out tokens under this share of the likeliest token's probability", "sampling",
        bounds=(0, 1), step=0.01, slider=(0, 0.5),
    )  # fmt: skip
    repetition_penalty: float = _knob(
        1.0, "repetition penalty", "divides the logits of tokens already generated", "sampling",
        bounds=(0.1, 5), step=0.05, slider=(0.5, 2),
    )  # fmt: skip
    frequency_penalty: float = _knob(
        0.0, "frequency penalty", "subtracted once per earlier occurrence", "sampling", bounds=(-5, 5),
        step=0.05, slider=(-2, 2),
    )  # fmt: skip
    presence_penalty: float = _knob(
        0.0, "presence penalty", "subtracted once if the token occurred at all", "sampling", bounds=(-5, 5),
        step=0.05, slider=(-2, 2),
    )  # fmt: skip
    seed: int = _knob(
        RANDOM_SEED, "seed", "same seed, same draws, whatever the mode; random is another one for every answer",
        "answer", applies="next turn", bounds=(RANDOM_SEED, 2**63 - 1), slider=(RANDOM_SEED, 100),
        words=((str(RANDOM_SEED), "random"),),
    )  # fmt: skip
    max_tokens: int = _knob(
        512, "max tokens", "the answer ends here at the latest", "answer", applies="next turn",
        bounds=(1, 1_048_576), step=16, slider=(16, 4096),
    )  # fmt: skip
    ignore_eos: bool = _knob(
        False, "ignore stop tokens", "go on after the model ends its answer; for measuring", "answer",
        applies="next turn",
    )  # fmt: skip

    def __post_init__(self) -> None:
        for spec in SPECS:
            object.__setattr__(self, spec.name, spec.check(getattr(self, spec.name)))

    def replace(self, **changes: Value) -> Knobs:
        """A copy with some values changed. Raises KnobError.

        Under mode auto, setting the shape of the tree fixes it, unless the policy is set too. A budget that is set
        together with policy auto caps it, even if it is the default. Mode auto alone is the program's choice again.
        """
        for name in changes:
            spec_of(name)
        if changes.get("mode") == "auto" and not changes.keys() & {*SHAPES_FIXED, "policy"}:
            changes |= {"policy": "auto", "budget": SPEC["budget"].default}
            return dataclasses.replace(self, **changes)  # type: ignore[arg-type]
        if SHAPES_FIXED & changes.keys() and "policy" not in changes and changes.get("mode", self.mode) == "auto":
            changes["policy"] = "fixed"
        if changes.get("policy") == "auto" and changes.get("budget") == SPEC["budget"].default:
            changes["policy"] = "capped"
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]

    def fixed(self) -> Knobs:
        """These knobs with a seed, 0 where it is to be random: for measurements, which compare the same draws."""
        return self if self.seed != RANDOM_SEED else dataclasses.replace(self, seed=0)

    @property
    def state(self) -> str:
        """What decodes, as every screen names it: auto, auto up to N, tree N, chain N, or plain."""
        if self.mode == "ar":
            return SPEC["mode"].show(self.mode)
        if self.mode == "auto" and self.policy != "fixed":
            return "auto" if self.cap is None else f"auto up to {self.cap}"
        return f"{'tree' if self.mode == 'auto' else self.mode} {self.budget}"

    @property
    def cap(self) -> int | None:
        """The most nodes that the policy may choose; None where the budget is no limit: under `auto` its default
        counts as not set."""
        unset = self.policy == "auto" and self.budget == SPEC["budget"].default
        return None if unset else self.budget

    def in_mid_turn(self, wanted: Knobs) -> Knobs:
        """These knobs with the values of `wanted` that a running turn can adopt: all that apply from the next step."""
        live = {name: getattr(wanted, name) for name in LIVE}
        return dataclasses.replace(self, **live)

    def to_dict(self) -> dict[str, Value]:
        """Plain values, in the table's order."""
        return {spec.name: getattr(self, spec.name) for spec in SPECS}


def check_tree_width(knobs: Knobs, most: int) -> None:
    """Raise KnobError if `knobs` need more than the `most` candidates per draft position that a device keeps."""
    if knobs.tree_width > most:
        raise KnobError(
            f"tree_width={knobs.tree_width}: the card keeps {most} candidates per draft position; expected 1 to {most}"
        )


def spec_of(name: str) -> Spec:
    """The description of a parameter. Raises KnobError for an unknown one, with a similar name if there is one."""
    if name in SPEC:
        return SPEC[name]
    near = difflib.get_close_matches(name, [spec.name for spec in SPECS], n=1)
    hint = f"did you mean {near[0]}?" if near else "known: " + ", ".join(spec.name for spec in SPECS)
    raise KnobError(f"unknown parameter {name!r}; {hint}")


def described(knobs: Knobs, names: Collection[str]) -> list[str]:
    """The values of `names` for messages; mode, policy and budget are one: `Knobs.state`."""
    whole = [f"mode {knobs.state}"] if STATE & set(names) else []
    return whole + [f"{name} {SPEC[name].show(getattr(knobs, name))}" for name in names if name not in STATE]


_STATE = re.compile(r"(?P<mode>tree|chain|auto(?: up to)?)[ =](?P<budget>\d+)")


def parse_settings(settings: Mapping[str, str]) -> dict[str, Value]:
    """`--set name=value` pairs as typed values, for `Knobs.replace`. Raises KnobError.

    `mode` takes a whole state (`Knobs.state`), such as tree 22 or auto up to 40.
    """
    found: dict[str, Value] = {}
    for name, text in settings.items():
        whole = _STATE.fullmatch(" ".join(text.split())) if name == "mode" else None
        if whole is None:
            found[name] = spec_of(name).parse(text)
            continue
        mode = whole["mode"].split()[0]
        found |= {"mode": mode, "budget": SPEC["budget"].parse(whole["budget"])}
        if mode == "auto":
            found["policy"] = "capped"
    return found


SPECS: tuple[Spec, ...] = tuple(Spec(name=f.name, **f.metadata) for f in dataclasses.fields(Knobs))
SPEC: Mapping[str, Spec] = {spec.name: spec for spec in SPECS}
CONTEXT = Spec(
    "context", "context", "positions to keep memory for, prompt and answer together; 0 is as many as fit",
    "loading", "reload", "int", 0, 0, 1_048_576, step=512, slider=(0, 32_768),
)  # fmt: skip
"""Settings that a loaded pair cannot change: no knobs of a turn, but shown with them."""
READ_AGAIN = ("attention_window", "thinking", "reasoning_effort", "preserve_thinking")
"""A change of these may make the next turn read the conversation again."""
LIVE: frozenset[str] = frozenset(spec.name for spec in SPECS if spec.applies == "next step")
