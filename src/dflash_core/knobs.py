"""The one table of parameters: sliders, `/set`, `--set`, the config file and the docs are all made from it."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, cast

from dflash_core.drafting import (
    ALLOWED,
    DEFAULT_NODES,
    MAX_NODES,
    MODES,
    POLICIES,
    Mode,
    canonical,
    changed_by,
    nodes_of,
)
from dflash_core.errors import KnobError

EFFORTS = ("low", "medium", "high", "xhigh")  # levels of reasoning that templates know, lowest first
DEFAULT_EFFORT = "medium"

LoopAction = Literal["close", "stop", "off"]
Value = int | float | bool | str
Group = Literal["speculation", "sampling", "answer", "loading"]
Applies = Literal["next step", "next turn", "reload"]

RANDOM_SEED = -1
MAX_MTP_DEPTH = 8
MAX_WIDTH = 64  # candidates per draft position, on any device
SWITCHES = dict.fromkeys(("on", "true", "yes", "1"), True) | dict.fromkeys(("off", "false", "no", "0"), False)


@dataclass(frozen=True, slots=True)
class Spec:
    """One parameter: how it is shown, what it may be, and when a change takes effect.

    `minimum` and `maximum` bound what is legal; `slider` bounds what a slider offers, where that is less. `words`:
    what users see, and may type, for the minimum. `former`: spellings of a choice that earlier versions wrote; they are
    read. The bounds of a drafting are those of its size.
    """

    name: str
    label: str
    help: str
    group: Group
    applies: Applies
    kind: Literal["int", "float", "switch", "choice", "drafting"]
    default: Value
    minimum: float = 0.0
    maximum: float = 0.0
    step: float = 1.0
    slider: tuple[float, float] | None = None
    choices: tuple[str, ...] = ()
    words: tuple[tuple[str, str], ...] = ()
    former: tuple[tuple[str, str], ...] = ()

    @property
    def allowed(self) -> str:
        """The legal values in words, for messages and help."""
        if self.kind == "switch":
            return "on or off"
        if self.kind == "choice":
            return ", ".join(self.choices)
        return f"{ALLOWED}; N from {self._span()}" if self.kind == "drafting" else self._span()

    def _span(self, kind: str = "") -> str:
        """The bounds of a number after its `kind`, behind the word that stands for the minimum."""
        bounds = self.minimum + bool(self.words), self.maximum
        low, high = (f"{int(n):,}" if n == int(n) else f"{n:g}" for n in bounds)
        return " or ".join([*(word for _, word in self.words), f"{kind}{low} to {high}"])

    def parse(self, text: str) -> Value:
        """Read a value as a user types it. Raises KnobError."""
        word = text.strip()
        if self.kind == "switch":
            return self.check(SWITCHES.get(word.lower(), word))
        if self.kind == "choice":
            switch = {"true": "on", "false": "off"}.get(word.lower(), word)
            return self.check(switch if switch in self.choices else word)
        if self.kind == "drafting" or word in [shown for _, shown in self.words]:
            return self.check(word)
        try:
            return self.check(int(word) if self.kind == "int" else float(word))
        except ValueError:
            span = self._span("a whole number from " if self.kind == "int" else "a number from ")
            raise KnobError(f"{self.name}={text}: expected {span}") from None

    def check(self, value: Value) -> Value:
        """Return `value` in the parameter's own type, or raise KnobError with the allowed range."""
        if self.kind == "switch":
            if isinstance(value, bool):
                return value
        elif self.kind == "choice":
            now = next((now for before, now in self.former if before == value), value)
            if now in self.choices:
                return now
        elif self.kind == "drafting":
            found = canonical(value) if isinstance(value, str) else None
            if found is not None and (nodes_of(found) or 0) <= self.maximum:
                return found
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
    group: Group, applies: Applies, default: Value, label: str, help: str, bounds: tuple[float, float] = (0, 0),
    **more: Any,
) -> Any:  # fmt: skip
    """`more`: other fields of its `Spec`. The kind follows from the default value, unless it is given."""
    kind = "switch" if isinstance(default, bool) else "choice" if "choices" in more else type(default).__name__
    parts = {"label": label, "help": help, "group": group, "kind": kind, "applies": applies, "default": default}
    return field(default=default, metadata={**parts, "minimum": bounds[0], "maximum": bounds[1], **more})


