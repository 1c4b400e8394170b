"""Cache types on the card: rows are packed as by the reference, and trees of whole models leave plain decoding's bits.

Every pair of types goes through prompts in passes and in chunks, single steps, trees with branches, commit, checkpoint.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dflash_core.backends.cpu.session import CpuSession
from dflash_core.backends.cuda import session as cuda_session
from dflash_core.backends.cuda.kv import defines
from dflash_core.backends.cuda.layers.attention import AttentionMemory
from dflash_core.backends.cuda.session import CudaSession
from dflash_core.cache_types import TYPES, CachePair
from dflash_core.models.cache_rows import CODECS
from support.device_pairs import close, pair, prompt
from support.engines import Engine
from support.grids import full
from support.heads import frequencies

PAIRS = [f"{k}/{v}" for k in TYPES for v in TYPES]
NARROW = ("q8_0/q4_0", "tq3_0/bf16")
pairs = pytest.mark.parametrize(
    "kv", [pytest.param(one, marks=() if one in NARROW else pytest.mark.full) for one in PAIRS]
)
TOKENS, PARENTS = [5, 17, 40, 41, 99, 7], [-1, 0, 0, 1, 1, 4]
GOLDEN = "tiny-F16.gguf"
CONTEXT = 192


# Each type at one size of heads, each size with two types; with `full` all.
@pytest.mark.parametrize(
    ("name", "head_dim"),
    [
        (name, head_dim) if at % 3 == turn else full(name, head_dim)
        for at, name in enumerate(name for name in TYPES if name != "f16")
        for turn, head_dim in enumerate((64, 128, 256))
    ],
)
def test_rows_are_those_of_the_reference(engine: Engine, rng: np.random.Generator, name: str, head_dim: int) -> None:
    """A prompt's rows, written by the kernel: values as they are, keys normed, rotated and maybe transformed."""
    kv, rows, heads = CachePair.parse(name), 9, 1
    sizes = {"HEAD_DIM": head_dim, "ROTARY": 64, "GROUP": 1, "SPLIT_K": 1, "UNGATED": 1, **defines(kv)}
    projected = rng.standard_normal((rows, 3 * head_dim)).astype(np.float32)
    projected[4] *= 100
    projected[5] = 0
    q = engine.poisoned((heads, rows, head_dim), np.float16)
    k, v = (engine.array(np.zeros((heads, rows, kind.row_bytes(head_dim)), np.uint8)) for kind in (kv.k, kv.v))
    ones = np.ones(head_dim, np.float32)
    chunk = engine.array(np.array([rows, 0, 0, 0], np.int32))
    args = [chunk, engine.array(projected), np.int32(rows), np.int32(heads), engine.array(ones), engine.array(ones)]
    args += [engine.array(frequencies(64)), np.float32(1e-6), np.float32(1), q, k, v, np.int32(rows)]
    engine.kernel("attention_rows.cu", "attn_rows", sizes)((1, rows), 128, args)
    values = torch.tensor(projected[:, 2 * head_dim :])
    assert np.array_equal(v.numpy()[0], CODECS[name].pack(values).view(torch.uint8).numpy())

    out = engine.poisoned((heads, rows, head_dim), np.float16)
    unpack = engine.kernel("attention_rows.cu", "attn_unpack_values", sizes)
    unpack(2, 128, [chunk, v, np.int32(heads), np.int32(rows), out])
    stored = torch.tensor(v.numpy()[0])
    stored = stored.view(CODECS[name].dtype)
    expected = CODECS[name].unpack(stored, head_dim, torch.float32).numpy()
    np.testing.assert_allclose(out.numpy()[0].astype(np.float32), expected, rtol=2**-10, atol=1e-6)

    found = engine.poisoned((heads, rows, head_dim), np.float16)
    unpack = engine.kernel("attention_rows.cu", "attn_unpack_keys", sizes)
    unpack(2, 128, [chunk, k, np.int32(heads), np.int32(rows), found])
    # Scores do not change where both are transformed.
    scores = q.numpy()[0].astype(np.float64) @ found.numpy()[0].astype(np.float64).T
    exact = engine.poisoned((heads, rows, head_dim), np.float16)
    plain = {name: value for name, value in sizes.items() if not name.startswith("KV_")}
    halves = [engine.array(np.zeros((heads, rows, head_dim), np.float16)) for _ in range(2)]
    engine.kernel("attention_rows.cu", "attn_rows", plain)((1, rows), 128, [*args[:9], exact, *halves, args[-1]])
    wanted = exact.numpy()[0].astype(np.float64) @ halves[0].numpy()[0].astype(np.float64).T
    assert np.abs(scores - wanted).max() < {"bf16": 0.02, "q8_0": 0.06, "q5_0": 0.4, "q4_0": 0.8, "tq3_0": 2}[
        name
    ] * np.sqrt(head_dim)


