"""The self-test of `doctor`: it passes where kernels are right, and says what is wrong where one is not."""

from __future__ import annotations

from typing import Any

import pytest

from dflash_core.backends.cuda import selftest
from dflash_core.errors import KernelError
from support import engines
from support.emulated_device import EmulatedDevice
from support.grids import full
from support.shallow import shallow, shallow_draft

TARGET = "tiny-Q4_K_M.gguf"

pytestmark = pytest.mark.emulator


class Broken(EmulatedDevice):
    """A device on which one kernel does nothing."""

    def __init__(self, kernel: str) -> None:
        super().__init__()
        self.kernel = kernel

    def bind(self, launches: Any, progress: Any = None) -> Any:
        return super().bind([launch for launch in launches if launch.name != self.kernel], progress)


def test_a_good_card_agrees() -> None:
    if reason := engines.missing("emulated"):
        pytest.skip(reason)
    selftest.run(EmulatedDevice(), shallow(TARGET), shallow_draft())


@pytest.mark.parametrize(
    ("kernel", "part"),
    [
        ("gdn_out", "a prompt"),
        full("attn_combine", "a prompt"),
        full("swiglu", "a prompt"),
        full("kv_commit", "a pass after a commit"),
        ("keep_features", "a draft"),
        full("draft_combine", "a draft"),
        ("swiglu_matmul", "an answer with trees"),
        full("gdn_single_row", "an answer with trees"),
        full("attn_single_row", "an answer with trees"),
    ],
)
def test_a_kernel_that_does_nothing_is_found(kernel: str, part: str) -> None:
    if reason := engines.missing("emulated"):
        pytest.skip(reason)
    with pytest.raises(KernelError, match=f"^{part}: .*$"):
        selftest.run(Broken(kernel), shallow(TARGET), shallow_draft())
