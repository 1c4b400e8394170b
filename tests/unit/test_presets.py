"""Presets: kept and read back, wrong files named by line and field, defaults where a field is wrong."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_core.arch.recommended import NOTHING
from dflash_core.drafters import draft, mtp, ngram
from dflash_core.drafters.capabilities import Capabilities
from dflash_core.errors import KnobError
from dflash_core.knobs import SPECS, Knobs, Spec, Value
from dflash_core.limits import Limits
from dflash_tui.application.settings.presets import BUILT_IN, Preset, PresetError, Presets, changed


def _values(spec: Spec) -> st.SearchStrategy[Value]:
    if spec.kind == "switch":
        return st.booleans()
    if spec.kind == "drafting":
        return st.sampled_from(("auto", "auto up to 22", "tree 1", "chain 7", "plain"))
    if spec.kind == "choice":
        return st.sampled_from(spec.choices)
    if spec.kind == "int":
        return st.integers(int(spec.minimum), int(spec.maximum))
    return st.floats(spec.minimum, spec.maximum)


def kept(name: str, knobs: Knobs) -> Preset:
    return Preset(name, changes=changed(knobs, NOTHING))


@given(changes=st.fixed_dictionaries({}, optional={spec.name: _values(spec) for spec in SPECS}))
def test_any_setting_survives_its_file(tmp_path_factory: pytest.TempPathFactory, changes: dict[str, Value]) -> None:
    folder = tmp_path_factory.mktemp("presets")
    Presets(folder).save(Preset("mine", 'a "quoted" line', changes))
    presets = Presets(folder)
    assert presets.problems == []
    preset = presets["mine"]
    assert preset.knobs == Knobs().replace(**changes)
    assert preset.about == 'a "quoted" line'


def test_saved_presets_hold_what_differs_from_the_defaults(tmp_path: Path) -> None:
    presets = Presets(tmp_path / "presets")
    path = presets.save(kept("mine", Knobs().replace(budget=40, p_min=0.15)))
    assert tomllib.loads(path.read_text()) == {"knobs": {"drafting": "tree 40", "p_min": 0.15}}
    again = Presets(tmp_path / "presets")
    assert again["mine"].knobs == Knobs().replace(budget=40, p_min=0.15)
    assert again.like(Knobs().replace(budget=40, p_min=0.15), Limits(None, 0)) == "mine"
    assert again.like(Knobs(drafting="auto up to 41"), Limits(None, 0)) == ""
    assert again.names_for("") == (*(preset.name for preset in BUILT_IN), "mine")


def test_a_file_wins_over_a_preset_of_the_program(tmp_path: Path) -> None:
    (tmp_path / "wide.toml").write_text("[knobs]\nbudget = 100\n")
    presets = Presets(tmp_path)
    assert presets["wide"].knobs.budget == 100
    assert presets.problems == []


def test_the_presets_of_the_program_are_legal_and_differ() -> None:
    assert len({tuple(preset.knobs.to_dict().items()) for preset in BUILT_IN}) == len(BUILT_IN)
    assert BUILT_IN[0].knobs == Knobs()


DFLASH, HEAD = Capabilities("dflash", 16), Capabilities("mtp", 4, knobs=mtp.FOLLOWED)
KINDS = (DFLASH, HEAD, ngram.CAPABILITIES, draft.together((DFLASH, ngram.CAPABILITIES)))


@pytest.mark.parametrize("drafter", KINDS, ids=[kind.kind for kind in KINDS])
def test_every_drafter_can_follow_the_presets_of_the_program(drafter: Capabilities) -> None:
    """A preset is a complete set: a parameter without effect on the drafter is accepted in it, but not if set alone."""
    limits = Limits(drafter, 32_768)
    idle = Preset("idle", changes={"draft_window": 64, "mtp_depth": 5})
    for preset in (*BUILT_IN, idle):
        limits.check_possible(preset.knobs, preset.knobs.to_dict())
    with pytest.raises(KnobError, match=f"has no effect on {re.escape(drafter.words)}"):
        limits.check(idle.knobs, idle.changes)


def test_in_turn(tmp_path: Path) -> None:
    presets = Presets(tmp_path)
    name, seen = "", []
    for _ in presets:
        name = presets.after(name).name
        seen.append(name)
    assert tuple(seen) == presets.names_for("")
    assert presets.after(seen[-1]).name == seen[0]


@pytest.mark.parametrize(
    ("text", "says", "left"),
    [
        (
            '[knobs]\nmode = "tree"\nbudget = 999\n',
            "line 3: knobs.budget: budget=999: expected 1 to 256; its default, 22, is used",
            Knobs(drafting="tree 22"),
        ),
        (
            "[knobs]\np_min = true\n",
            "line 2: knobs.p_min: p_min=True: expected 0 to 1; its default, 0.00, is used",
            Knobs(),
        ),
        ("[knobs]\nbudgt = 5\n", "line 2: knobs.budgt: unknown parameter 'budgt'; did you mean budget?", Knobs()),
        ("# x\nabout = 5\n[knobs]\nbudget = 7\n", "line 2: about: found 5, expected text", Knobs().replace(budget=7)),
        ("knobs = 5\n", "line 1: knobs: found 5, expected a table", Knobs()),
        (
            "theme = 'x'\n[knobs]\nbudget = 7\n",
            "line 1: theme: unknown; expected about, model, target",
            Knobs().replace(budget=7),
        ),
    ],
)
def test_a_wrong_field_is_named_and_its_default_used(tmp_path: Path, text: str, says: str, left: Knobs) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    presets = Presets(tmp_path)
    [problem] = presets.problems
    assert problem.startswith(f"{path}, ")
    assert says in problem
    assert presets["mine"].knobs == left


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"[knobs\n", "line 1"),
        (b"a = 1\n\xff", "byte 7 is not UTF-8; save the file as UTF-8"),
        (b"a = 1\na = 2\n", "line 2"),
    ],
)
def test_a_file_that_is_no_toml_is_left_out_by_line(tmp_path: Path, data: bytes, says: str) -> None:
    (tmp_path / "mine.toml").write_bytes(data)
    (tmp_path / "other.toml").write_text("[knobs]\nbudget = 3\n")
    presets = Presets(tmp_path)
    [problem] = presets.problems
    assert says in problem
    assert problem.endswith("; left out")
    assert "mine" not in presets.names_for("")
    assert presets["other"].knobs.budget == 3


def test_refusals(tmp_path: Path) -> None:
    presets = Presets(tmp_path / "none")
    with pytest.raises(PresetError, match="no preset 'fast'; there are default, plain"):
        presets["fast"]
    for name in ("", "../x", "A b", "x" * 49, ".hidden"):
        with pytest.raises(PresetError, match="expected a name of a to z"):
            presets.save(Preset(name))
    (tmp_path / "file").write_text("")
    with pytest.raises(PresetError, match=r"cannot be written: .*; the preset is not saved"):
        Presets(tmp_path / "file").save(Preset("mine"))


def test_limits_refuse_what_the_pair_can_never_do() -> None:
    plain, pair = Limits(None, 2048), Limits(Capabilities("dflash", 16), 2048)
    with pytest.raises(KnobError, match="drafting=tree 22: no drafter is loaded; expected plain or auto"):
        plain.check(Knobs(drafting="tree 22"), ["mode"])
    with pytest.raises(KnobError, match="the context holds 2,048 with the prompt; expected 1 to 2,047"):
        pair.check(Knobs(max_tokens=2048), ["max_tokens"])
    pair.check(Knobs(drafting="tree 22", max_tokens=2047), ["mode", "max_tokens"])
    plain.check(Knobs(drafting="plain"), ["mode"])
    with pytest.raises(KnobError, match="drafting=tree 7: no drafter is loaded"):
        plain.check(Knobs(drafting="tree 7"), ["budget"])


def test_a_most_that_auto_may_take_is_kept(tmp_path: Path) -> None:
    """Also beside a p_min, which alone means a tree."""
    for knobs in (Knobs(drafting="auto up to 40"), Knobs(drafting="auto up to 40", p_min=0.1), Knobs(p_min=0.1)):
        Presets(tmp_path / "presets").save(kept("capped", knobs))
        assert Presets(tmp_path / "presets")["capped"].knobs == knobs