_speculation, _sampling = partial(_knob, "speculation", "next step"), partial(_knob, "sampling", "next step")
_answer = partial(_knob, "answer", "next turn")


@dataclass(frozen=True, slots=True)
class Knobs:
    """The parameters of a turn. Frozen: every turn keeps its own. Raises KnobError for a value out of range."""

    drafting: str = _speculation(
        "auto", "drafting", "as many draft tokens as pay, N at most, a tree or a chain of N, or plain decoding",
        kind="drafting", bounds=(1, MAX_NODES), slider=(1, 64),
    )  # fmt: skip
    p_min: float = _speculation(
        0.0, "p_min", "leave out a draft token whose own probability is under this; the first is exempt", bounds=(0, 1),
        step=0.05,
    )  # fmt: skip
    tree_temperature: float = _speculation(
        1.0, "tree temperature", "softens the drafter's probabilities before the tree is built", bounds=(0.05, 5),
        step=0.05, slider=(0.05, 2),
    )  # fmt: skip
    tree_width: int = _speculation(
        8, "tree width", "candidates per draft position; a card keeps 8 at most", bounds=(1, MAX_WIDTH), slider=(1, 16)
    )
    by_parent: bool = _speculation(
        True, "score by parent", "score a draft token by the token above it, where the drafter supports it"
    )
    chain_seed: bool = _speculation(
        False, "chain seed", "put the drafter's best chain into the tree before anything else"
    )
    from_text: bool = _speculation(True, "copy from text", "under auto, offer what followed the same words earlier")
    learn: bool = _speculation(True, "learn", "under auto, learn from every step how likely candidates are")
    draft_window: int = _speculation(
        0, "draft window", "last positions of the context that the drafter sees; 0 is all",
        bounds=(0, 1_048_576), step=64, slider=(0, 4096),
    )  # fmt: skip
    draft: Literal["auto", "assistant", "dflash", "dflash2", "dspark", "mtp", "ngram"] = _speculation(
        "auto", "drafter", "which of several loaded drafters drafts; auto picks one for each step",
        choices=("auto", "assistant", "dflash", "dflash2", "dspark", "mtp", "ngram"), former=(("text", "ngram"),),
    )  # fmt: skip
    mtp_depth: int = _speculation(
        3, "MTP depth", "tokens that an MTP head drafts one after the other", bounds=(1, MAX_MTP_DEPTH),
        slider=(1, MAX_MTP_DEPTH),
    )  # fmt: skip
    draft_vocabulary: int = _speculation(
        98_304, "draft vocabulary", "on a card drafts are chosen among this many tokens, from the first on; 0 is all",
        bounds=(0, 1_048_576), step=1024, slider=(0, 262_144),
    )  # fmt: skip
    attention_window: int = _answer(
        0, "attention window",
        "last tokens that the target sees, beside the first 64 and the system message; 0 is all, else it is not the "
        "model's exact output. A change reads the conversation again",
        bounds=(0, 1_048_576), step=64, slider=(0, 32_768),
    )  # fmt: skip
    thinking: bool = _answer(
        False, "thinking", "let the model reason before it answers; fewer drafts are usually accepted there"
    )
    reasoning_effort: Literal["low", "medium", "high", "xhigh"] = _answer(
        DEFAULT_EFFORT, "reasoning effort", "how long to reason, where the model's template knows levels of it",
        choices=EFFORTS,
    )  # fmt: skip
    preserve_thinking: Literal["auto", "on", "off"] = _answer(
        "auto", "keep thinking", "earlier reasoning stays in the prompt; auto is what the model's template does",
        choices=("auto", "on", "off"),
    )  # fmt: skip
    thinking_budget: int = _answer(
        0, "thinking budget", "tokens of reasoning before it is closed and the answer begins; 0 is no limit",
        bounds=(0, 1_048_576), step=64, slider=(0, 8192),
    )  # fmt: skip
    loop_guard: LoopAction = _answer(
        "close", "loop guard", "reasoning that repeats itself is closed and the answer begins, or all of it stops",
        choices=("close", "stop", "off"),
    )  # fmt: skip
    answer_loop_guard: Literal["stop", "off"] = _answer(
        "stop", "answer loop guard", "an answer that repeats itself is stopped", choices=("stop", "off")
    )
    end_in_thinking: Literal["close", "leave"] = _answer(
        "close", "end in thinking",
        "where the model ends its message inside its reasoning: close that and go on to the answer, once, or leave it",
        choices=("close", "leave"),
    )  # fmt: skip
    temperature: float = _sampling(
        0.0, "temperature", "0 takes the likeliest token, higher draws more freely", bounds=(0, 5), step=0.05,
        slider=(0, 2),
    )  # fmt: skip
    top_k: int = _sampling(
        0, "top_k", "draw among this many likeliest tokens; 0 is all", bounds=(0, 1_000_000), slider=(0, 100)
    )
    top_p: float = _sampling(
        1.0, "top_p", "draw among the likeliest tokens that hold this much probability", bounds=(0, 1), step=0.05
    )
    min_p: float = _sampling(
        0.0, "min_p", "leave out tokens under this share of the likeliest token's probability", bounds=(0, 1),
        step=0.01, slider=(0, 0.5),
    )  # fmt: skip
    repetition_penalty: float = _sampling(
        1.0, "repetition penalty", "divides the logits of tokens already generated", bounds=(0.1, 5), step=0.05,
        slider=(0.5, 2),
    )  # fmt: skip
    frequency_penalty: float = _sampling(
        0.0, "frequency penalty", "subtracted once per earlier occurrence", bounds=(-5, 5), step=0.05, slider=(-2, 2)
    )
    presence_penalty: float = _sampling(
        0.0, "presence penalty", "subtracted once if the token occurred at all", bounds=(-5, 5), step=0.05,
        slider=(-2, 2),
    )  # fmt: skip
    seed: int = _answer(
        RANDOM_SEED, "seed", "same seed, same draws, whatever the mode; random is another one for every answer",
        bounds=(RANDOM_SEED, 2**63 - 1), slider=(RANDOM_SEED, 100), words=((str(RANDOM_SEED), "random"),),
    )  # fmt: skip
    max_tokens: int = _answer(
        512, "max tokens", "the answer ends here at the latest", bounds=(1, 1_048_576), step=16, slider=(16, 4096)
    )
    ignore_eos: bool = _answer(False, "ignore stop tokens", "go on after the model ends its answer; for measuring")

    def __post_init__(self) -> None:
        for spec in SPECS:
            object.__setattr__(self, spec.name, spec.check(getattr(self, spec.name)))

    def replace(self, **changes: Value) -> Knobs:
        """A copy with some values changed. Raises KnobError.

        The names of FORMER change `drafting`. Under `auto`, so does setting only the shape of the tree, to a tree.
        """
        for name in changes:
            spec_of(name)
        former = {name: SPEC_FORMER[name].check(changes.pop(name)) for name in SPEC_FORMER.keys() & changes.keys()}
        if "drafting" not in changes:
            changes["drafting"] = changed_by(self.drafting, changes | former)
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]

    def fixed(self) -> Knobs:
        """These knobs with a seed, 0 where it is to be random: for measurements, which compare the same draws."""
        return self if self.seed != RANDOM_SEED else dataclasses.replace(self, seed=0)

    @property
    def mode(self) -> Mode:
        """What decodes, without a size."""
        return cast("Mode", self.drafting.partition(" ")[0])

    @property
    def budget(self) -> int:
        """The draft tokens of a tree or chain; the default size where `drafting` names none."""
        return nodes_of(self.drafting) or DEFAULT_NODES

    @property
    def cap(self) -> int | None:
        """The most draft tokens of a step; None where `drafting` names no size."""
        return nodes_of(self.drafting)

    def at_most(self, nodes: int) -> Knobs:
        """These with a size of `drafting` that is no more than `nodes`."""
        return self if self.cap is None or self.cap <= nodes else self.replace(budget=nodes)

    def in_mid_turn(self, requested: Knobs) -> Knobs:
        """These knobs with the values of `requested` that a running turn can adopt: those of the next step."""
        live = {name: getattr(requested, name) for name in LIVE}
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
    """The description of a parameter, also of a former one. Raises KnobError for an unknown one, with a similar name
    if there is one."""
    if name in SPEC or name in SPEC_FORMER:
        return SPEC.get(name) or SPEC_FORMER[name]
    near = difflib.get_close_matches(name, [*SPEC, *SPEC_FORMER], n=1)
    hint = f"did you mean {near[0]}?" if near else "known: " + ", ".join(spec.name for spec in SPECS)
    raise KnobError(f"unknown parameter {name!r}; {hint}")


