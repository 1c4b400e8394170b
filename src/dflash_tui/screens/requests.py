"""Requests of other programs to the model that the app has loaded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

from textual import on
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.widget import Widget

from dflash_tui.application.amounts import short, speed
from dflash_tui.application.requests import Requests, ServedRequest, client_name
from dflash_tui.application.settings.config import ConfigError
from dflash_tui.chat.parts import ChatParts
from dflash_tui.screens.lab import NARROW, LabScreen
from dflash_tui.screens.steps import StepsScreen
from dflash_tui.settings.keys import bindings
from dflash_tui.text.bars import clip
from dflash_tui.widgets.literal import DataTable, Static, row_key

UPDATE_S = 0.5
HEADINGS = ("client", "preset", "model", "prompt", "reused", "tokens", "tok/s", "tok/step", "state")
MAX_NAME, SHORT_NAME = 24, 12
NONE_YET = "No request yet."
STORES_PROMPTS = "Prompts are kept in memory for F8; c forgets them."
NO_PROMPTS = "the prompts of programs are kept only if you agree: c keeps those that come from now on, only in memory"
OFF = "Nothing is served: /serve in the chat begins."


class RequestsScreen(LabScreen):
    """The requests, the newest first; the steps of one."""

    SCOPE: ClassVar[str] = "requests"
    HEADING: ClassVar[str] = "Requests"
    WIDTH: ClassVar[int] = 140
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(SCOPE)]
    AUTO_FOCUS = "#requests-list"

    def __init__(self, chat: ChatParts) -> None:
        super().__init__(chat)
        self._narrow: bool | None = None
        self._listed: dict[str, ServedRequest] = {}

    def body(self) -> Iterable[Widget]:
        yield Static("", id="requests-words")
        yield Vertical(_List(id="requests-list"), classes="lab-body")

    def on_mount(self) -> None:
        super().on_mount()
        self.set_interval(UPDATE_S, self.draw)

    def draw(self) -> None:
        state, narrow = self.chat.state, self.size.width < NARROW
        if narrow != self._narrow:
            self._narrow = narrow
            self.query_one(_List).clear(columns=True)
            self.query_one(_List).add_headings(_without_model(HEADINGS) if narrow else HEADINGS)
        listed = state.requests.newest_first
        where = f"Programs use the model at {state.serving}; /serve off ends that." if state.serving else OFF
        where = f"What other programs ask of {state.model}, from when the app was attached." if state.watched else where
        prompts = STORES_PROMPTS if state.requests.keeps_prompts else ""
        words = filter(None, (where, "" if listed else NONE_YET, prompts))
        self.query_one("#requests-words", Static).update(" ".join(words))
        self._listed = {str(one.number): one for one in listed}
        self.query_one(_List).refill({key: self._cells(one) for key, one in self._listed.items()})

    def _cells(self, one: ServedRequest) -> tuple[str, ...]:
        prompt = reused = tokens = rate = step = ""
        followed = self.chat.state.followed
        meter = followed.meter if followed is not None and self.chat.serving.current is one else None
        if one.report is not None:
            stats = one.report.stats
            prompt, reused, tokens = short(stats.prompt_tokens), short(stats.reused_tokens), short(stats.tokens)
            rate, step = speed(stats.tokens_per_second), f"{stats.acceptance_length:.2f}"
        elif meter is not None and meter.prefill is not None:
            prompt, reused = short(meter.prefill.prompt_tokens), short(meter.prefill.reused_tokens)
            tokens, rate, step = short(meter.tokens), speed(meter.overall_rate), f"{meter.totals.acceptance_length:.2f}"
        client = one.client.partition(" ")[0] or "no name"
        most = SHORT_NAME if self._narrow else MAX_NAME
        cells = (
            *(clip(name, most) for name in (client, one.preset, one.model)),
            prompt,
            reused,
            tokens,
            rate,
            step,
            _state(one),
        )
        return _without_model(cells) if self._narrow else cells

    @property
    def _present(self) -> ServedRequest | None:
        return self._listed.get(self.query_one(_List).cursor_key or "")

    def action_preset(self) -> None:
        one = self._present
        if one is None:
            self.say(NONE_YET)
            return
        client = client_name(one.client)
        if not client:
            self.say("this program does not say its name, so it gets the parameters of the app")
            return
        try:
            name = self.chat.serving.next_preset(client)
            problem = ""
        except ConfigError as error:
            name, problem = self.chat.state.clients.get(client, ""), f"; {error}"
        what = f"the preset {name}" if name else "the parameters of the app"
        self.say(f"the next requests of {client} get {what}{problem}")

    def action_keep(self) -> None:
        requests = self.chat.state.requests
        requests.keep_prompts(not requests.keeps_prompts)
        self.say(
            "the prompts of requests are kept from now on, until the app closes; they are only in memory"
            if requests.keeps_prompts
            else "no prompts are kept any more, and those that were are forgotten"
        )
        self.draw()

    def action_tune(self) -> None:
        one = self._present
        if not self.chat.state.requests.keeps_prompts:
            self.say(NO_PROMPTS)
            return
        client = client_name(one.client) if one is not None else ""
        prompts = [each.prompt for each in self.chat.state.requests.newest_first if client_name(each.client) == client]
        found = [prompt for prompt in reversed(prompts) if prompt is not None]
        if not found:
            self.say(f"no prompt of {client or 'a program'} is kept yet: those that come from now on are")
            return
        from dflash_tui.screens.experiments import RequestsTuneScreen

        self.app.push_screen(RequestsTuneScreen(self.chat, client, found))

    @on(DataTable.RowSelected)
    def _chosen(self, event: DataTable.RowSelected) -> None:
        key = row_key(event)
        one = self._listed.get(key) if key is not None else None
        if one is None:
            return
        if one.record is not None:
            self.app.push_screen(StepsScreen(self.chat, (one.record,)))
        elif one.state == "over":
            self.say(f"no steps: it wrote nothing, or it is not among the newest {Requests.RECORDS}")
        else:
            self.say("its steps can be read when it has ended; F4 in the chat shows the present one")


def _without_model(cells: Sequence[str]) -> tuple[str, ...]:
    """For a narrow screen: it is the same model in each row."""
    return (*cells[:2], *cells[3:])


def _state(one: ServedRequest) -> str:
    if one.state == "waiting":
        return "waits"
    if one.state == "over":
        return one.why
    done, total = one.prefill
    return f"reads {short(done)} of {short(total)}" if done < total else "writes"


class _List(DataTable):
    """Requests, the newest first."""

    HELP = "↑ and ↓ choose a request, Enter shows its steps."
    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "select_cursor", "Steps")]
