"""The simplest decoding: one row, the best of its logits, commit. Plain decoding must not be slower than this."""

from __future__ import annotations

import statistics
import time

from dflash_core.backends.base import Backend

WARM_TOKENS, TIMED_TOKENS = 4, 20


def plain_loop_ms(backend: Backend, token: int) -> float:
    """Median milliseconds per token after what `backend` has read, beginning with `token`."""
    times = []
    for _ in range(WARM_TOKENS + TIMED_TOKENS):
        began = time.perf_counter()
        token = int(backend.verify([token], [-1])[0].argmax())
        backend.commit([0])
        times.append((time.perf_counter() - began) * 1e3)
    return statistics.median(times[WARM_TOKENS:])
