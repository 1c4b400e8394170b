"""What was learned about a pair, on disk: one small file per pair of models, replaced atomically.

A file that is damaged or belongs to another pair is not used, and replaced at the next save. The policy then starts
with the values that ship with the drafter, or with the drafter's probabilities unchanged.
"""

from __future__ import annotations

import contextlib
import hashlib
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from dflash_core.damaged import DAMAGED
from dflash_core.drafters.successors import MATCH_CLASSES
from dflash_core.errors import DFlashError
from dflash_core.files import read_input, write_whole
from dflash_core.policy.arm import PARTS, Pace, PairState, PartState
from dflash_core.policy.choosing import QUEUED, Drafts, Found
from dflash_core.policy.copying import PRIOR_TOKENS, Copies
from dflash_core.policy.values import CLASSES, FEATURES, Learned

VERSION = 1  # another one where a number or a name of a circumstance (`choosing.py`) comes to mean something else
MAX_BYTES = 1 << 20
LARGEST_WEIGHT = 1e3
# Fewer drafts are not saved: a single slow one would keep later starts from drafting for hundreds of steps.
MIN_SAVED_STEPS = 4.0
MAX_OLD_STEPS = 20  # that older files' drafts on a card count for
SUFFIX = ".policy.json"
_SAMPLES, _SAMPLE_BYTES = 16, 1 << 16


class SavedPart(msgspec.Struct, frozen=True):
    """`PartState` as numbers. A shipped file has the weights only."""

    weights: list[list[float]]
    covariance: list[list[list[float]]] = []
    counts: list[list[float]] = []  # trials, stated, expected, found: sums by class
    copies: tuple[list[float], list[float]] = ([], [])
    chains: tuple[float, float] = (PRIOR_TOKENS, PRIOR_TOKENS)  # `Copies.brought`, `Copies.expected`
    worth: tuple[float, float, float, float, int] = (0.0, 4.0, 0.0, 0.0, 0)  # of older files: drafts on a card
    drafts: dict[str, tuple[float, ...]] = {}  # by circumstance: the fields of `Found`; older files have a fourth sum
    after: dict[str, tuple[float, ...]] = {}


class SavedPair(msgspec.Struct, frozen=True):
    """`PairState` as it is written."""

    version: int
    pair: str
    parts: dict[str, SavedPart]
    pace: tuple[float, float, int] = (3.0, 1.0, 0)


class NotSavedError(DFlashError):
    """A file of learned values that cannot be used; the message has the reason."""