def current(changes: Mapping[str, Value]) -> dict[str, Value]:
    """Checked changes of the defaults without former names: what a file of settings means."""
    knobs = Knobs().replace(**changes)
    moved = {} if knobs.drafting == Knobs().drafting and "drafting" not in changes else {"drafting": knobs.drafting}
    return {name: value for name, value in changes.items() if name not in SPEC_FORMER} | moved


def described(knobs: Knobs, names: Collection[str]) -> list[str]:
    stored = dict.fromkeys("drafting" if name in SPEC_FORMER else name for name in names)
    return [f"{name} {SPEC[name].show(getattr(knobs, name))}" for name in stored]


def parse_settings(settings: Mapping[str, str]) -> dict[str, Value]:
    """`--set name=value` pairs as typed values, for `Knobs.replace`. Raises KnobError.

    The former name `mode` takes values of `drafting` too, and a size that is left out of either is not changed.
    """
    found = {}
    for name, text in settings.items():
        if name == "mode" and any(map(str.isdigit, text)):
            name = "drafting"
        elif name == "drafting" and text.strip() in ("tree", "chain"):
            name = "mode"
        found[name] = spec_of(name).parse(text)
    return found


SPECS: tuple[Spec, ...] = tuple(Spec(name=f.name, **f.metadata) for f in dataclasses.fields(Knobs))
SPEC: Mapping[str, Spec] = {spec.name: spec for spec in SPECS}
FORMER: tuple[Spec, ...] = (
    Spec(
        "mode", "mode", "what decodes, without a size", "speculation", "next step", "choice", "auto",
        choices=MODES, former=(("ar", "plain"),),
    ),
    Spec("policy", "policy", "auto, auto up to N, or a tree of N", "speculation", "next step", "choice", "auto",
        choices=POLICIES,
    ),
    dataclasses.replace(
        SPEC["drafting"], name="budget", label="tree budget", kind="int", default=DEFAULT_NODES,
        help="the size of drafting; a tree of this size where it has none",
    ),
)  # fmt: skip
"""Parameters of earlier versions, accepted for `drafting` wherever settings are read. `mode` and `budget` are also what
an experiment varies."""
SPEC_FORMER: Mapping[str, Spec] = {spec.name: spec for spec in FORMER}
CONTEXT = Spec(
    "context", "context", "positions to keep memory for, prompt and answer together; 0 is as many as fit",
    "loading", "reload", "int", 0, 0, 1_048_576, step=512, slider=(0, 32_768),
)  # fmt: skip
"""Settings that a loaded pair cannot change: no knobs of a turn, but shown with them."""
READ_AGAIN = ("attention_window", "thinking", "reasoning_effort", "preserve_thinking")
"""A change of these may make the next turn read the conversation again."""
LIVE: frozenset[str] = frozenset(spec.name for spec in SPECS if spec.applies == "next step")
