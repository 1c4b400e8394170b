"""Plans for small cards: mixes of the published sizes, a smaller file and the file's own MTP head as remedies."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("cuda.bindings")
from tools.bench.variants import mtp_config, mtp_types

from dflash_core.backends.cuda.memory_estimator import CardMemoryEstimator, Footprint, own_head
from dflash_core.backends.cuda.meta import card_of
from dflash_core.bench.shapes import card_estimator, header, headers
from dflash_core.bench.synthetic_models import SIZE_27B, target_types
from dflash_core.config import read_target
from dflash_core.fits import CEILING, ON_HOST, SHORT, Setup, longest_context, min_bytes, plan, requested_setup, total
from dflash_core.fits_notes import shrunk_note
from dflash_core.formats.gguf import open_gguf
from dflash_core.memory import gib
from dflash_tui.application import fits
from dflash_tui.cli.plan import lines
from support.golden import golden
from support.mtp_shapes import mtp_header
from support.published import FILES_27B, PublishedFile
from support.reckoned import estimator

GIB, MIB = 1 << 30, 1 << 20


@pytest.mark.parametrize("file", FILES_27B, ids=lambda file: file.name)
def test_a_mix_has_the_published_size(file: PublishedFile) -> None:
    spec, head = file.model.target(), mtp_config(file.model)
    tensors = [header("target", spec.tensors(), target_types(spec, file.model))]
    tensors += [header("mtp", head.tensors(), mtp_types(head, file.model))] if file.includes_mtp else []
    nbytes = sum(info.n_bytes for one in tensors for info in one.tensors.values())
    assert nbytes == pytest.approx(file.nbytes, rel=0.015)


def test_a_plan_says_how_small_a_file_would_fit() -> None:
    made = estimator(12 * GIB, "Q8_0")
    short = plan(made, Setup(32_768, "q8_0"))
    weights = made.components(short.setup)[0].bytes
    assert short.smaller == weights - (short.total - short.available)
    assert "a smaller quantisation: 8.6 GiB of weights, these are 15.6 GiB" in "\n".join(lines(short))
    # A file of that size on the same card fits.
    _, target, drafter = headers(FILES_27B[0].model, "Q8_0")
    spec = FILES_27B[0].model.target()
    other = card_estimator(spec, target, drafter, card_of(12 * GIB))
    less = other.components(short.setup)[0].bytes
    assert (total(other, short.setup) <= short.available) == (less <= short.smaller)
    # None is offered that no quantisation reaches.
    assert plan(estimator(8 * GIB, "Q8_0"), Setup(32_768, "q8_0")).smaller == 0
    assert plan(estimator(48 * GIB, "Q8_0"), Setup(512)).smaller == 0


def test_mtp_in_place_of_the_drafter_is_a_remedy() -> None:
    spec, target, drafter = headers(SIZE_27B, "Q8_0")
    card, head = card_of(18 * GIB), mtp_header(SIZE_27B)
    made = CardMemoryEstimator(
        Footprint(target, spec, card.layout), drafter, machine=card.name, available=card.free,
        mtp=(head.files[0], head.config),
    )  # fmt: skip
    setup = Setup(8192)
    short = plan(made, setup)
    assert not short.fits
    found = [one for one in short.remedies if one.setup.mtp]
    assert found, [one.setup for one in short.remedies]
    assert (fits.remedy_words(found[0], short.setup), fits.options(found[0], short.setup)) == (
        "MTP instead of the drafter",
        "--draft mtp",
    )
    # It takes what the pair with the head as its drafter takes.
    alone = card_estimator(spec, target, head, card)
    assert total(made, replace(setup, mtp=True)) == total(alone, setup)
    assert all(not one.mtp or not one.draft_type for one in made.choices(setup))
    assert all(one.embedding == ON_HOST or one.mtp or one.draft_type or one.kv != setup.kv or not one.drafted
               for one in made.choices(setup))  # fmt: skip


def test_the_head_of_a_file_is_found_beside_another_drafter() -> None:
    file, spec = read_target(open_gguf(golden("targets/q35moe-mtp-Q8_0.gguf")))
    other: Any = headers(SIZE_27B, "Q8_0")[2]
    found = own_head(file, spec, other)
    assert found is not None
    assert f"blk.{spec.block_count}.nextn.eh_proj.weight" in file.tensors
    assert found[0].tensors
    head: Any = mtp_header(SIZE_27B)
    assert own_head(file, spec, head) is None
    assert own_head(file, spec, None) is None
    plain, its_spec = read_target(open_gguf(golden("tiny-F16.gguf")))
    assert own_head(plain, its_spec, other) is None


def test_a_load_that_had_to_shrink_says_by_how_much() -> None:
    made = estimator(19 * GIB, "Q8_0")
    setup = requested_setup(made, None, "f16")
    assert setup.context < CEILING
    found = shrunk_note(made, setup, made.available)
    more = total(made, replace(setup, context=CEILING)) + made.spare(made.available) - made.available
    assert more > 0
    assert f"the context is {setup.context:,} positions, not 32,768: {gib(more)} more are needed for that" in found
    # With so much more memory the context is the usual one.
    assert requested_setup(made, None, "f16", made.available + more).context == CEILING
    assert shrunk_note(made, replace(setup, context=CEILING), made.available) == ""


def test_a_context_takes_spare_memory_before_it_is_too_short_to_use() -> None:
    """From a card on which nothing fits to one that has enough: never fewer positions for more memory, and 512 only
    where no more fit."""
    made, before, short = estimator(24 * GIB, "Q8_0"), 0, 0
    bare = replace(made.base, kv="q8_0")
    first = min_bytes(made, replace(bare, context=512))
    for more in range(-128, 1536, 64):
        available = first + more * MIB
        context = requested_setup(made, None, "q8_0", available).context
        fitting = longest_context(made, bare, available - made.min_spare(available))
        assert context >= min(max(fitting, 512), SHORT)
        assert before <= context <= CEILING
        assert context == 512 or total(made, replace(bare, context=context, rows=256)) <= available
        setup = requested_setup(made, None, "q8_0", available)
        left = available - total(made, setup)
        note = f"only {gib(max(left, 0))} are left free"
        assert (note in shrunk_note(made, setup, available)) == (left < made.spare(available) // 2)
        before = context
        short += 512 < context <= SHORT and left < made.spare(available) // 2
    assert before > SHORT
    assert short > 3
