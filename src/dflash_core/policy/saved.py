"""What was learned about a pair, on disk: one small file per pair of models, replaced atomically.

A file that is damaged or belongs to another pair is not used, and replaced at the next save. The policy then starts
with the values that ship with the drafter, or with the drafter's probabilities unchanged.
"""

from __future__ import annotations

import contextlib
import hashlib
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta

from dflash_core.damaged import DAMAGED, in_words
from dflash_core.drafters.ngram_table import MATCH_CLASSES
from dflash_core.errors import DFlashError
from dflash_core.files import read_input, write_whole
from dflash_core.policy.arm import PARTS, Pace, PairState, PartState
from dflash_core.policy.choosing import Drafts, Found
from dflash_core.policy.copying import PRIOR_TOKENS, Copies
from dflash_core.policy.values import CLASSES, FEATURES, Learned

VERSION = 1  # another one where a number or a name of a circumstance (`choosing.py`) comes to mean something else
MAX_BYTES = 1 << 20
# Fewer drafts are not saved: a single slow one would keep later starts from drafting for hundreds of steps.
MIN_SAVED_STEPS = 4.0
SUFFIX = ".policy.json"
_SAMPLES, _SAMPLE_BYTES = 16, 1 << 16
_FEATURES, _CLASSES = Meta(min_length=FEATURES, max_length=FEATURES), Meta(min_length=CLASSES, max_length=CLASSES)
Weights = Annotated[list[Annotated[list[Annotated[float, Meta(ge=-1e3, le=1e3)]], _FEATURES]], _CLASSES]
Matrix = Annotated[list[Annotated[list[Annotated[float, Meta(ge=-1, le=1)]], _FEATURES]], _FEATURES]
Counts = Annotated[list[Annotated[float, Meta(ge=-1e15, le=1e15)]], _CLASSES]
Sum = Annotated[float, Meta(ge=0, lt=1e6)]
Positive = Annotated[float, Meta(gt=0, lt=1e6)]
Mean = Annotated[float, Meta(gt=0, lt=1e3)]
Count = Annotated[int, Meta(ge=0)]
Sums = dict[str, Annotated[tuple[Sum, ...], Meta(min_length=3)]]
"""By circumstance the fields of `Found`; older files have a fourth sum."""


class SavedPart(msgspec.Struct, frozen=True):
    """`PartState` as numbers. A shipped file has the weights only."""

    weights: Weights
    covariance: Annotated[list[Matrix], _CLASSES] | None = None
    counts: tuple[Counts, Counts, Counts, Counts] | None = None  # trials, stated, expected, found: sums by class
    copies: tuple[list[Sum], list[Sum]] = ([], [])
    chains: tuple[Positive, Positive] = (PRIOR_TOKENS, PRIOR_TOKENS)  # `Copies.brought`, `Copies.expected`
    drafts: Sums = {}
    after: Sums = {}

    def state(self) -> PartState:
        """Raises ValueError for numbers that do not fit together."""
        covariance = None if self.covariance is None else np.array(self.covariance)
        part = PartState(Learned(np.array(self.weights), covariance))
        if not (np.linalg.eigvalsh(part.learned.covariance) > 0).all():
            raise ValueError("a covariance is not positive definite")
        if self.counts:
            part.learned.trials = np.array(self.counts[0]).astype(np.int64)
            part.learned.stated, part.learned.expected, part.learned.found = map(np.array, self.counts[1:])
        trials, hits = self.copies
        if trials or hits:
            if not len(trials) == len(hits) == MATCH_CLASSES or any(hit > count for count, hit in zip(trials, hits)):
                raise ValueError("its counts of copies are impossible")
            part.copies = Copies(trials, hits, *self.chains)
        part.drafts = {circumstance: Found(*sums[:3]) for circumstance, sums in self.drafts.items()}
        part.after = {circumstance: Found(*sums[:3]) for circumstance, sums in self.after.items()}
        return part

    @staticmethod
    def of(part: PartState) -> SavedPart:
        learned, copies = part.learned, part.copies
        counts = np.stack([learned.trials, learned.stated, learned.expected, learned.found]).tolist()
        return SavedPart(
            learned.weights.tolist(), learned.covariance.tolist(), (counts[0], counts[1], counts[2], counts[3]),
            (copies.trials, copies.hits), (copies.brought, copies.expected),
            drafts=_sums(part.drafts), after=_sums(part.after),
        )  # fmt: skip


class SavedPair(msgspec.Struct, frozen=True):
    """`PairState` as it is written."""

    version: int
    pair: str
    parts: dict[str, SavedPart]
    pace: tuple[Mean, Mean, Count] = (3.0, 1.0, 0)


class _Versioned(msgspec.Struct, frozen=True):
    """A file of any version."""

    version: int


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
            self.note = f"learned values cannot be saved in {self.folder} ({error.strerror or error})"

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
    try:
        data = read_input(path, MAX_BYTES)
        if (found := msgspec.json.decode(data, type=_Versioned).version) != VERSION:
            raise NotSavedError(f"{path} is of version {found}, expected {VERSION}")
        saved = msgspec.json.decode(data, type=SavedPair)
        if pair is not None and saved.pair != pair:
            raise NotSavedError(f"{path} was learned with another pair of models")
        state = PairState(pace=Pace(*saved.pace))
        state.parts |= {part: saved.parts[part].state() for part in PARTS if part in saved.parts}
    except (*DAMAGED, ValueError) as error:
        raise NotSavedError(f"{path} is damaged: {in_words(error)}") from None
    return state


def _sums(drafts: Drafts) -> Sums:
    return {name: astuple(found) for name, found in drafts.items() if found.steps >= MIN_SAVED_STEPS}


def write(path: Path, pair: str, state: PairState) -> None:
    """Replace the file completely or not at all. Raises OSError."""
    parts = {str(name): SavedPart.of(part) for name, part in state.parts.items()}
    pace = state.pace
    saved = SavedPair(VERSION, pair, parts, (pace.tokens, pace.units, pace.steps))
    write_whole(path, msgspec.json.encode(saved))
