"""Parameter changes: checked against the loaded pair, staged for the next turn or applied to the running one."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace

from dflash_core.arch.recommended import NOTHING
from dflash_core.drafting import SHAPES
from dflash_core.errors import DFlashError, KnobError
from dflash_core.knobs import CONTEXT, LIVE, READ_AGAIN, SPEC, SPEC_FORMER, Knobs, Value, described
from dflash_core.limits import Limits
from dflash_core.text.reasoning import Reasoning
from dflash_tui.application.background import aside
from dflash_tui.application.settings.presets import BUILT_IN, Preset, changed
from dflash_tui.chat.controller import Controller
from dflash_tui.chat.gauges import Gauges
from dflash_tui.chat.state import UNKNOWN
from dflash_tui.widgets.flash import Flash, reported
from dflash_tui.widgets.slider import DraftingRow

ANNOUNCED_FROM = 64  # tokens: fewer are read again at once


@dataclass(eq=False)
class Tuning(Controller):
    """The chat screen's actions on parameters. The state's `knobs` are the next turn's, `used` the last one's."""

    _gauges: Gauges
    _limits: Limits = UNKNOWN  # of the last model that was loaded
    _loaded_context: int = 0
    _before: Knobs = Knobs()  # of the turn before the present one
    _auto: Knobs | None = None  # the last parameters under auto that a shape of the tree ended
    _begun: bool = False  # a model has been loaded, and the parameters are the user's from then on

    def __post_init__(self) -> None:
        self._loaded_context = self.state.context

    def set(self, **changes: Value) -> None:
        """Stage changes. Raises KnobError if the loaded pair does not support one, or one has no effect on it."""
        before, knobs = self.state.knobs, self.state.knobs.replace(**changes)
        if self.state.session is not None:
            self.state.limits.check(knobs, changes)
        knobs = self._within(knobs)
        if knobs.thinking != before.thinking:  # other sampling is recommended for it
            usual = self.state.recommended.defaults(before.thinking)
            knobs = self.state.recommended.moved(knobs, usual, {*changes, *self.state.request.chosen})
        self._stage(knobs)
        if changes.keys() & {"drafting", *SPEC_FORMER}:
            self._auto = None
        elif knobs.drafting != before.drafting:
            named = ", ".join(sorted(SHAPES & changes.keys()))
            self._auto = before
            # Without the value, which the next key of a slider changes.
            off = f"drafting {before.drafting} is off: {named} was set"
            self.say(f"{off}; /set drafting=auto lets the program choose again")

    def set_all(self, knobs: Knobs) -> None:
        """Stage a whole set: a preset's, or that of an earlier turn, as far as values go here. Raises KnobError if the
        loaded pair does not support a value; values that have no effect on its drafter stay for another one."""
        if self.state.session is not None:
            self.state.limits.check_possible(self.state.limits.within(knobs)[0], SPEC)
        self._stage(self._within(knobs))

    def _within(self, knobs: Knobs) -> Knobs:
        """The values as far as they go here. Says what is lowered."""
        knobs, notes = self.state.limits.within(knobs)
        for note in notes:
            self.say(note)
        return knobs

    def _stage(self, knobs: Knobs) -> None:
        before, self.state.knobs = self.state.knobs, knobs
        self.show()
        if any(getattr(knobs, name) != getattr(before, name) for name in READ_AGAIN):
            self.tell_reading()

    def tell_reading(self) -> None:
        """Say what the next message reads again because of what was just changed, after the notice that is shown."""
        session, knobs = self.state.session, self.state.knobs
        if session is None or not session.conversation.messages:
            return
        conversation = session.conversation

        async def tell() -> None:
            with suppress(DFlashError):  # the turn itself will say it
                found = await aside(lambda: conversation.reading(knobs))
                if found is not None and found.tokens >= ANNOUNCED_FROM and self.state.knobs == knobs:
                    before = self.screen.query_one(Flash).text
                    again = f"the next message reads about {found.tokens:,} tokens again: {found.why}"
                    self.say(f"{before}; {again}" if "the next turn" in before else again)

        self.screen.run_worker(tell(), group="reading", exclusive=True)

    def show(self) -> None:
        """Show the present parameters in their panel and in the strip."""
        state, panel = self.state, self.inspector.params_panel
        panel.show(state.knobs, state.used, self._limits, (state.context, self._loaded_context), running=state.busy)
        panel.show_presets(self.state.presets.names_for(state.model), self.preset)
        self._gauges.strip()

    @property
    def preset(self) -> str:
        """The preset that the parameters are at; "" for none."""
        return self.state.presets.like(self.state.knobs, self.state.limits if self.state.session is not None else None)

    def when(self, name: str) -> str:
        """When a staged change of `name` takes effect, in words."""
        return "from the next turn" + "; /apply applies it now" * (self.state.busy and name in LIVE)

    @property
    def reasoning(self) -> Reasoning:
        """The levels that the loaded model's template accepts; on and off if that is not known."""
        return self.state.limits.reasoning or Reasoning()

    def think(self, level: str) -> None:
        """Stage a level of thinking: off, on, or one that the template defines. Raises KnobError."""
        reasoning = self.reasoning
        self.set(**reasoning.changes(level))
        found = reasoning.level(self.state.knobs)
        adds = f"; the prompt gets: {adds}" if (adds := reasoning.adds(found)) else ""
        note = self.state.limits.thinking_notes.get(self.state.knobs.thinking)
        self.say(note or f"thinking {found} from the next turn{adds}")

    def think_on(self) -> None:
        """Stage the level after the present one; off follows the last."""
        levels = ("off", *(self.reasoning.levels or ("on",)))
        present = self.reasoning.level(self.state.knobs)
        self.think(levels[(levels.index(present) + 1) % len(levels)] if present in levels else "off")

    def apply(self) -> None:
        """Apply the staged changes to the answer being written; those that it cannot take wait for the next turn."""
        staged = [name for name in SPEC if getattr(self.state.knobs, name) != getattr(self.state.used, name)]
        live = [name for name in staged if name in LIVE]
        running = self.state.turn.running
        if running is None:
            self.say("no answer is being written: changes apply to the next turn")
        elif not staged:
            self.say("no parameter has been changed since this turn began")
        elif why := self.state.missing("change"):
            self.say(why)
        elif not live:
            self.say(f"{', '.join(staged)}: from the next turn only")
        else:
            running.change(self.state.knobs)
            self.state.used = self.state.used.in_mid_turn(self.state.knobs)
            self.show()
            late = [name for name in staged if name not in LIVE]
            rest = f"; {', '.join(late)} from the next turn" if late else ""
            values = ", ".join(described(self.state.knobs, live))
            self.say(f"from the next step: {values}{rest}")

    def use(self, name: str) -> None:
        """Stage a preset. Raises DFlashError if none has that name, or the loaded pair does not support it."""
        preset = self.state.presets[name]
        self.set_all(preset.over(self.state.recommended))
        self.say(f"preset {preset.name} from the next turn" + (f": {preset.about}" if preset.about else ""))

    def chosen(self, name: str) -> None:
        """A preset was chosen in the panel: stage it, or say why that is not possible."""
        with reported(self.say):
            self.use(name)

    def cycle(self) -> None:
        """Stage the preset after the present one, skipping those that the loaded pair does not support."""
        name = self.preset
        for _ in self.state.presets.names_for(self.state.model):
            name = self.state.presets.after(name, self.state.model).name
            try:
                self.use(name)
            except KnobError:
                continue
            return

    def save(self, name: str) -> None:
        """Save the staged parameters as a preset. Raises PresetError."""
        path = self.state.presets.save(Preset(name, changes=changed(self.state.knobs, self.state.recommended)))
        self.show()
        replaced = ", and replaces the program's own" if any(name == one.name for one in BUILT_IN) else ""
        self.say(f"preset {name} is saved in {path}{replaced}")

    def nudge(self, steps: int) -> None:
        row = self.inspector.params_panel.row("drafting")
        assert isinstance(row, DraftingRow)
        row.step_size(steps)
        self.say(f"drafting {row.value} {self.when('drafting')}")

    def moved(self, name: str, value: Value) -> None:
        """A row of the panel was changed: stage its value, or say why that is not possible and reset the row."""
        try:
            if name == CONTEXT.name:
                self.ask_for_context(str(value))
            else:
                self.set(**{name: value})
                self._put_back()
        except KnobError as error:
            self.say(error)
            self.show()

    def _put_back(self) -> None:
        """A slider that ended auto, and stands where it stood before, leaves auto on."""
        knobs, auto = self.state.knobs, self._auto
        if auto is not None and all(getattr(knobs, name) == getattr(auto, name) for name in SHAPES):
            self._auto = None
            self._stage(replace(knobs, drafting=auto.drafting))
            self.say(f"drafting is {auto.drafting} again")

    def reset(self) -> None:
        self._stage(self.state.recommended.applied(Knobs()))
        self.say("every parameter is at its default from the next turn")

    def greedy(self) -> None:
        """Stage greedy decoding; if it is staged already, the sampling that is recommended for the model."""
        found, thinking = self.state.recommended, self.state.knobs.thinking
        if self.state.knobs.temperature:
            self.set(**NOTHING.defaults(thinking))
            self.say("greedy from the next turn: always the likeliest token")
        elif found.defaults(thinking)["temperature"]:
            self.set(**found.defaults(thinking))
            self.say(f"sampling {found.by} from the next turn: {found.words(thinking)}")
        else:
            self.say("decoding is greedy; no sampling is recommended for this model, /set temperature 0.7 draws")

    def turn_begins(self) -> None:
        """A turn has started with the staged values."""
        self._before, self.state.used = self.state.used, self.state.knobs
        self.screen.query_one(Flash).outdated("from the next turn")
        self.show()

    def refused(self) -> None:
        """The turn did not run: the values staged for it are still staged."""
        self.state.used = self._before
        self.show()

    def loaded(self) -> None:
        """A model has been loaded, with the staged context or as much of it as possible."""
        state, session = self.state, self.state.session
        if session is None:
            return
        state.turn.cold = True
        if not self._begun and state.knobs == state.used == Knobs():
            state.knobs = state.used = session.knobs
        before, self._limits, self._begun = self._limits, session.limits, True
        # Its defaults of sampling take the place of those of the model before.
        state.knobs, state.used = (
            state.recommended.moved(knobs, before.recommended.defaults(knobs.thinking), state.request.chosen)
            for knobs in (state.knobs, state.used)
        )
        if session.limits.taken is None and state.context > (has := session.context_length) > 0:
            self.say(f"the context is {has:,}, all that the model was made for, not {state.context:,}")
            state.context = has
        self._loaded_context = state.context
        state.knobs = self._within(state.knobs)
        self.show()

    def ask_for_context(self, requested: str) -> None:
        """Stage another context and say what loads it. Raises KnobError as `set_context`."""
        self.set_context(requested)
        shown = f"{self.state.context:,}" if self.state.context else "as fits"
        self.say(f"context {shown}: /reload loads the model again with it")

    def set_context(self, requested: str) -> None:
        """Stage another context for the next load. Raises KnobError for an invalid one, and for more than the model was
        made for: that would not load, and a profile would keep it."""
        most = self.state.limits.max_context
        try:
            spec = replace(CONTEXT, maximum=most or CONTEXT.maximum)
            self.state.context = int(spec.parse(requested.replace(",", "")))
        except KnobError as error:
            raise KnobError(f"{error}; the model was made for {most:,} positions" if most else str(error)) from None
        self.show()

    def ask_for_cache(self, kv: str) -> None:
        """Stage another cache type for the next load."""
        self.state.kv = kv
        self.say(f"keys and values {kv}: /reload loads the model again with it; the conversation goes on")

    def tell_problems(self) -> None:
        if self.state.presets.problems:
            text = "\n".join(self.state.presets.problems)
            self.screen.notify(text, title="Presets", severity="warning", timeout=10)
            self.state.presets.problems.clear()
