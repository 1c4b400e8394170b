"""The tables of docs/fits.md: what `plan` says of the synthetic models on cards of five sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from dflash_core.backends.cuda.meta import card_of
from dflash_core.bench.shapes import card_estimator, headers
from dflash_core.bench.synthetic_models import SIZE_8B, SIZE_27B, SIZE_35B_A3B, Model
from dflash_core.cache_types import AUTO, AUTO_PAIRS
from dflash_core.fits import (
    DEFAULT_CARD,
    DESKTOP,
    ON_HOST,
    MemoryPlan,
    Setup,
    longest_context,
    plan,
    requested_setup,
    total,
)
from dflash_core.memory import gib
from dflash_tui.application import fits
from support.mtp_shapes import mtp_header
from support.published import FILES_27B
from support.reckoned import estimator

GIB = 1 << 30
CARDS = (8, 12, 16, 24, 32, 48, 80)
MODELS: Mapping[str, Model] = {
    "27B Q4_K_M": SIZE_27B, "35B-A3B UD-Q4_K_XL": SIZE_35B_A3B, "8B Q4_K_M": SIZE_8B,
}  # fmt: skip
SMALL_CARDS = (8, 12, 16)
ASKED = 131_072  # positions that remedies are shown for


def planned(memory: int, model: Model, context: int) -> MemoryPlan:
    made = estimator(memory * GIB, "Q8_0", model)
    return plan(made, replace(Setup(0), context=min(context, made.longest_context)))


def fits_table(cards: Sequence[int] = CARDS, models: Mapping[str, Model] = MODELS) -> str:
    """The longest context by card, model and type of keys and values."""
    first = planned(CARDS[0], SIZE_27B, 512)
    kinds = [kind for kind in first.context_that_fits if kind != "bf16"]
    lines = [f"| card | model with its drafter | {' | '.join(kinds)} |", f"|---|---|{'---|' * len(kinds)}"]
    for memory in cards:
        for name, model in models.items():
            found = planned(memory, model, 512).context_that_fits
            cells = [f"{found[kind]:,}" if found[kind] else "no" for kind in kinds]
            lines.append(f"| {memory} GB | {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def small_table() -> str:
    """The longest context of published files of the 27B on small cards: MTP drafts, the embedding is in main memory."""
    lines = list[str]()
    for memory in SMALL_CARDS:
        for file in FILES_27B:
            spec, target, _ = headers(file.model, "Q8_0")
            options = replace(DEFAULT_CARD, embedding=ON_HOST)
            made = card_estimator(spec, target, mtp_header(file.model), card_of(memory * GIB), options)
            free = [made.available, made.available - DESKTOP]
            cells = list[str]()
            for kind in map(str, AUTO_PAIRS):
                found = [longest_context(made, Setup(512, kind, embedding=ON_HOST), room) for room in free]
                cells.append(" / ".join(f"{one:,}" if one else "no" for one in found) if found[0] else "no")
            weights = made.components(Setup(512, embedding=ON_HOST))[0].bytes
            row = [f"{memory} GB", f"{file.name}, {file.nbytes / 1e9:.1f} GB", gib(weights), *cells]
            lines.append(f"| {' | '.join(row)} |")
    head = ["card", "file of the 27B", "weights on the card", *map(str, AUTO_PAIRS)]
    return "\n".join([f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *lines]) + "\n"


def experts_table() -> str:
    """35B-A3B with its drafter on cards that are too small for all of it: `--experts auto`."""
    lines = list[str]()
    for memory in SMALL_CARDS:
        for context in (32_768, ASKED):
            spec, target, drafter = headers(SIZE_35B_A3B, "Q8_0")
            made = card_estimator(spec, target, drafter, card_of(memory * GIB), replace(DEFAULT_CARD, experts=AUTO))
            found = plan(made, requested_setup(made, context, AUTO))
            assert found.fits, f"{context} positions on {memory} GB"
            moved = made.host_experts(found.setup)
            row = [f"{memory} GB", f"{context:,}", found.setup.kv, f"{moved.layers} of {spec.block_count}"]
            row += [gib(moved.bytes), f"{moved.cached} of 256, {gib(moved.cached_bytes)}", gib(found.total)]
            row.append(str(found.setup.nodes - 1))
            lines.append(f"| {' | '.join(row)} |")
    head = ["card", "context", "`--kv auto`", "layers with experts in main memory"]
    head += ["which takes", "cached of each", "on the card", "budget"]
    return "\n".join([f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *lines]) + "\n"


def long_table() -> str:
    """What `auto` takes for the 27B pair on 24 GB with ASKED positions, alone and beside a desktop."""
    made = estimator(24 * GIB, "Q8_0", SIZE_27B)
    lines = ["| on the card besides | `--kv auto` | takes | trees | longest context so |", "|---|---|---|---|---|"]
    for what, held in (("nothing", 0), (f"{gib(DESKTOP)} of a desktop", DESKTOP)):
        room = made.available - held
        setup = requested_setup(made, ASKED, AUTO, room)
        most = longest_context(made, setup, room)
        lines.append(f"| {what} | {setup.kv} | {gib(total(made, setup))} | budget {setup.nodes - 1} | {most:,} |")
    return "\n".join(lines) + "\n"


def remedies_table() -> str:
    """What helps the 27B pair to a long context."""
    lines = [f"| card | {ASKED:,} positions as f16 | what helps |", "|---|---|---|"]
    for memory in CARDS:
        found = planned(memory, SIZE_27B, ASKED)
        helps = "; ".join(f"`{fits.options(one, found.setup)}` ({gib(one.total)})" for one in found.remedies)
        nothing = "nothing is needed" if found.fits else fits.smaller_words(found) or "a smaller model, or the CPU"
        lines.append(f"| {memory} GB | {gib(found.total)} | {helps or nothing} |")
    return "\n".join(lines) + "\n"


def cards_list() -> str:
    """The card that each size was computed for."""
    return "\n".join(f"- {size} GB: {card_of(size * GIB).name.partition(' like ')[2]}" for size in CARDS) + "\n"


def parts() -> dict[str, str]:
    """What docs/fits.md must hold between its marks."""
    return {
        "fits": fits_table(), "small": small_table(), "experts": experts_table(), "long": long_table(),
        "remedies": remedies_table(), "cards": cards_list(),
    }  # fmt: skip
