"""Finds the fastest of many settings with few runs: successive halving (Jamieson and Talwalkar, 2016) on paired runs.

Every setting answers the same prompts in the same order, so any two remaining ones were measured on the same pairs.
When all of them have the pairs of a round, the slower half is dropped. The present setting and `auto` always stay,
because the result shows them. Plain decoding is an arm like any other: dropped early where drafts pay, and possibly the
best where they do not.

It ends when the leader is faster than every other one by the test that a sweep uses, when differences remain
insignificant after the last of `TARGETS`, or when the time is up. Nothing here depends on a model or a screen.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from dflash_core.bench.statistics import FEWEST_PAIRS, Comparison, compare
from dflash_core.lab.grid import Setting

TARGETS = (1, 2, 4, 8, 12)
"""Pairs that a setting has when its round ends; each round but the last halves the field."""
HOPELESS = 0.6
"""Share of the leader's speed: a setting slower than this on the first pair is dropped at once."""
Role = Literal["", "now", "auto", "plain"]
STAYS: frozenset[Role] = frozenset({"now", "auto"})


@dataclass(frozen=True, slots=True)
class Arm:
    """A setting in the comparison. One that is both the present one and `auto` has the role "now"."""

    setting: Setting
    role: Role = ""


@dataclass(frozen=True, slots=True)
class Run:
    """One answer, as measured. `acceptance` is tokens per step."""

    tok_s: float
    acceptance: float
    step_ms: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Next:
    """What to measure next: an arm, by its place, on a pair. `pair` counts from 0 over prompts, then repeats."""

    arm: int
    pair: int


@dataclass(frozen=True, slots=True)
class Standing:
    """An arm so far. All figures are medians over the same `pairs`, the present setting's `now_tok_s` too, for prompts
    differ in speed more than settings do. `now_tok_s` and `versus_now` are None where it has not run on them."""

    arm: int
    role: Role
    setting: Setting
    pairs: int
    tok_s: float
    acceptance: float
    step_ms: float
    left: bool
    now_tok_s: float | None = None
    versus_now: Comparison | None = None

    @property
    def gain(self) -> float | None:
        """As a share of `now_tok_s`."""
        return self.tok_s / self.now_tok_s - 1 if self.now_tok_s is not None else None

    @property
    def real(self) -> bool:
        """The paired test says that the difference is more than noise, and on the side where the figures are."""
        it, gain = self.versus_now, self.gain
        return it is not None and gain is not None and it.matters and it.difference * gain > 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """The best arm compared with the present one, with the figures of its standing.

    `real`: the paired test says that it is faster, not only by chance. `settled`: more runs would not change it.
    """

    best: int
    tok_s: float
    now_tok_s: float
    pairs: int
    wins: int
    real: bool
    settled: bool


@dataclass
class _Track:
    arm: Arm
    runs: list[Run] = field(default_factory=list)
    left: bool = True

    def speeds(self, pairs: int) -> list[float]:
        return [run.tok_s for run in self.runs[:pairs]]


