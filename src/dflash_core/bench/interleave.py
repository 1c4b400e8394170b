"""The order of runs: settings are interleaved, so that a change of the machine's speed affects all of them alike."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Slot:
    """One run to make: which setting, on which prompt, and its repetition. All count from 0."""

    setting: int
    prompt: int
    repeat: int


def interleave(settings: int, prompts: int, repeats: int) -> Iterator[Slot]:
    """Every combination once. All settings run on a prompt before the next prompt; repeats come last.

    Each block of settings is followed by its mirror image, which cancels a drift that is linear in time, and every
    second block begins one setting later, so that none is always the first. Two settings: AB BA BA AB ...
    """
    block = 0
    for repeat in range(repeats):
        for prompt in range(prompts):
            shift, mirrored = divmod(block, 2)
            order = [(place + shift) % settings for place in range(settings)]
            for setting in reversed(order) if mirrored else order:
                yield Slot(setting, prompt, repeat)
            block += 1
