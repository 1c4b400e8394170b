"""The table of parameters: every refusal names the range, every value survives its own text."""

from __future__ import annotations

import contextlib
import json
from dataclasses import FrozenInstanceError

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_core.drafting import upgraded
from dflash_core.errors import KnobError
from dflash_core.knobs import RANDOM_SEED, SPEC, SPECS, Knobs, parse_settings


def test_defaults_as_designed() -> None:
    knobs = Knobs()
    assert knobs.mode == "auto"
    assert (knobs.budget, knobs.p_min, knobs.tree_temperature, knobs.tree_width) == (22, 0, 1, 8)
    assert (knobs.drafting, knobs.cap) == ("auto", None)
    assert not knobs.chain_seed
    assert knobs.from_text
    assert knobs.learn
    assert not knobs.thinking
    with pytest.raises(FrozenInstanceError):
        knobs.p_min = 3  # type: ignore[misc]


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_every_value_survives_its_own_text(spec: object) -> None:
    assert spec in SPECS
    name = spec.name  # type: ignore[attr-defined]
    ends = {SPEC[name].default}
    if SPEC[name].kind in ("int", "float"):
        ends |= {SPEC[name].minimum, SPEC[name].maximum}
    for value in ends | set(SPEC[name].choices):
        assert parse_settings({name: str(value)})[name] == value
        assert getattr(Knobs().replace(**{name: value}), name) == value


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"budget": "0"}, "budget=0: expected 1 to 256"),
        ({"budget": "257"}, "expected 1 to 256"),
        ({"budget": "7.5"}, "expected a whole number from 1 to 256"),
        ({"budget": "many"}, "expected a whole number from 1 to 256"),
        ({"p_min": "1.01"}, "expected 0 to 1"),
        ({"p_min": "nan"}, "expected 0 to 1"),
        ({"mode": "fast"}, "expected auto, tree, chain, plain"),
        ({"drafting": "tree 257"}, "expected auto, auto up to N, tree N, chain N, plain; N from 1 to 256"),
        ({"drafting": "tree 0"}, "N from 1 to 256"),
        ({"drafting": "forest"}, "drafting=forest: expected auto, auto up to N"),
        ({"thinking": "maybe"}, "expected on or off"),
        ({"seed": "9" * 400}, "expected random or 0 to 9,223,372,036,854,775,807"),
        ({"buget": "3"}, "did you mean budget?"),
        ({"zzz": "3"}, "known: drafting, p_min"),
    ],
)
def test_refusals(settings: dict[str, str], message: str) -> None:
    with pytest.raises(KnobError) as refusal:
        parse_settings(settings)
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("value", [None, [1], "22", 1.5, True, float("inf")])
def test_values_of_another_kind(value: object) -> None:
    with pytest.raises(KnobError):
        Knobs(drafting=value)  # type: ignore[arg-type]


def test_a_seed_is_random_by_name_and_fixed_for_measurements() -> None:
    assert parse_settings({"seed": "random"}) == {"seed": RANDOM_SEED} == {"seed": Knobs().seed}
    assert Knobs().replace(seed="random") == Knobs()
    assert SPEC["seed"].show(Knobs().seed) == "random"
    assert (Knobs().fixed().seed, Knobs(seed=3).fixed().seed) == (0, 3)
    with pytest.raises(KnobError, match="seed=-2: expected random or 0 to"):
        Knobs(seed=-2)


def test_large_seeds_are_exact() -> None:
    assert Knobs(seed=2**63 - 1).seed == 2**63 - 1
    with pytest.raises(KnobError):
        Knobs(seed=2**63)


@given(st.text(max_size=12), st.text(max_size=12))
def test_any_text_is_a_value_or_a_refusal(name: str, text: str) -> None:
    for key in (name, "drafting", "budget", "p_min", "mode", "thinking"):
        with contextlib.suppress(KnobError):
            Knobs().replace(**parse_settings({key: text}))