class Halving:
    """Call `next` for a run and `add` with its result, until `next` returns None."""

    def __init__(self, arms: Sequence[Arm]) -> None:
        if not arms:
            raise ValueError("no settings to try; expected at least one")
        self._tracks = [_Track(arm) for arm in arms]
        self._round = 0
        self._over = False

    @property
    def arms(self) -> tuple[Arm, ...]:
        return tuple(track.arm for track in self._tracks)

    @property
    def over(self) -> bool:
        return self._over

    def extend(self, arms: Sequence[Arm]) -> None:
        """Add settings; they get the pairs that the others have."""
        known = {track.arm.setting.knobs for track in self._tracks}
        self._tracks += [_Track(arm) for arm in arms if arm.setting.knobs not in known]

    def next(self) -> Next | None:
        """The remaining arm with the fewest pairs; the order among equals changes from pair to pair."""
        while not self._over:
            target = TARGETS[self._round]
            waiting = [at for at, track in enumerate(self._tracks) if track.left and len(track.runs) < target]
            if waiting:
                fewest = min(len(self._tracks[at].runs) for at in waiting)
                equals = [at for at in waiting if len(self._tracks[at].runs) == fewest]
                return Next(equals[0] if fewest % 2 == 0 else equals[-1], fewest)
            self._end_round()
        return None

    def add(self, it: Next, run: Run) -> None:
        """Add the result of a run that `next` returned."""
        track = self._tracks[it.arm]
        if it.pair != len(track.runs):
            raise ValueError(f"pair {it.pair} of a setting that has {len(track.runs)}")
        track.runs.append(run)
        first = [one.runs[0].tok_s for one in self._tracks if one.runs]
        if it.pair == 0 and track.arm.role not in STAYS and run.tok_s < HOPELESS * max(first):
            track.left = False

    def drop(self, pair: int) -> None:
        """A prompt turned out to say nothing: forget what was measured on its pair and on those after it, which are
        other prompts from now on."""
        for track in self._tracks:
            del track.runs[pair:]

    def stop(self) -> None:
        """End: `next` returns no more runs."""
        self._over = True

    def runs_left(self) -> int:
        """The most runs that the present rounds can need."""
        left = [track for track in self._tracks if track.left]
        stays = sum(track.arm.role in STAYS for track in left)
        count, field_size = 0, len(left)
        have = sum(len(track.runs) for track in left) / max(len(left), 1)
        for target in TARGETS[self._round :]:
            count += round(field_size * max(target - have, 0))
            have = max(have, target)
            field_size = max(-(-(field_size - stays) // 2) + stays, min(field_size, stays + 1))
        return count

    # What is known

    def standings(self) -> list[Standing]:
        """Every arm that has run: first those left, then those that catch up, then those that went, newest first; of
        equals the one that gains most over the present setting."""
        found = [self._standing(at) for at, track in enumerate(self._tracks) if track.runs]
        level = set(self._level())

        def place(one: Standing) -> tuple[bool, bool, int, float, float]:
            return not one.left, one.arm not in level, -one.pairs, -(one.gain or 0.0), -one.tok_s

        return sorted(found, key=place)

    def verdict(self) -> Verdict | None:
        """The best remaining arm against the present setting; None before both have run."""
        now, level = self._now(), self._level()
        if now is None or now not in level:
            return None
        pairs = self._shown(now)
        best = max(level, key=lambda at: (statistics.median(self._tracks[at].speeds(pairs)), at == now))
        it = self._standing(best)
        assert it.now_tok_s is not None
        wins = it.versus_now.wins if it.versus_now is not None else 0
        real = it.real and it.tok_s > it.now_tok_s
        return Verdict(best, it.tok_s, it.now_tok_s, it.pairs, wins, real, settled=self._settled(best))

    def _now(self) -> int | None:
        return next((at for at, track in enumerate(self._tracks) if track.arm.role == "now"), None)

    def _level(self) -> list[int]:
        """The arms left that can be told apart: those that have the pairs of the last round. Late ones catch up."""
        left = [at for at, track in enumerate(self._tracks) if track.left and track.runs]
        most = max((len(self._tracks[at].runs) for at in left), default=0)
        fewest = min(TARGETS[self._round - 1] if self._round else 1, most)
        return [at for at in left if len(self._tracks[at].runs) >= fewest]

    def _shown(self, at: int) -> int:
        """Over how many pairs the figures of an arm are: all of the level have them, the present setting always."""
        now, level = self._now(), self._level()
        if at in level:
            return min(len(self._tracks[one].runs) for one in level)
        own = len(self._tracks[at].runs)
        shared = min(own, len(self._tracks[now].runs)) if now is not None else 0
        return shared or own

    def _standing(self, at: int) -> Standing:
        track, now, pairs = self._tracks[at], self._now(), self._shown(at)
        tok_s, acceptance, step_ms = (
            statistics.median(getattr(run, name) for run in track.runs[:pairs])
            for name in ("tok_s", "acceptance", "step_ms")
        )
        its = self._tracks[now].speeds(pairs) if now is not None else []
        paired = len(its) == pairs
        return Standing(
            at, track.arm.role, track.arm.setting, pairs, tok_s, acceptance, step_ms, track.left,
            statistics.median(its) if paired else None,
            compare(its, track.speeds(pairs)) if paired and at != now else None,
        )  # fmt: skip

    # Rounds

    def _end_round(self) -> None:
        """End a round: drop the slower half."""
        pairs = TARGETS[self._round]
        left = [at for at, track in enumerate(self._tracks) if track.left]
        if not left:
            self._over = True
            return
        ranked = sorted(left, key=lambda at: -statistics.median(self._tracks[at].speeds(pairs)))
        others = [at for at in ranked if self._tracks[at].arm.role not in STAYS]
        for at in others[max(-(-len(others) // 2), 1) :]:
            self._tracks[at].left = False
        self._round += 1
        self._over = self._round == len(TARGETS) or self._settled(ranked[0])

    def _settled(self, best: int) -> bool:
        """Whether the leader is faster than every other remaining arm, by the paired test."""
        rest = [at for at, track in enumerate(self._tracks) if track.left and at != best]
        mine = self._tracks[best].runs
        if len(mine) < FEWEST_PAIRS:
            return False
        for at in rest:
            shared = min(len(mine), len(self._tracks[at].runs))
            it = compare(self._tracks[at].speeds(shared), self._tracks[best].speeds(shared)) if shared else None
            if it is None or it.verdict != "higher":
                return False
        return True
