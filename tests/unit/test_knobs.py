"""The table of parameters: every refusal names the range, every value survives its own text."""

from __future__ import annotations

import contextlib
from dataclasses import FrozenInstanceError

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_core.errors import KnobError
from dflash_core.knobs import RANDOM_SEED, SPEC, SPECS, Knobs, parse_settings


def test_defaults_as_designed() -> None:
    knobs = Knobs()
    assert knobs.mode == "auto"
    assert (knobs.budget, knobs.p_min, knobs.tree_temperature, knobs.tree_width) == (22, 0, 1, 8)
    assert knobs.policy == "auto"
    assert not knobs.chain_seed
    assert knobs.from_text
    assert knobs.learn
    assert not knobs.thinking
    with pytest.raises(FrozenInstanceError):
        knobs.budget = 3  # type: ignore[misc]


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
        ({"mode": "fast"}, "expected plain, chain, tree, auto"),
        ({"thinking": "maybe"}, "expected on or off"),
        ({"seed": "9" * 400}, "expected random or 0 to 9,223,372,036,854,775,807"),
        ({"buget": "3"}, "did you mean budget?"),
        ({"zzz": "3"}, "known: mode, policy, budget"),
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
        Knobs(budget=value)  # type: ignore[arg-type]


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
    for key in (name, "budget", "p_min", "mode", "thinking"):
        with contextlib.suppress(KnobError):
            Knobs().replace(**parse_settings({key: text}))


def test_plain_decoding_has_one_word_for_users_and_is_kept_as_before() -> None:
    mode = SPEC["mode"]
    assert mode.allowed == "plain, chain, tree, auto"
    assert [mode.show(one) for one in mode.choices] == ["plain", "chain", "tree", "auto"]
    assert mode.parse("plain") == mode.parse("ar") == "ar"
    assert Knobs().replace(mode="plain") == Knobs(mode="ar")
    with pytest.raises(KnobError, match="mode=fast: expected plain, chain, tree, auto"):
        mode.parse("fast")


@pytest.mark.parametrize("state", ["auto", "auto up to 40", "auto up to 22", "tree 22", "chain 7", "plain"])
def test_a_whole_state_is_one_value(state: str) -> None:
    """Regression: mode, policy and budget were three parameters for one decision."""
    for before in (Knobs(), Knobs(mode="tree", budget=9), Knobs().replace(budget=40)):
        found = before.replace(**parse_settings({"mode": state}))
        assert found.state == state
    assert Knobs().replace(**parse_settings({"mode": "tree", "budget": "30"})).state == "tree 30"
    assert Knobs().replace(**parse_settings({"budget": "30"})).state == "tree 30"
    assert Knobs().replace(**parse_settings({"policy": "auto", "budget": "30"})).state == "auto up to 30"
