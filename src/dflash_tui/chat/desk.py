"""The interface of the chat screen to its parts and to the lab screens that open over it."""

from __future__ import annotations

from typing import Any, Protocol

from textual.screen import Screen

from dflash_core.knobs import Knobs
from dflash_tui.application.conversations.history import History
from dflash_tui.application.experiment import Experiment
from dflash_tui.application.session import SessionLike
from dflash_tui.chat.flow import Flow
from dflash_tui.widgets.inspector import Inspector
from dflash_tui.widgets.prompt import Prompt
from dflash_tui.widgets.transcript import Transcript


class Desk(Protocol):
    """The loaded pair, the parameters, what runs, and the widgets that show it.

    `knobs` are the next turn's, `used` those of the last one. `experiment` is the lab's, while one runs.
    """

    knobs: Knobs
    used: Knobs
    session: SessionLike | None
    flow: Flow
    experiment: Experiment | None
    past: History

    @property
    def no_model(self) -> str:
        """Why no model can be used or loaded here, as in a replay; "" if one can."""
        ...

    @property
    def model(self) -> str:
        """The title of the loaded pair; "" if none is loaded."""
        ...

    @property
    def busy(self) -> bool:
        """An answer is being written."""
        ...

    @property
    def loading_now(self) -> bool: ...
    @property
    def waiting(self) -> bool:
        """Messages were sent that the model has not received yet."""
        ...

    @property
    def screen(self) -> Screen[Any]:
        """The Textual screen: for timers, workers, notices and dialogs."""
        ...

    @property
    def prompt(self) -> Prompt: ...
    @property
    def transcript(self) -> Transcript: ...
    @property
    def inspector(self) -> Inspector: ...
    def say(self, what: str | Exception) -> None:
        """A short message above the prompt, such as why something is refused."""
        ...

    def set_knobs(self, **changes: int | float | bool | str) -> None:
        """Change parameters of the next turn. Raises KnobError."""
        ...

    def set_all_knobs(self, knobs: Knobs) -> None:
        """Replace all parameters of the next turn. Raises KnobError if the loaded pair does not support them."""
        ...

    def show_knobs(self) -> None: ...
    def draw_figures(self) -> None: ...
