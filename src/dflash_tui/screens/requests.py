"""Requests of other programs to the model that the app has loaded."""

from __future__ import annotations

from textual import on

from dflash_tui.application.amounts import rates, short
from dflash_tui.application.requests import Requests, ServedRequest, client_name
from dflash_tui.application.settings.config import ConfigError
from dflash_tui.chat.parts import ChatParts
from dflash_tui.screens.experiments import RequestsTuneScreen
from dflash_tui.screens.lab import RowsScreen
from dflash_tui.screens.steps import StepsScreen
from dflash_tui.text.bars import clip
from dflash_tui.widgets.literal import DataTable, row_key

MAX_NAME, SHORT_NAME = 24, 12
HEADINGS = ("client", "preset", "model", "prompt", "reused", "tokens", "tok/s", "tok/step", "state")
NONE_YET = "No request yet."
STORES_PROMPTS = "Prompts are stored in memory for F8; c deletes them."
NO_PROMPTS = "prompts of programs are stored only if you agree: c stores those that come from now on, only in memory"
OFF = "Nothing is served: /serve in the chat begins."


class RequestsScreen(RowsScreen):
    """The requests, the newest first; the steps of one. A narrow screen leaves out the model, the same in each row."""

    SCOPE = "requests"
    HEADING = "Requests"
    ENTER = ("Steps", "↑ and ↓ choose a request, Enter shows its steps.")
    AUTO_FOCUS = "#requests-list"

    def __init__(self, chat: ChatParts) -> None:
        super().__init__(chat)
        self._listed: dict[str, ServedRequest] = {}

    def draw(self) -> None:
        self.headings = self._fitting(HEADINGS)
        self._listed = {str(one.number): one for one in self.chat.state.requests.newest_first}
        super().draw()

    def words(self) -> str:
        state = self.chat.state
        where = f"Programs use the model at {state.serving}; /serve off ends that." if state.serving else OFF
        if state.watched:
            where = f"What other programs ask of {state.model}, since the app was attached."
        prompts = STORES_PROMPTS if state.requests.keeps_prompts else ""
        return " ".join(filter(None, (where, "" if self._listed else NONE_YET, prompts)))

    def cells(self) -> dict[str, tuple[str, ...]]:
        return {key: self._fitting(self._cells(one)) for key, one in self._listed.items()}

    def _fitting(self, cells: tuple[str, ...]) -> tuple[str, ...]:
        return (*cells[:2], *cells[3:]) if self.has_class("-narrow") else cells

    def _cells(self, one: ServedRequest) -> tuple[str, ...]:
        figures: tuple[str, ...] = ("",) * 5
        followed = self.chat.state.followed
        meter = followed.meter if followed is not None and self.chat.serving.current is one else None
        it = one.report.stats if one.report is not None else meter.stats if meter is not None else None
        if it is not None:
            counts = it.prompt_tokens, it.reused_tokens, it.tokens
            figures = (*map(short, counts), *rates(it.tokens_per_second, it.acceptance_length))
        names = one.client.partition(" ")[0] or "no name", one.preset, one.model
        width = SHORT_NAME if self.has_class("-narrow") else MAX_NAME
        return (*(clip(name, width) for name in names), *figures, _state(one))

    def hint(self, action: str, label: str) -> str:
        """The footer's label of an action. Presets and measurements of a server's requests are not this program's."""
        no = ("preset", "keep", "tune") if self.chat.state.attached else () if self._listed else ("preset", "tune")
        return "" if action in no else super().hint(action, label)

    @property
    def _client(self) -> str:
        """The program whose request is under the cursor; "" if it does not say its name."""
        one = self._listed.get(self.rows.cursor_key or "")
        return client_name(one.client) if one is not None else ""

    def _refused(self) -> bool:
        """Whether the model is on a server; then the user reads so."""
        if attached := self.chat.state.attached:
            self.say(self.chat.state.refusal)
        return attached

    def action_preset(self) -> None:
        if self._refused():
            return
        if not (client := self._client):
            unnamed = "this program does not say its name, so it gets the parameters of the app"
            self.say(unnamed if self._listed else NONE_YET)
            return
        try:
            name = self.chat.serving.next_preset(client)
            problem = ""
        except ConfigError as error:
            name, problem = self.chat.state.clients.get(client, ""), f"; {error}"
        what = f"the preset {name}" if name else "the parameters of the app"
        self.say(f"the next requests of {client} get {what}{problem}")

    def action_keep(self) -> None:
        if self._refused():
            return
        requests = self.chat.state.requests
        requests.keep_prompts(not requests.keeps_prompts)
        self.say(
            "prompts of requests are stored from now on, only in memory, until the app closes"
            if requests.keeps_prompts
            else "prompts are no longer stored, and the stored ones are deleted"
        )
        self.draw()

    def action_tune(self) -> None:
        if self._refused():
            return
        client, requests = self._client, self.chat.state.requests
        prompts = (each.prompt for each in requests.newest_first if client_name(each.client) == client)
        found = [prompt for prompt in prompts if prompt is not None]
        if not requests.keeps_prompts:
            self.say(NO_PROMPTS)
        elif not found:
            self.say(f"no prompt of {client or 'a program'} is stored yet: those that come from now on are")
        else:
            self.app.push_screen(RequestsTuneScreen(self.chat, client, found[::-1]))

    @on(DataTable.RowSelected)
    def _chosen(self, event: DataTable.RowSelected) -> None:
        one = self._listed.get(row_key(event) or "")
        if one is None:
            return
        if one.record is not None:
            self.app.push_screen(StepsScreen(self.chat, (one.record,)))
        elif one.state == "over":
            self.say(f"no steps: it wrote nothing, or it is not among the newest {Requests.RECORDS}")
        else:
            self.say("its steps can be read when it has ended; F4 in the chat shows the present one")


def _state(one: ServedRequest) -> str:
    if one.state != "running":
        return "waits" if one.state == "waiting" else one.why
    done, total = one.prefill
    return f"reads {short(done)} of {short(total)}" if done < total else "writes"
