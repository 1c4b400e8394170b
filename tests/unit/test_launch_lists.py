"""What the CUDA backend launches is as recorded: kernels, defines, grids and arguments of every graph and call.

A list that differs is no mistake in itself; launching something else without meaning to is. To see how two revisions
differ, print the list with both: `PYTHONPATH=tests python -m support.launch_lists "demo/step draft 24"`. After a change
that is meant: `PYTHONPATH=tests python tests/unit/test_launch_lists.py` records the lists.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from dflash_core.backends.cuda.layers.norm import Added, _options
from dflash_core.errors import UnsupportedError
from support.grids import full
from support.launch_lists import CASES, Case, Recorded, digest

RECORD = Path(__file__).with_name("launch_lists.json")


# What a small model's launches show too, at the sizes of the 27B.
LARGE = ("27b-half", "27b-alone", "27b-sm_89", "27b-mtp")


@pytest.mark.parametrize("case", [full(case, id=case.name) if case.name in LARGE else case for case in CASES],
                         ids=lambda case: case.name)  # fmt: skip
def test_launches_are_as_recorded(case: Case) -> None:
    found = {name: digest(lines) for name, lines in Recorded(case).lists()}
    expected = json.loads(RECORD.read_text())[case.name]
    assert found.keys() == expected.keys()
    differ = [
        f"{case.name}/{name}: {found[name]}, recorded {expected[name]}"
        for name in found
        if found[name] != expected[name]
    ]
    assert not differ, "\n".join(differ)


def test_a_bias_of_a_second_branch_is_refused() -> None:
    """No published model has one, and the kernel would leave it out."""
    other = Added(1, torch.zeros(4), bias=torch.zeros(4))
    with pytest.raises(UnsupportedError, match="a layer's second branch has a bias"):
        _options(Added(1, torch.zeros(4), other=other))


def record() -> None:
    """Write the digests of all lists."""
    lists = {case.name: {name: digest(lines) for name, lines in Recorded(case).lists()} for case in CASES}
    RECORD.write_text(json.dumps(lists, indent=1) + "\n")


if __name__ == "__main__":
    record()
