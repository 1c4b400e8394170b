"""A memory plan in words: what a pair takes, what fits, and what would help. No torch here."""

from __future__ import annotations

from collections.abc import Iterator

from dflash_core.fits import MAX_TREE_NODES, PREFILL_ROWS, TARGET, MemoryPlan, Remedy, Setup
from dflash_core.fits_notes import cache_note, trees_end
from dflash_core.memory import gib


def changes(setup: Setup, before: Setup) -> Iterator[tuple[str, str]]:
    """The differences from `before`: in words, and as options of the command line."""
    if setup.kv != before.kv:
        yield f"keys and values as {setup.kv}", f"--kv {setup.kv}"
    if not setup.drafted and before.drafted:
        yield "n-grams instead of the drafter", "--draft ngram"
    elif setup.mtp != before.mtp:
        yield "MTP instead of the drafter", "--draft mtp"
    elif setup.draft_type != before.draft_type:
        yield f"the drafter packed as {setup.draft_type}", f"--draft-type {setup.draft_type}"
    if setup.embedding != before.embedding:
        yield "the token embedding in main memory", f"--embedding {setup.embedding}"
    if setup.experts != before.experts:
        layers = f"{setup.experts} layer{'s' * (setup.experts != 1)}"
        yield f"experts of {layers} in main memory", f"--experts {setup.experts}"
    if setup.context != before.context:
        yield f"a context of {setup.context:,} positions", f"--context {setup.context}"


def remedy_words(remedy: Remedy, before: Setup) -> str:
    """A remedy in one line, without its figures."""
    return " and ".join(words for words, _ in changes(remedy.setup, before))


def options(remedy: Remedy, before: Setup) -> str:
    return " ".join(option for _, option in changes(remedy.setup, before))


def smaller_words(plan: MemoryPlan) -> str:
    """That a smaller quantisation would fit, and how small; empty where none would."""
    if not plan.smaller:
        return ""
    weights = next(one.bytes for one in plan.components if one.name == TARGET)
    return f"a smaller quantisation: {gib(plan.smaller)} of weights, these are {gib(weights)}"


def verdict(plan: MemoryPlan) -> str:
    """Whether it fits, with the figures."""
    spare = plan.available - plan.total
    of = f"{gib(plan.total)} of {gib(plan.available)}"
    return f"{of}: fits, {gib(spare)} to spare" if plan.fits else f"{of}: does not fit, {gib(-spare)} short"


def reduced(setup: Setup) -> Iterator[str]:
    """What is reduced to make it fit, or costs accuracy."""
    if setup.rows != PREFILL_ROWS:
        yield f"prompts are read {setup.rows:,} tokens at once, not {PREFILL_ROWS:,}, to make it fit"
    if note := cache_note(setup.kv):
        yield note
    if 0 < setup.nodes < MAX_TREE_NODES:
        yield trees_end(setup.nodes - 1)
