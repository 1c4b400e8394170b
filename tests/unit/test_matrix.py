"""Products of few rows, which are padded, are those of each row alone."""

from __future__ import annotations

import pytest
import torch

from dflash_core.models.matrix import DenseMatrix


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5])
def test_rows_of_a_product_are_those_of_single_rows(rows: int) -> None:
    generator = torch.Generator().manual_seed(rows)
    weight = torch.randn(7, 5, generator=generator, dtype=torch.float64)
    x = torch.randn(rows, 5, generator=generator, dtype=torch.float64)
    found = DenseMatrix(weight)(x)
    assert found.shape == (rows, 7)
    torch.testing.assert_close(found, torch.stack([weight @ row for row in x]), rtol=1e-12, atol=1e-12)