@pytest.mark.parametrize("state", ["auto", "auto up to 40", "auto up to 22", "tree 22", "chain 7", "plain"])
def test_a_whole_state_is_one_value(state: str) -> None:
    """Regression: mode, policy and budget were three parameters for one decision."""
    for before in (Knobs(), Knobs(drafting="tree 9"), Knobs(drafting="plain")):
        for name in ("drafting", "mode"):
            assert before.replace(**parse_settings({name: state})).drafting == state
    assert parse_settings({"drafting": state.replace(" 4", "=4")})["drafting"] == state


@pytest.mark.parametrize(
    ("before", "settings", "found"),
    [
        ("auto", {"mode": "ar"}, "plain"),
        ("auto", {"mode": "tree", "budget": "30"}, "tree 30"),
        ("tree 9", {"mode": "chain"}, "chain 9"),
        ("tree 9", {"drafting": "chain"}, "chain 9"),
        ("auto", {"budget": "30"}, "tree 30"),
        ("plain", {"budget": "30"}, "tree 30"),
        ("chain 7", {"budget": "5"}, "chain 5"),
        ("auto up to 40", {"budget": "30"}, "auto up to 30"),
        ("auto", {"policy": "auto", "budget": "30"}, "auto up to 30"),
        ("auto", {"policy": "auto", "budget": "22"}, "auto up to 22"),
        ("auto", {"mode": "auto", "policy": "auto", "budget": "22"}, "auto"),
        ("auto", {"mode": "auto", "policy": "fixed", "budget": "8"}, "tree 8"),
        ("auto", {"policy": "capped"}, "auto up to 22"),
        ("auto up to 40", {"policy": "auto"}, "auto"),
        ("tree 9", {"policy": "auto"}, "auto"),
        ("tree 9", {"mode": "auto"}, "auto"),
        ("tree 9", {"mode": "ar", "policy": "fixed", "budget": "8"}, "plain"),
        ("auto", {"p_min": "0.1"}, "tree 22"),
        ("auto up to 8", {"chain_seed": "on"}, "tree 8"),
        ("auto", {"p_min": "0.1", "policy": "auto"}, "auto"),
        ("auto", {"p_min": "0.1", "drafting": "auto"}, "auto"),
        ("plain", {"p_min": "0.1"}, "plain"),
    ],
)
def test_former_parameters_are_read(before: str, settings: dict[str, str], found: str) -> None:
    """Combinations of earlier versions give the state that they meant, and none of the names is stored."""
    knobs = Knobs(drafting=before).replace(**parse_settings(settings))
    assert knobs.drafting == found
    assert not {"mode", "policy", "budget"} & knobs.to_dict().keys()


def test_files_of_earlier_versions_are_read() -> None:
    for former, found in (
        (b'{"mode":"auto","policy":"auto","budget":22,"p_min":0.0}', "auto"),
        (b'{"mode":"auto","policy":"auto","budget":40,"p_min":0.0}', "auto up to 40"),
        (b'{"mode":"auto","policy":"capped","budget":22}', "auto up to 22"),
        (b'{"mode":"auto","policy":"fixed","budget":6}', "tree 6"),
        (b'{"mode": "ar",\n "policy": "auto",\n "budget": 22}', "plain"),
        (b'{"mode":"chain","budget":7,"p_min":0.0}', "chain 7"),
    ):
        assert json.loads(upgraded(former))["drafting"] == found
    assert upgraded(b'{"mode":"ar","text":"\\"mode\\":\\"ar\\""}') == b'{"mode":"plain","text":"\\"mode\\":\\"ar\\""}'
    for damaged in (b'{"mode":"fast","policy":"auto","budget":22}', b'{"mode":"tree","policy":"auto","budget":999}'):
        with pytest.raises(KnobError, match="drafting="):
            Knobs(**json.loads(upgraded(damaged)))
