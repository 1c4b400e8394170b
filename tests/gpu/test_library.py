"""Products through cuBLAS on a card, against float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dflash_core.backends.cuda.device import CudaDevice
from support import engines


@pytest.fixture
def device(rng: np.random.Generator) -> CudaDevice:
    reason = engines.missing("cuda")
    if reason is not None:
        pytest.skip(reason)
    return CudaDevice()


def random_halves(rng: np.random.Generator, rows: int, columns: int, apart: int) -> torch.Tensor:
    """Rows that lie `apart` elements from each other."""
    return torch.from_numpy(rng.standard_normal((rows, apart)).astype(np.float16)).cuda()[:, :columns]


@pytest.mark.parametrize("kind", [torch.float32, torch.float16], ids=["f32", "f16"])
@pytest.mark.parametrize(("scale", "add"), [(1.0, False), (1.0, True), (0.0625, False), (0.0625, True)])
def test_products(device: CudaDevice, rng: np.random.Generator, kind: torch.dtype, scale: float, add: bool) -> None:
    for n, rows, columns in ((1, 16, 256), (3, 96, 512), (70, 512, 1024), (256, 40, 768)):
        x, weights = random_halves(rng, n, columns, columns + 64), random_halves(rng, rows, columns, columns)
        whole = torch.from_numpy(rng.standard_normal((n, rows + 24)).astype(np.float32)).cuda().to(kind)
        before = whole.cpu().double()
        with device.stream():
            device.multiply(x, weights, whole[:, 8 : 8 + rows], scale=scale, add=add)
        device.synchronize()
        found, expected = whole.cpu().double(), before.clone()
        product = scale * (x.cpu().double() @ weights.cpu().double().T)
        expected[:, 8 : 8 + rows] = product + (before[:, 8 : 8 + rows] if add else 0)
        bound = 2e-3 if kind == torch.float16 else 1e-5
        assert (found - expected).abs().max() <= bound * (1 + product.abs().max())
        assert torch.equal(found[:, :8], before[:, :8])
        assert torch.equal(found[:, 8 + rows :], before[:, 8 + rows :])


def test_products_can_be_recorded(device: CudaDevice, rng: np.random.Generator) -> None:
    """A graph of products gives the same bits as direct calls."""
    x, weights = random_halves(rng, 33, 512, 512), random_halves(rng, 160, 512, 512)
    one, other = (torch.zeros(33, 160, device="cuda") for _ in range(2))
    with device.stream():
        device.multiply(x, weights, one)
        graph = device.record("a product", lambda: device.multiply(x, weights, other))
        graph()
    device.synchronize()
    assert one.abs().sum() > 0
    assert torch.equal(one, other)
