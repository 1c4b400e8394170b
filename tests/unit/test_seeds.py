"""Two runs of `make test` draw the same numbers; a difference as small as one wrong row still shows."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import numpy as np
import pytest

from dflash_core.events import StepDrafts
from support import seeds
from support.device_pairs import TOLERANCE, close, same_candidates


def test_a_test_draws_its_own_numbers_each_time(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seeds, "fresh", lambda config: False)
    own = seeds.seed_of(request.node)
    assert own == seeds.seed_of(request.node) != seeds.seed_of(request.node.parent)
    monkeypatch.setattr(seeds, "fresh", lambda config: True)
    assert own != seeds.seed_of(request.node)


@pytest.mark.parametrize("fault", ["one row", "all rows"])
def test_close_sees_a_wrong_row_and_a_small_error_everywhere(fault: str) -> None:
    expected = np.random.default_rng(3).standard_normal((30, 700)).astype(np.float32)
    rounding = np.random.default_rng(4).standard_normal(expected.shape).astype(np.float32) * 1.2e-3
    rounding[8] *= 5  # a row that amplifies rounding errors
    close(expected + rounding, expected)
    found = expected + rounding
    if fault == "one row":
        found[12] += 3 * TOLERANCE * np.sign(expected[13])
    else:
        found += TOLERANCE / 2
    with pytest.raises(AssertionError):
        close(found, expected)


DRAFTS = StepDrafts(((5, 9, 2, 7), (4, 1, 8, 3)), ((-1.0, -2.0, -2.0002, -3.0), (-0.5, -1.5, -3.2, -3.3)))


@pytest.mark.parametrize(
    ("tokens", "sound"),
    [
        ((5, 9, 2, 7), True),
        ((5, 2, 9, 7), True),  # nearly one probability: either may come first
        ((9, 5, 2, 7), False),
        ((5, 9, 2, 11), True),  # the last may be another of its probability
        ((5, 11, 2, 7), False),
        ((4, 1, 8, 3), False),  # those of another depth
    ],
)
def test_candidates_are_the_same_but_for_near_ties(tokens: tuple[int, ...], sound: bool) -> None:
    found = StepDrafts((tokens, DRAFTS.tokens[1]), ((-1.001, -1.9995, -2.0007, -3.001), DRAFTS.log_probs[1]))
    if sound:
        same_candidates(found, DRAFTS)
        found = StepDrafts(found.tokens, tuple(tuple(one * 1.02 for one in row) for row in found.log_probs))
    with pytest.raises(AssertionError):
        same_candidates(found, DRAFTS)


TESTS = Path(__file__).parents[1]
DRAWN = {"default_rng", "Random", "SeedSequence", "PCG64", "MT19937", "Philox"}  # of the clock where no seed is given
TORCHS = {"rand", "randn", "randint", "randperm", "rand_like", "randn_like", "normal", "bernoulli", "multinomial"}
IN_PLACE = {"normal_", "uniform_", "random_", "bernoulli_", "exponential_"}
# Any of them is a word of its own in a source that draws; others need not be parsed.
NAMED = re.compile(rf"\b({'|'.join([*DRAWN, *TORCHS, *IN_PLACE, 'random', 'hash', 'secrets', 'uuid'])})\b")
OWN_SEED = {"support/seeds.py"}


def unseeded(source: str) -> list[str]:
    """What is drawn from a generator whose state no test chose: `line: call`."""
    if not NAMED.search(source):
        return []
    nodes, found = list(ast.walk(ast.parse(source))), list[str]()
    modules = {one.name: one.asname or one.name
               for node in nodes if isinstance(node, ast.Import) for one in node.names}  # fmt: skip
    seeded = any(isinstance(node, ast.Attribute) and node.attr == "manual_seed" and ast.unparse(node.value) == "torch"
                 for node in nodes)  # fmt: skip
    for node in nodes:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names = [one.name for one in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            found += [f"{node.lineno}: {name}" for name in names if name in ("secrets", "uuid")]
        if not isinstance(node, ast.Call):
            continue
        place, _, name = ast.unparse(node.func).rpartition(".")
        named = {keyword.arg for keyword in node.keywords}
        if (
            (name in DRAWN and not node.args and not named)
            or (place == modules.get("random") and name != "Random")
            or (place == "np.random" and name not in DRAWN)
            or (((place == "torch" and name in TORCHS) or name in IN_PLACE) and not seeded and "generator" not in named)
            or (place, name) == ("", "hash")  # of a text: another number in each process
        ):  # fmt: skip
            found.append(f"{node.lineno}: {ast.unparse(node.func)}")
    return found


def test_every_number_that_a_test_draws_has_a_seed() -> None:
    files = {path.relative_to(TESTS).as_posix(): path for path in sorted(TESTS.rglob("*.py"))}
    found = {name: unseeded(path.read_text("utf-8")) for name, path in files.items() if name not in OWN_SEED}
    assert {name: them for name, them in found.items() if them} == {}


@pytest.mark.parametrize(
    "line",
    [
        "rng = np.random.default_rng()", "import random\nx = random.Random()", "import random\nrandom.shuffle(x)",
        "np.random.shuffle(x)", "x = torch.randn(3, 4)", "x.normal_(0, 1)", "import secrets", "from uuid import uuid4",
        "seed = hash(name)",
    ],
)  # fmt: skip
def test_a_draw_without_a_seed_is_seen(line: str) -> None:
    assert len(unseeded(line)) == 1
