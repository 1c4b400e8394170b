"""The self-test of `doctor`: it passes where kernels are right, and names the part that is wrong."""

from __future__ import annotations

from typing import Any

import pytest

from dflash_core.backends.cuda import selftest
from support import engines
from support.emulated_device import EmulatedDevice
from support.grids import full
from support.shallow import shallow, shallow_draft

TARGET = "tiny-Q4_K_M.gguf"

pytestmark = pytest.mark.emulator


@pytest.fixture
def device(request: pytest.FixtureRequest) -> Any:
    if reason := engines.missing("emulated"):
        pytest.skip(reason)
    return EmulatedDevice()


def test_all_parts_agree(device: Any) -> None:
    outcomes = list(selftest.run(device, shallow(TARGET), shallow_draft()))
    assert [outcome.problem for outcome in outcomes] == [""] * len(outcomes)
    assert len(outcomes) == 8


class Broken(EmulatedDevice):
    """A device on which one kernel does nothing."""

    def __init__(self, kernel: str) -> None:
        super().__init__()
        self.kernel = kernel

    def bind(self, launches: Any, progress: Any = None) -> Any:
        return super().bind([launch for launch in launches if launch.name != self.kernel], progress)


@pytest.mark.parametrize(
    ("kernel", "part"),
    [
        ("tree_build", "tree"),
        ("accept", "accept"),
        full("kv_commit", "accept"),
        ("sample", "sampling"),
        ("gdn_out", "target, a prompt"),
        full("attn_combine", "target, a prompt"),
        full("swiglu", "target, a prompt"),
        ("keep_features", "drafter"),
        full("draft_combine", "drafter"),
        ("swiglu_matmul", "steps as one graph"),
        full("gdn_alone", "steps as one graph"),
        full("attn_alone", "steps as one graph"),
    ],
)
def test_a_kernel_that_does_nothing_is_found(kernel: str, part: str) -> None:
    if reason := engines.missing("emulated"):
        pytest.skip(reason)
    problems = {}
    for outcome in selftest.run(Broken(kernel), shallow(TARGET), shallow_draft()):
        problems[outcome.name] = outcome.problem
        if outcome.name == part:
            break
    assert [name for name, problem in problems.items() if problem] == [part]
    assert "\n" not in problems[part]
