"""From how many tokens on a prompt runs in chunks, and not in passes, on the present card.

A pass reads all weights as they are. A chunk first converts them to f16 for the library: a fixed cost, then little per
row. On data-centre cards chunks win from some 200 tokens on. GeForce cards add products of halves at half the rate, so
there the fixed cost may never be earned back.
"""

from __future__ import annotations

from collections.abc import Mapping

from dflash_core.backends.cuda.state import PASS_ROWS

PASSES = "passes"
READINGS = ("auto", PASSES)  # how prompts may be read: the fastest way, or always in passes
TIMED_CHUNKS = (256, 1024)  # rows
NEVER = 1 << 30
COMMIT = 1.05  # time of a pass and its commit, where the pass alone takes 1
# Passes of PASS_ROWS rows need memory that trees of the default settings do not: only if they win up to so many tokens.
WORTHWHILE = 512


def chunks_from(passes: Mapping[int, float], chunks: Mapping[int, float]) -> int | None:
    """How many tokens a prompt must have so that chunks are faster than passes of PASS_ROWS rows; None if such passes
    are not worth their memory.

    `passes`: milliseconds of a pass by rows; `chunks`: of a chunk by rows. Either may be empty.
    """
    if PASS_ROWS not in passes or not chunks:
        return None
    few, many = TIMED_CHUNKS
    row = (chunks[many] - chunks[few]) / (many - few)
    fixed = chunks[few] - row * few
    gained = COMMIT * passes[PASS_ROWS] / PASS_ROWS - row  # by a chunk, for each row
    shortest = int(fixed / gained) + 1 if fixed < NEVER * gained else NEVER
    return shortest if shortest > WORTHWHILE else None
