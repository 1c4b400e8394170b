"""The table of drafters: its rows name code that exists, and its kinds are those that knobs and configs know."""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path

import pytest

from dflash_core.drafters import registry
from dflash_core.drafters.capabilities import DRAFT_KNOBS, Capabilities
from dflash_core.drafters.kinds import CARD, CPU, KINDS, Kind
from dflash_core.errors import Code, UnsupportedError
from dflash_core.knobs import SPEC, Knobs


@pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
def test_a_row_names_what_exists(kind: Kind) -> None:
    for name in filter(None, (kind.opener, *kind.loaders.values(), kind.recognises, kind.inside)):
        module, _, function = name.partition(":")
        assert callable(getattr(importlib.import_module(module), function)), name
    assert kind.depth_knob in ("", *DRAFT_KNOBS)
    assert set(kind.loaders) <= {CPU, CARD}
    assert KINDS[kind.name] is kind


def test_the_knob_chooses_among_them() -> None:
    assert set(SPEC["draft"].choices) == {"auto", *KINDS}


def test_a_depth_knob_limits_what_is_drafted() -> None:
    assert Capabilities("mtp", 9).drafted(Knobs(mtp_depth=3)) == 3
    assert Capabilities("dflash", 9).drafted(Knobs(mtp_depth=3)) == 8


def test_a_file_that_no_row_recognises_is_left_to_block_drafters(tmp_path: Path) -> None:
    """Their opener says what it expects of it."""
    assert registry.kind_of(tmp_path) is KINDS["dflash"]
    assert registry.kind_of("ngram") is KINDS["ngram"]


def test_a_kind_without_a_loader_for_a_machine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KINDS, "mtp", replace(KINDS["mtp"], loaders={CPU: KINDS["mtp"].loaders[CPU]}))
    with pytest.raises(UnsupportedError, match=r"^the mtp drafter does not run on cuda, expected cpu;") as refused:
        registry.loader("mtp", CARD)
    assert refused.value.code is Code.NOT_ON_THIS_DEVICE


def test_the_former_name_of_the_ngram_drafter_is_read() -> None:
    assert registry.parts("mtp+text") == ("mtp", "ngram")
    assert registry.kind_of("ngram") is KINDS["ngram"]
    assert Knobs().replace(draft="text").draft == "ngram"
