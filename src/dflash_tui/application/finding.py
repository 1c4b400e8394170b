"""Search for models on a thread: rows as headers are read, then their drafters, then whether they fit."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence

from dflash_tui.application.background import Background
from dflash_tui.application.hub.fitting import FitCheck, fit_check
from dflash_tui.application.hub.found import Found, PassedOver
from dflash_tui.application.hub.walk import Place
from dflash_tui.application.session import LoadRequest

Check = Callable[[LoadRequest, int], FitCheck]


class Finding(Background):
    """`start` it and read `models`, `others`, `fits` whenever `changes` has grown. Entries are only added.

    `ask` sets the requests that `fits` is to have, by its keys. `freed`: bytes that the present pair releases.
    """

    def __init__(self, where: Callable[[], Sequence[Place]], freed: int, check: Check = fit_check) -> None:
        super().__init__("dflash-models")
        self._where, self._freed, self._check = where, freed, check
        self._asked: Mapping[Hashable, LoadRequest] = {}
        self.models: dict[str, Found] = {}
        self.others: list[PassedOver] = []
        self.fits: dict[Hashable, FitCheck] = {}
        self.changes = 0
        self.looked = False  # the search is complete

    def ask(self, requests: Mapping[Hashable, LoadRequest]) -> None:
        """Find out next whether these fit, in their order."""
        self._asked = requests
        self.wake()

    def work(self) -> None:
        from dflash_tui.application.hub import find, header  # numpy, which the app's first frame does not need

        for one in find.look(self._where(), header.HeaderCache(), lambda: self.stopping):
            if isinstance(one, Found):
                self.models[str(one.path)] = one
            else:
                self.others.append(one)
            self.changes += 1
        self.looked = True
        self.changes += 1
        while not self.stopping:
            key, request = next((one for one in self._asked.items() if one[0] not in self.fits), (None, None))
            if request is None:
                self.wait()
                continue
            self.fits[key] = self._check(request, self._freed)
            self.changes += 1
