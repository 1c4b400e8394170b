"""Copies between tensors as rows of bytes with a pitch: the result equals torch's copy."""

from __future__ import annotations

import ctypes

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dflash_core.backends.cuda.rectangles import rectangle


def copied(to: Tensor, source: Tensor, some: slice = slice(None)) -> None:
    """What the card's copying engine does."""
    found = rectangle(to, source).part(some)
    for row in range(found.steps * found.rows):
        ctypes.memmove(found.to + row * found.to_pitch, found.source + row * found.from_pitch, found.width)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_range_of_layers_and_positions(data: st.DataObject) -> None:
    layers, heads, slots, row = (data.draw(st.integers(1, most)) for most in (5, 4, 9, 6))
    first, begin = data.draw(st.integers(0, layers - 1)), data.draw(st.integers(0, slots - 1))
    last, end = data.draw(st.integers(first + 1, layers)), data.draw(st.integers(begin + 1, slots))
    kind = data.draw(st.sampled_from([torch.float16, torch.float32, torch.uint8]))
    cache = torch.zeros(layers, heads, slots, row, dtype=kind)
    page = (torch.arange(layers * heads * (end - begin) * row) % 100 + 1).to(kind).view(layers, heads, -1, row)
    expected = cache.clone()
    expected[first:last, :, begin:end] = page[first:last]
    copied(cache[:, :, begin:end], page, slice(first, last))
    assert torch.equal(cache, expected)


def test_slices_side_by_side_are_one_row() -> None:
    states, held = torch.zeros(5, 3, 4), torch.arange(60.0).view(5, 3, 4)
    found = rectangle(states, held).part(slice(1, 3))
    assert (found.steps, found.rows, found.width) == (1, 1, 2 * 3 * 4 * 4)
    copied(states, held, slice(1, 3))
    assert torch.equal(states[1:3], held[1:3])
    assert not states[[0, 3, 4]].any()


def test_a_run_of_a_ring() -> None:
    ring, held = torch.zeros(3, 16, 4), torch.arange(120.0).view(3, 10, 4)
    copied(ring[:, 12:16], held[:, 2:6])
    assert torch.equal(ring[:, 12:16], held[:, 2:6])
    assert not ring[:, :12].any()


def test_what_takes_more_than_one_copy_is_refused() -> None:
    with pytest.raises(ValueError, match="strides"):
        rectangle(torch.zeros(4, 6, 8)[:, :2, :4], torch.zeros(4, 2, 4))
    with pytest.raises(ValueError, match="float32"):
        rectangle(torch.zeros(4), torch.zeros(5))