def fingerprint(path: Path) -> str:
    """A fingerprint of a model file or a folder: size and samples of the bytes, so that 20 GB take no time."""
    digest = hashlib.blake2b(digest_size=12)
    files = sorted(one for one in path.iterdir() if one.is_file()) if path.is_dir() else [path]
    for one in files:
        size = one.stat().st_size
        digest.update(f"{one.name if path.is_dir() else ''}:{size}:".encode(errors="surrogateescape"))
        with open(one, "rb") as file:
            for part in range(_SAMPLES):
                file.seek(part * max(size - _SAMPLE_BYTES, 0) // (_SAMPLES - 1))
                digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()


def pair_of(target: Path, draft: Path | str) -> str:
    """The name of a pair: fingerprints of both files; of a drafter without a file its kind."""
    drafter = fingerprint(draft) if isinstance(draft, Path) else draft
    return f"{fingerprint(target)}-{drafter}"


@dataclass(slots=True)
class SavedValues:
    """The stored values of one pair; without a folder nothing is stored. `note`: why they could not be read or written,
    for the log."""

    folder: Path | None
    pair: str
    shipped: Path | None = None
    note: str | None = None

    @property
    def path(self) -> Path | None:
        return None if self.folder is None else self.folder / f"{self.pair}{SUFFIX}"

    def read(self) -> PairState:
        """What was learned, or start values."""
        try:
            if self.path is not None:
                return read(self.path, self.pair)
        except FileNotFoundError:
            pass
        except (DFlashError, OSError) as error:
            self.note = f"learned values are not used: {error}; they start again"
        return self.start()

    def start(self) -> PairState:
        """Start values: those that ship with the drafter, if there are any."""
        if self.shipped is not None and self.shipped.exists():
            try:
                return read(self.shipped, None)
            except (DFlashError, OSError) as error:
                self.note = f"the drafter's own start values are not used: {error}"
        return PairState()

    def write(self, state: PairState) -> None:
        """Save `state`; if that fails, `note` says why and the old file is unchanged."""
        try:
            if self.path is not None:
                write(self.path, self.pair, state)
        except OSError as error:
            self.note = f"learned values cannot be kept in {self.folder} ({error.strerror or error})"

    def forget(self) -> PairState:
        """Delete what was learned from the disk, and return start values."""
        if self.path is not None:
            with contextlib.suppress(OSError):
                self.path.unlink()
        return self.start()


def shipped_beside(draft: Path) -> Path:
    """The path of a drafter's own start values."""
    return draft.with_name(draft.stem + SUFFIX)


def read(path: Path, pair: str | None) -> PairState:
    """Values of `pair`, or of any where it is None. Raises NotSavedError, OSError."""
    data = read_input(path, MAX_BYTES)
    try:
        kept = msgspec.json.decode(data, type=SavedPair)
    except DAMAGED as error:
        raise NotSavedError(f"{path} is damaged: {error}") from None
    if kept.version != VERSION:
        raise NotSavedError(f"{path} is of version {kept.version}, expected {VERSION}")
    if pair is not None and kept.pair != pair:
        raise NotSavedError(f"{path} was learned with another pair of models")
    state = PairState()
    for part in PARTS:
        if part in kept.parts:
            state.parts[part] = _part(path, kept.parts[part])
    tokens, units, steps = kept.pace
    if not (0 < tokens < 1e3 and 0 < units < 1e3 and steps >= 0):
        raise NotSavedError(f"{path} is damaged: a pace of {tokens:g} tokens in {units:g}")
    state.pace = Pace(tokens, units, steps)
    return state


def _part(path: Path, kept: SavedPart) -> PartState:
    weights = _array(path, "weights", kept.weights, (CLASSES, FEATURES), LARGEST_WEIGHT)
    covariance = None
    if kept.covariance:
        covariance = _array(path, "covariance", kept.covariance, (CLASSES, FEATURES, FEATURES), 1.0)
        if not (np.linalg.eigvalsh(covariance) > 0).all():
            raise NotSavedError(f"{path} is damaged: a covariance is not positive definite")
    part = PartState(Learned(weights, covariance))
    if kept.counts:
        counts = _array(path, "counts", kept.counts, (4, CLASSES), 1e15)
        part.learned.trials = counts[0].astype(np.int64)
        part.learned.stated, part.learned.expected, part.learned.found = counts[1:].copy()
    trials, hits = kept.copies
    if trials or hits:
        counted = len(trials) == len(hits) == MATCH_CLASSES
        if not counted or not all(0 <= hit <= count < 1e6 for count, hit in zip(trials, hits)):
            raise NotSavedError(f"{path} is damaged: its counts of copies are impossible")
        if not all(0 < one < 1e6 for one in kept.chains):
            raise NotSavedError(f"{path} is damaged: its sums of copied chains are impossible")
        part.copies = Copies(list(trials), list(hits), *kept.chains)
    drafts = kept.drafts
    *_, tokens, _, steps = kept.worth
    if steps:
        steps = min(steps, MAX_OLD_STEPS)
        drafts = {QUEUED: (tokens * steps, float(steps), float(steps)), **drafts}
    part.drafts, part.after = _drafts(path, drafts), _drafts(path, kept.after)
    return part


def _drafts(path: Path, kept: dict[str, tuple[float, ...]]) -> Drafts:
    for circumstance, sums in kept.items():
        if len(sums) < 3 or not all(0 <= one < 1e6 for one in sums):
            raise NotSavedError(f"{path} is damaged: its sums of drafts after {circumstance[:20]!r} are impossible")
    return {circumstance: Found(*sums[:3]) for circumstance, sums in kept.items()}


def _array(path: Path, name: str, values: object, shape: tuple[int, ...], largest: float) -> np.ndarray:
    try:
        array = np.array(values, np.float64)
    except ValueError:
        array = np.zeros(0)
    if array.shape != shape or not (np.abs(array) <= largest).all():
        raise NotSavedError(
            f"{path} is damaged: {name} of shape {array.shape}, expected {shape} of at most {largest:g}"
        )
    return array


def packed(pair: str, state: PairState) -> SavedPair:
    """`state` as it is written."""
    parts = {}
    for name, part in state.parts.items():
        learned = part.learned
        counts = np.stack([learned.trials.astype(np.float64), learned.stated, learned.expected, learned.found])
        parts[str(name)] = SavedPart(
            learned.weights.tolist(), learned.covariance.tolist(), counts.tolist(),
            (part.copies.trials, part.copies.hits), (part.copies.brought, part.copies.expected),
            drafts=_sums(part.drafts), after=_sums(part.after),
        )  # fmt: skip
    pace = state.pace
    return SavedPair(VERSION, pair, parts, (pace.tokens, pace.units, pace.steps))


def _sums(drafts: Drafts) -> dict[str, tuple[float, ...]]:
    return {
        circumstance: (found.tokens, found.plain, found.steps)
        for circumstance, found in drafts.items()
        if found.steps >= MIN_SAVED_STEPS
    }


def write(path: Path, pair: str, state: PairState) -> None:
    """Replace the file completely or not at all. Raises OSError."""
    write_whole(path, msgspec.json.encode(packed(pair, state)))
