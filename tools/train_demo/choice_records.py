"""A file of recorded answers of the demo target with what each drafter proposes; recording them takes minutes.

Drafts are stored bit for bit, so that a policy decides the same on a file as on a fresh recording.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dflash_core.errors import DFlashError
from dflash_core.models.draft_heads import Selector
from dflash_core.pair_scores import PairScores
from dflash_core.tree import Candidates
from tools.bench.recorded import offsets

Arrays = Mapping[str, npt.NDArray[np.generic]]


@dataclass(frozen=True, slots=True)
class Answered:
    """An answer with what each drafter proposes after every token of it."""

    group: str
    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    drafts: dict[str, list[Candidates]]
    certain: tuple[float, ...] = ()  # the target's own probability of each token of the answer


def save(path: Path, answers: Sequence[Answered], asked: str) -> None:
    """Write answers. `asked`: a description of the options that they were recorded with."""
    arrays: dict[str, npt.NDArray[np.generic]] = {
        "asked": np.array(asked),
        "groups": np.array([one.group for one in answers]),
        "prompts": np.concatenate([one.prompt for one in answers]),
        "prompt_offsets": offsets([len(one.prompt) for one in answers]),
        "answers": np.concatenate([one.answer for one in answers]),
        "answer_offsets": offsets([len(one.answer) for one in answers]),
        "certain": np.concatenate([one.certain for one in answers]),
    }
    for kind in answers[0].drafts:
        drafts = [each for one in answers for each in one.drafts[kind]]
        arrays[f"{kind} tokens"] = np.stack([each.tokens for each in drafts])
        arrays[f"{kind} log_probs"] = np.stack([each.log_probs for each in drafts])
        arrays[f"{kind} ranks"] = np.array(drafts[0].ranks or 0)
        given = [each.given.factors.positions for each in drafts if isinstance(each.given, PairScores)]
        if given:
            arrays[f"{kind} positions"] = np.stack(given).astype(np.float32)  # computed in float32, so this is exact
    np.savez_compressed(path, **arrays)  # type: ignore[arg-type]


def load(path: Path, asked: str, selectors: Mapping[str, Selector | None]) -> list[Answered]:
    """Read answers. `selectors`: by kind, the selector that scores a drafter's tokens by the token above, if any.

    Raises DFlashError where the file was recorded with other options.
    """
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    if (found := str(arrays["asked"])) != asked:
        raise DFlashError(f"{path} holds answers of {found}, expected {asked}; name another file")
    prompts, answers = arrays["prompt_offsets"].tolist(), arrays["answer_offsets"].tolist()
    out, before = list[Answered](), 0  # `before`: drafts of the previous answers
    for number, group in enumerate(arrays["groups"].tolist()):
        prompt = arrays["prompts"][prompts[number] : prompts[number + 1]].tolist()
        said = slice(answers[number], answers[number + 1])
        answer, certain = arrays["answers"][said].tolist(), arrays["certain"][said].tolist()
        drafts = {
            kind: [_drafts(arrays, kind, selector, at) for at in range(before, before + len(answer) - 1)]
            for kind, selector in selectors.items()
        }
        before += len(answer) - 1
        out.append(Answered(group, tuple(prompt), tuple(answer), drafts, tuple(certain)))
    return out


def _drafts(arrays: Arrays, kind: str, selector: Selector | None, at: int) -> Candidates:
    tokens: npt.NDArray[np.int64] = arrays[f"{kind} tokens"][at].astype(np.int64)
    log_probs: npt.NDArray[np.float64] = arrays[f"{kind} log_probs"][at].astype(np.float64)
    ranks = int(arrays[f"{kind} ranks"]) or None
    if selector is None:
        return Candidates(tokens, log_probs, ranks=ranks)
    positions = arrays[f"{kind} positions"][at].astype(np.float64)
    return Candidates(tokens, log_probs, PairScores(log_probs, selector.between(positions, tokens), 1.0, at), ranks)