def on_card(device_name: str, kv: str, context: int = CONTEXT) -> CudaSession:
    one = pair(device_name, GOLDEN)
    draft = one.device_draft
    return CudaSession(one.device_target, draft, context=context, kv=CachePair.parse(kv))


def check_tree(session: CudaSession, ids: tuple[int, ...]) -> None:
    """Every node of a tree has the bits that decoding its path token by token gives; so has what follows a commit."""
    session.restore(None)
    session.prefill(ids)
    kept = session.checkpoint()
    logits = session.verify(TOKENS, PARENTS)
    for path in ([0, 1, 4, 5], [0, 2]):
        session.restore(kept)
        session.verify(TOKENS, PARENTS)
        session.commit(path)
        after = session.verify([8], [-1])
        rows = [tensor[:, :, : session.length].clone() for tensor in tensors(session)]
        session.restore(kept)
        for node in path:
            assert np.array_equal(session.verify([TOKENS[node]], [-1])[0], logits[node])
            session.commit([0])
        assert np.array_equal(session.verify([8], [-1]), after)
        assert all(torch.equal(a, b[:, :, : session.length]) for a, b in zip(rows, tensors(session)))


def tensors(session: CudaSession) -> list[torch.Tensor]:
    (memory,) = (one for one in session.memory.mixers if isinstance(one, AttentionMemory))
    return [memory.kv.k, memory.kv.v]


def test_what_is_unpacked_is_what_is_used(engine: Engine) -> None:
    """With 3 positions in a cache with room for 500, only 3 are touched: a large context costs nothing by itself."""
    kv, heads, slots, used = CachePair.parse("q8_0"), 2, 500, 3
    sizes = {"HEAD_DIM": 64, "ROTARY": 64, "GROUP": 1, "SPLIT_K": 1, "UNGATED": 1, **defines(kv)}
    rows = engine.array(np.zeros((heads, slots, kv.v.row_bytes(64)), np.uint8))
    for first, to in ((0, 0), (200, 7)):
        out = engine.poisoned((heads, slots, 64), np.float16)
        chunk = engine.array(np.array([1, used - 1, first, to], np.int32))
        args = [chunk, rows, np.int32(heads), np.int32(slots), out]
        engine.kernel("attention_rows.cu", "attn_unpack_values", sizes)(2, 128, args)
        assert (out.numpy()[:, to : to + used] == 0).all()
        assert np.isnan(np.delete(out.numpy(), range(to, to + used), axis=1)).all()


@pairs
def test_a_tree_has_the_bits_of_single_steps(device_name: str, kv: str, monkeypatch: pytest.MonkeyPatch) -> None:
    session, ids = on_card(device_name, kv), prompt()[:61]  # its trees lie over a tile's border
    check_tree(session, ids)
    one = pair(device_name, GOLDEN)
    reference = one.target.session(one.draft, kv=CachePair.parse(kv))
    assert isinstance(reference, CpuSession)
    session.restore(None)
    expected = reference.prefill(ids)
    close(session.prefill(ids), expected, 0.2)
    close(session.draft(5, 0), reference.draft(5, 0), 0.2)  # its full-attention layers use this type
    exact = one.target.logits(ids)[-1]
    assert np.abs(expected - exact).max() > 0
    monkeypatch.setattr(cuda_session, "MIN_ROWS", 1)  # prompts in chunks
    session.restore(None)
    close(session.prefill(ids), expected, 0.2)
    again = session.prefill([1, 2])
    session.restore(None)
    session.prefill(ids)
    assert np.array_equal(session.prefill([1, 2]), again)
