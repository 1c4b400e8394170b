"""Recorded answers with the drafts at every position, on which any policy can be replayed exactly.

The text of an answer does not depend on the policy, at any temperature. So for a tree built at any position, the
target's walk is known: it goes as far as the tree contains the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dflash_core.tree import Candidates


@dataclass(frozen=True, slots=True)
class Recorded:
    """One answer. `tokens` and `log_probs` (answer - 1, depths, ranks): the drafts after each of its tokens but the
    last; the answer's first token is the first root. `certain` (answer,): the target's own probability of each token;
    empty where that was not recorded."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    tokens: npt.NDArray[np.int64]
    log_probs: npt.NDArray[np.float64]
    certain: tuple[float, ...] = ()

    def drafts(self, at: int) -> Candidates:
        """The candidates after the token `at` of the answer."""
        return Candidates(self.tokens[at], self.log_probs[at])


def save(path: Path, texts: Sequence[Recorded], **more: npt.NDArray[np.generic]) -> None:
    """Write texts and other arrays; log-probabilities as float16."""
    prompts, answers = [one.prompt for one in texts], [one.answer for one in texts]
    arrays: dict[str, npt.NDArray[np.generic]] = {
        "tokens": np.concatenate([one.tokens for one in texts]).astype(np.int32),
        "log_probs": np.concatenate([one.log_probs for one in texts]).astype(np.float16),
        "draft_offsets": offsets([len(one.tokens) for one in texts]),
        "prompts": np.concatenate(prompts).astype(np.int32),
        "prompt_offsets": offsets([len(one) for one in prompts]),
        "answers": np.concatenate(answers).astype(np.int32),
        "answer_offsets": offsets([len(one) for one in answers]),
    }
    if all(one.certain for one in texts):
        arrays["certain"] = np.concatenate([one.certain for one in texts]).astype(np.float16)
    np.savez_compressed(path, **arrays, **more)  # type: ignore[arg-type]


def load(path: Path) -> list[Recorded]:
    """Read texts."""
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    tokens, log_probs = arrays["tokens"].astype(np.int64), arrays["log_probs"].astype(np.float64)
    drafts, prompts, answers = (arrays[f"{name}_offsets"].tolist() for name in ("draft", "prompt", "answer"))
    certain, texts = arrays.get("certain", np.zeros(0)).tolist(), []
    for n in range(len(drafts) - 1):
        rows = slice(drafts[n], drafts[n + 1])
        prompt = arrays["prompts"][prompts[n] : prompts[n + 1]].tolist()
        answer = arrays["answers"][answers[n] : answers[n + 1]].tolist()
        known = tuple(certain[answers[n] : answers[n + 1]])
        texts.append(Recorded(tuple(prompt), tuple(answer), tokens[rows], log_probs[rows], known))
    return texts


def offsets(lengths: Sequence[int]) -> npt.NDArray[np.int64]:
    """Where each of several parts begins that are put one after the other, and where the last ends."""
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
