"""What the parts of the chat screen, and the screens of the lab over it, may use of it."""

from __future__ import annotations

from typing import Any, Protocol

from textual.screen import Screen

from dflash_core.knobs import Knobs
from dflash_tui.chat.experiment import Experiment
from dflash_tui.chat.flow import Flow
from dflash_tui.conversations.history import History
from dflash_tui.session import SessionLike
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
        """Why no model can be asked or loaded here, as in a replay; "" where that is no question."""
        ...

    @property
    def model(self) -> str:
        """The title of the loaded pair; "" where none is."""
        ...

    @property
    def busy(self) -> bool:
        """An answer is being written."""
        ...

    @property
    def loading_now(self) -> bool: ...
    @property
    def waiting(self) -> bool:
        """Messages were sent that the model has not been asked yet."""
        ...

    @property
    def screen(self) -> Screen[Any]:
        """For what Textual does: timers, workers, notices, dialogs."""
        ...

    @property
    def prompt(self) -> Prompt: ...
    @property
    def transcript(self) -> Transcript: ...
    @property
    def inspector(self) -> Inspector: ...
    def say(self, what: str | Exception) -> None:
        """A small fact above the prompt, or why something is refused."""
        ...

    def set_knobs(self, **changes: int | float | bool | str) -> None:
        """Change the next turn. Raises KnobError."""
        ...

    def set_all_knobs(self, knobs: Knobs) -> None:
        """Have the next turn run with a whole set. Raises KnobError where the loaded pair cannot."""
        ...

    def show_knobs(self) -> None: ...
    def draw_figures(self) -> None: ...
