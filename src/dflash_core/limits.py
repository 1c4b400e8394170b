"""The limits of a loaded pair: knobs that it could never apply are refused by name."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from dflash_core.arch.recommended import NOTHING, Recommended
from dflash_core.drafters.capabilities import DRAFT_KNOBS, Capabilities
from dflash_core.errors import KnobError
from dflash_core.knobs import MAX_WIDTH, SPEC, SPEC_FORMER, Knobs, check_tree_width
from dflash_core.text.reasoning import Reasoning


@dataclass(frozen=True, slots=True)
class Limits:
    """What the loaded pair supports: its drafter's capabilities (None without one), positions of context, candidates
    per draft position (few on a card), the largest tree that there is memory for, and the positions that the model
    was trained for (0: unknown). `engine` and `taken`: another engine and the knobs that it takes; "" and None here."""

    drafter: Capabilities | None
    context_length: int
    tree_width: int = MAX_WIDTH
    budget: int = int(SPEC["drafting"].maximum)
    reasoning: Reasoning | None = None  # variables that the target's template reads; None where unknown
    max_context: int = 0
    recommended: Recommended = NOTHING  # the defaults of sampling
    thinking_notes: Mapping[bool, str] = field(default_factory=dict)  # by the value of `thinking` that changes nothing
    engine: str = ""
    taken: frozenset[str] | None = None

    def check(self, knobs: Knobs, changed: Collection[str]) -> None:
        """Refuse changes that this pair does not support, or that have no effect on it.

        Raises KnobError with what is allowed.
        """
        if self.taken is not None and (idle := sorted({*changed} - self.taken)):
            raise KnobError(f"{idle[0]} has no effect: {self.engine} takes only {', '.join(sorted(self.taken))}")
        if self.drafter is not None and (idle := sorted((DRAFT_KNOBS & set(changed)) - self.drafter.knobs)):
            read = ", ".join(sorted(self.drafter.knobs))
            raise KnobError(f"{idle[0]} has no effect on {self.drafter.words}; parameters that have one: {read}")
        if (unread := self.unread() & set(changed)) and (name := min(unread)):
            raise KnobError(f"{name} has no effect: the model's template does not read it")
        self.check_possible(knobs, changed)

    def within(self, knobs: Knobs) -> tuple[Knobs, tuple[str, ...]]:
        """`knobs` with the values that are too large here lowered, and a line for each of them."""
        low, notes = knobs.at_most(self.budget), list[str]()
        if low != knobs:
            notes.append(f"drafting is {low.drafting} here, not {knobs.drafting}: there is memory for no more")
        if low.mode == "chain" and self.drafter is not None and low.budget > self.drafter.depths:
            requested, low = low.drafting, low.at_most(self.drafter.depths)
            notes.append(f"drafting is {low.drafting} here, not {requested}: {self.drafter.words} proposes no more")
        if low.tree_width > self.tree_width:
            why = "the limit of this card per draft position"
            notes.append(f"tree_width is {self.tree_width} here, not {low.tree_width}: {why}")
            low = replace(low, tree_width=self.tree_width)
        return low, tuple(notes)

    def unread(self) -> set[str]:
        """Knobs of reasoning that the target's template does not read."""
        it = self.reasoning
        if it is None:
            return set()
        read = {"reasoning_effort": bool(it.accepted), "preserve_thinking": it.preserves}
        return {name for name, known in read.items() if not known}

    def check_possible(self, knobs: Knobs, changed: Collection[str]) -> None:
        """`check` for a complete set of values: values without effect on this pair are not an error."""
        if self.taken is None and {"drafting", *SPEC_FORMER} & set(changed):
            if knobs.mode in ("chain", "tree") and self.drafter is None:
                raise KnobError(f"drafting={knobs.drafting}: no drafter is loaded; expected plain or auto")
            if (knobs.cap or 0) > self.budget:
                found = f"there is memory for trees of {self.budget} drafted tokens; expected 1 to {self.budget}"
                raise KnobError(f"drafting={knobs.drafting}: {found}, or load it with a shorter context")
        kinds = self.drafter.kind.split("+") if self.drafter is not None else []
        if self.taken is None and "draft" in changed and knobs.draft not in ("auto", *kinds):
            raise KnobError(f"draft={knobs.draft}: not loaded; expected auto, {', '.join(kinds)}")
        it = self.reasoning
        if "reasoning_effort" in changed and it is not None:
            it.variables(knobs.replace(thinking=True))
        if "tree_width" in changed:
            check_tree_width(knobs, self.tree_width)
        if "max_tokens" in changed and self.context_length and knobs.max_tokens >= self.context_length:
            found = f"the context holds {self.context_length:,} with the prompt"
            raise KnobError(f"max_tokens={knobs.max_tokens:,}: {found}; expected 1 to {self.context_length - 1:,}")
