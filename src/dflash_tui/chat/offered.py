"""The rows of the list of models: profiles, models on this machine, pairs to fetch; and the drafter of each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from textual.content import Content
from textual.widgets.option_list import Option

from dflash_core.clean import one_line
from dflash_tui.application import smollm2
from dflash_tui.application.finding import Finding, Question
from dflash_tui.application.hub.catalogue import Catalogue, Pair
from dflash_tui.application.hub.files import begun_words
from dflash_tui.application.hub.found import Found
from dflash_tui.application.hub.places import downloads
from dflash_tui.application.settings.presets import Profile
from dflash_tui.chat.downloads import Downloads
from dflash_tui.chat.program import ProgramController
from dflash_tui.widgets.model_list import (
    DEMO,
    FILE,
    PAIR,
    PROFILE,
    ModelChoice,
    beside,
    choices,
    option,
    passed_over,
    takes,
)

ABOUT_DEMO = """A small pair that comes with the program.

The pair writes whole sentences, and serves to look around and to see how drafting works.

The program fetches nothing for this pair, and any machine runs it."""


@dataclass(eq=False)
class Offered:
    """Rows by their ids, built on demand from what `finding` has found."""

    _program: ProgramController
    _catalogue: Catalogue
    _finding: Finding
    _downloads: Downloads
    _drafters: dict[str, int] = field(default_factory=dict)  # the drafter chosen for a file, if not its first

    def rows(self, words: tuple[str, ...]) -> Iterator[Option]:
        """Those that have all of `words`, below headings."""
        profiles, files, pairs = list(self._profiles(words)), list(self._files(words)), list(self._pairs(words))
        # Rows that cannot be chosen come between the others: the list scrolls no further than its last row.
        others = [Option(line, disabled=True) for line in passed_over(list(self._finding.others))] if not words else []
        parts = (("Profiles", profiles), ("On this machine", files), ("Not offered", others), ("To fetch", pairs))
        gap = ""
        for heading, rows in parts:
            if rows:
                yield Option(Content.styled(f"{gap}{heading}", "bold $primary"), disabled=True)
                yield from rows
                gap = "\n"
        if not (profiles or files or pairs):
            yield Option(
                Content("No model has these words. A path begins with / or ~, or ends in .gguf."), disabled=True
            )

    def _profiles(self, words: tuple[str, ...]) -> Iterator[Option]:
        for one in self._program.presets.profiles.values():
            if _has(words, one.name, one.words):
                id, fit = PROFILE + one.name, self._finding.fits.get(PROFILE + one.name)
                # The fit comes first, so the same number of positions is not repeated.
                shown = replace(one, context=0) if fit is not None and not fit.short and not fit.why else one
                yield option(id, one.name, shown.words, gone=one.gone(), fit=fit)

    def _files(self, words: tuple[str, ...]) -> Iterator[Option]:
        present = self._program.state.present
        here = present is not None and not present.attach  # a server's model is no file
        target = present.target if present is not None and here else None
        if _has(words, "demo pair"):
            yield option(DEMO, "demo pair", "small, comes with the program", present=here and target is None)
        for path, one in list(self._finding.models.items()):
            if _has(words, one.name, one.where, one.header.architecture, one.header.title):
                about = smollm2.ABOUT if Path(path).name == Path(smollm2.FILE).name else one.where
                yield option(
                    FILE + path, one.name, about, one, choice=self._choice(path, one),
                    fit=self._finding.fits.get(self._key(path, one)),
                    present=target is not None and str(target) == path,
                )  # fmt: skip

    def _pairs(self, words: tuple[str, ...]) -> Iterator[Option]:
        # Those being fetched come first: the user is probably looking for them.
        for one in sorted(self._catalogue.pairs.values(), key=lambda one: self._downloads.of(one.name) is None):
            if _has(words, one.name, one.about, "get fetch"):
                about = " · ".join(filter(None, (one.about, f"licence: {one.licence or 'not stated'}")))
                fit = self._finding.fits.get(PAIR + one.name)
                fetched, size = self._fetched(one), self._size(one)
                yield option(PAIR + one.name, one.name, about, fetched=fetched, fit=fit, size=size)

    def _size(self, pair: Pair) -> int:
        """About how many bytes are fetched; 0 where that is not known yet."""
        fit = self._finding.fits.get(PAIR + pair.name)
        target, drafter = fit.files if fit is not None else (0, 0)
        return target + drafter * (pair.draft is not None)

    def _fetched(self, pair: Pair) -> str:
        """The progress of a pair that is or was being fetched; "" if nothing of it is on the disk."""
        it = self._downloads.of(pair.name)
        return it.words if it is not None else begun_words(pair, downloads())

    def about(self, row: str) -> Content:
        if (one := self.found(row)) is not None:
            key = self._key(row.removeprefix(FILE), one)
            drafters = choices(one) if one.drafters is not None else []
            return beside(one, drafters, self._choice(key[0], one), self._finding.fits.get(key))
        if (profile := self.profile(row)) is not None:
            fit = self._finding.fits.get(row)
            shown = profile if fit is None or fit.why else profile.within(fit.wished)
            return Content(one_line(shown.words).replace(" · ", "\n"))
        if (pair := self.pair(row)) is not None:
            lines = (pair.about, pair.licence, pair.target.repo, pair.draft.repo if pair.draft else "")
            about, fetched = "\n".join(filter(None, lines)), self._fetched(pair)
            takes_up = takes(self._finding.fits.get(row), self._size(pair))
            return Content.assemble(about, f"\n\n{fetched}" if fetched else "", *takes_up)
        return Content(ABOUT_DEMO if row == DEMO else "")

    def found(self, row: str) -> Found | None:
        """The file of a row; None for another kind of row, or if it has not been found (yet)."""
        return self._finding.models.get(row.removeprefix(FILE)) if row.startswith(FILE) else None

    def profile(self, row: str) -> Profile | None:
        return self._program.presets.profiles.get(row.removeprefix(PROFILE)) if row.startswith(PROFILE) else None

    def pair(self, row: str) -> Pair | None:
        return self._catalogue.pairs.get(row.removeprefix(PAIR)) if row.startswith(PAIR) else None

    # Drafters

    def draft(self, path: str) -> Path | None:
        choice = self._choice(path, self._finding.models[path])
        return choice.draft if choice is not None else None

    def change_draft(self, path: str, by: int) -> None:
        self._drafters[path] = (self._drafters.get(path, 0) + by) % len(choices(self._finding.models[path]))

    def _choice(self, path: str, one: Found) -> ModelChoice | None:
        """The drafter that Enter selects, once its drafters are known."""
        found = choices(one)
        return found[self._drafters.get(path, 0) % len(found)] if one.drafters is not None else None

    def _key(self, path: str, one: Found) -> tuple[str, Path | None]:
        choice = self._choice(path, one)
        return path, choice.draft if choice is not None else None

    # What fits

    def ask(self, row: str) -> None:
        """Have the thread estimate what fits, this row first."""
        questions, planned = [], self._program.planned
        for path, one in list(self._finding.models.items()):
            if one.drafters is not None:
                key = self._key(path, one)
                questions.append(Question(key, planned(one.path, key[1])))
        for profile in self._program.presets.profiles.values():
            if profile.gone() is None:
                request = planned(profile.target, profile.draft, profile.context, profile.kv)
                questions.append(Question(PROFILE + profile.name, request))
        for pair in self._catalogue.pairs.values():
            if pair.shapes:
                questions.append(Question(PAIR + pair.name, pair.planned(planned(None, None))))
        path = row.removeprefix(FILE)
        questions.sort(key=lambda one: path not in (one.key, one.key[0] if isinstance(one.key, tuple) else ""))
        self._finding.ask(questions)


def _has(words: tuple[str, ...], *texts: str) -> bool:
    text = " ".join(texts).lower()
    return all(word in text for word in words)
