"""Row-wise kernels and the gated delta net in float64, directly from their definitions: node by node, each with a state
of its own. The tree form that the kernels use does not occur here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Float32s = npt.NDArray[np.float32]

DIM = 128
TAPS = 4
L2_EPS = 1e-6


def sigmoid(x: Floats) -> Floats:
    return 1 / (1 + np.exp(-x))


def silu(x: Floats) -> Floats:
    return x * sigmoid(x)


def rms_norm(x: Floats, weight: npt.ArrayLike, eps: float) -> Floats:
    """x (..., d) over the root of its mean square, times weight (d,)."""
    scale = np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps)
    return x / scale * np.asarray(weight, np.float64)


def planes_sum(planes: Float32s) -> Floats:
    """f32 planes (splits, rows, width) -> (rows, width)."""
    return planes.astype(np.float64).sum(axis=0)


@dataclass(frozen=True)
class DeltaWeights:
    """Weights of one layer: conv (channels, TAPS), tap 0 the oldest; a and dt (value_heads,); norm (DIM,)."""

    key_heads: int
    value_heads: int
    conv: Float32s
    a: Float32s
    dt: Float32s
    norm: Float32s

    @staticmethod
    def random(rng: np.random.Generator, key_heads: int, value_heads: int) -> DeltaWeights:
        channels = (2 * key_heads + value_heads) * DIM

        def normal(*shape: int) -> Float32s:
            return rng.standard_normal(shape).astype(np.float32)

        a = -np.exp(rng.uniform(-4, 1, value_heads)).astype(np.float32)
        return DeltaWeights(
            key_heads, value_heads, normal(channels, TAPS) / 2, a, normal(value_heads) - 2, 1 + normal(DIM) / 4
        )

    @property
    def channels(self) -> int:
        return len(self.conv)


@dataclass(frozen=True)
class DeltaState:
    """The state after a prefix: s (value_heads, DIM, DIM), k by v; conv (TAPS - 1, channels), last inputs, oldest
    first."""

    s: Floats
    conv: Floats

    @staticmethod
    def random(rng: np.random.Generator, weights: DeltaWeights) -> DeltaState:
        s = rng.standard_normal((weights.value_heads, DIM, DIM)) / 8
        return DeltaState(s, rng.standard_normal((TAPS - 1, weights.channels)))


@dataclass(frozen=True)
class DeltaNode:
    """One node: its operands per head, its output before norm and gate, and the state after it."""

    q: Floats  # (key_heads, DIM)
    k: Floats
    v: Floats  # (value_heads, DIM)
    beta: Floats  # (value_heads,)
    decay: Floats  # (value_heads,): the log decays from the root to here
    u: Floats  # (value_heads, DIM)
    out: Floats
    after: DeltaState


def delta_node(
    weights: DeltaWeights, qkv: Floats, alpha: Floats, beta: Floats, before: DeltaState, decay: Floats
) -> DeltaNode:
    """One step of the recurrence from the projected row (channels,), (value_heads,), (value_heads,)."""
    kh, vh = weights.key_heads, weights.value_heads
    inputs = np.concatenate([before.conv, qkv[None]])
    mixed = silu((inputs * weights.conv.T.astype(np.float64)).sum(axis=0)).reshape(-1, DIM)
    q, k, v = mixed[:kh], mixed[kh : 2 * kh], mixed[2 * kh :]
    q = q / np.sqrt((q * q).sum(-1, keepdims=True) + L2_EPS) / np.sqrt(DIM)
    k = k / np.sqrt((k * k).sum(-1, keepdims=True) + L2_EPS)
    gate = weights.a.astype(np.float64) * np.logaddexp(0, alpha + weights.dt.astype(np.float64))
    rate = sigmoid(beta)
    keys, queries = k[np.arange(vh) % kh], q[np.arange(vh) % kh]
    s = before.s * np.exp(gate)[:, None, None]
    u = rate[:, None] * (v - np.einsum("hkv,hk->hv", s, keys))
    s = s + keys[:, :, None] * u[:, None, :]
    out = np.einsum("hkv,hk->hv", s, queries)
    return DeltaNode(q, k, v, rate, decay + gate, u, out, DeltaState(s, inputs[1:]))


def delta_tree(
    weights: DeltaWeights, qkv: Floats, alpha: Floats, beta: Floats, parents: Sequence[int], state: DeltaState
) -> list[DeltaNode]:
    """All nodes of a tree after `state`: qkv (n, channels), alpha and beta (n, value_heads)."""
    nodes: list[DeltaNode] = []
    start = np.zeros(weights.value_heads)
    for i, parent in enumerate(parents):
        before, decay = (state, start) if parent < 0 else (nodes[parent].after, nodes[parent].decay)
        nodes.append(delta_node(weights, qkv[i], alpha[i], beta[i], before, decay))
    return nodes
