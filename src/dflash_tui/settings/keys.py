"""Every action of the app in one table, which defines the keys, the footer, the palette and the help."""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cache

from textual.binding import Binding
from textual.keys import REPLACED_KEYS, Keys, key_to_character
from textual.widgets import TextArea

from dflash_core.errors import DFlashError

_NAMES = {"escape": "Esc", "pageup": "PgUp", "pagedown": "PgDn", "comma": ",", "full_stop": ".", "slash": "/"}
_NAMES |= {"up": "↑", "down": "↓", "left": "←", "right": "→"}
_NAMES |= {"left_square_bracket": "[", "right_square_bracket": "]", "question_mark": "?"}


BACK = {
    "steps": "to the chat",
    "experiment": "stop, keep what is done; else close",
    "tools": "to the chat",
    "requests": "to the chat",
    "past": "to where you were",
    "whatif": "stop what runs; else close",
    "chats": "close the search; else the list",
    "models": "show the whole list; again: the chat",
}
"""What Esc does on each page, by the name that ids of its actions begin with."""


@dataclass(frozen=True, slots=True)
class Action:
    """`action` is a method (`action_…`) of the screen of its `scope`; if empty, the row is for the help only.

    `keys` are Textual's names, separated by commas. `slash` names the equivalent command of the prompt; chat only.
    """

    id: str
    keys: str
    label: str
    help: str
    action: str = ""
    footer: bool = False
    slash: str = ""

    @property
    def scope(self) -> str:
        """The page whose name its id begins with, else the chat."""
        page = self.id.partition(".")[0]
        return page if page in BACK else "chat"

    @property
    def shown(self) -> str:
        """The keys as people write them: Ctrl+B  F12."""
        return "  ".join(spelled(key) for key in self.keys.split(",") if key)


def spelled(key: str) -> str:
    """One key: ctrl+b is Ctrl+B, f12 is F12; a single letter stays as it is."""
    *modifiers, last = key.split("+")
    plain = last if len(last) == 1 and not modifiers else last.title()
    return "+".join([*(word.title() for word in modifiers), _NAMES.get(last, plain)])


ACTIONS: tuple[Action, ...] = (
    Action("turn.send", "enter", "Send", "send the message"),
    Action("prompt.newline", "ctrl+j,shift+enter", "New line", "a new line in the message"),
    Action("prompt.history", "up,down", "History", "earlier prompts, at the edges of the prompt"),
    Action("prompt.empty", "ctrl+l", "Empty", "empty the prompt; Ctrl+Z brings the text back", "empty", True),
    Action("prompt.editor", "ctrl+e", "Editor", "write the message in $VISUAL or $EDITOR", "editor"),
    Action("turn.stop", "escape", "Stop", "stop and keep the text; else close what is open", "stop", True),
    Action("turn.answer", "alt+n", "Answer now", "close thinking, begin the answer", "answer_now", True, "answer"),
    Action("param.apply", "alt+a", "Apply now", "apply changed parameters to this answer", "apply", slash="apply"),
    Action("param.preset", "f9", "Next preset", "the next preset, for the next turn", "preset"),
    Action("param.greedy", "alt+g", "Greedy", "greedy, or sampling as recommended", "greedy", slash="greedy"),
    Action("param.budget_less", "alt+j", "Smaller tree", "budget of drafting one less", "nudge(-1)"),
    Action("param.budget_more", "alt+k", "Larger tree", "budget of drafting one more", "nudge(1)"),
    Action("app.download", "ctrl+g", "Download", "show a download; load its model or stop it", "download", True),
    Action("view.params", "f2", "Params", "parameters of the next turn", "panel('params')", True, "params"),
    Action("view.stats", "f3", "Stats", "speed and acceptance", "panel('stats')", True, "stats"),
    Action("lab.tune", "f8", "Tune", "find the fastest setting on your own prompts", "open('tune')", True),
    Action("chat.switch", "ctrl+o", "Chats", "all conversations: open, search, rename", "open('chats')", True, "chats"),
    Action("turn.retry", "ctrl+r", "Retry", "answer again; the earlier answer stays", "retry", True, "retry"),
    Action("view.tree", "f4", "Tree", "candidate tree of the last step", "panel('tree')", True, "tree"),
    Action("view.memory", "f5", "Memory", "memory by component", "panel('memory')", slash="memory"),
    Action("param.think", "ctrl+t", "Think", "thinking on or off for the next turn", "think", True),
    Action(
        "view.steps", "alt+i", "Steps", "a turn step by step: tree, text, confidence", "open('steps')", slash="steps"
    ),
    Action("lab.plain", "", "Plain speed", "time plain decoding, to compare with", "open('plain')", slash="plain"),
    Action("lab.past", "", "Measured before", "tunings and sweeps of this pair", "open('past')", slash="past"),
    Action("lab.whatif", "", "What if", "other budgets, from the last turn", "open('whatif')", slash="whatif"),
    Action("lab.sweep", "", "Sweep", "parameters over ranges, measured", "open('sweep')"),
    Action("lab.ab", "", "A against B", "one setting against another; the tree against the chain", "open('ab')"),
    Action("view.side", "ctrl+b,f12", "Inspector", "show or hide the inspector", "side"),
    Action("view.thinking", "alt+t", "Thinking text", "open or close the newest thinking", "fold"),
    Action("view.scroll", "pageup,pagedown,end", "Scroll", "scroll; End in an empty prompt: newest line"),
    Action("view.prompt", "", "Prompt", "the next prompt, as the model gets it", "open('prompt')", slash="prompt"),
    Action("chat.find", "ctrl+f", "Find", "find words in this conversation; n and N go on", "find", slash="find"),
    Action("turn.copy", "alt+c", "Copy message", "copy the chosen message, or the last answer", "copy", slash="copy"),
    Action("turn.copy_code", "alt+x", "Copy code", "copy the last block of code; again: the one before", "copy_code"),
    Action("turn.edit", "alt+e", "Edit message", "another version of the chosen or last message", "edit", slash="edit"),
    Action("turn.up", "alt+up", "Choose up", "choose the message above", "choose(-1)"),
    Action("turn.down", "alt+down", "Choose down", "choose the message below", "choose(1)"),
    Action("turn.before", "alt+left", "Version before", "the version before, of a message or answer", "version(-1)"),
    Action("turn.after", "alt+right", "Version after", "the version after, of a message or answer", "version(1)"),
    Action("chat.clear", "ctrl+n", "New chat", "an empty conversation; this one stays listed", "clear", slash="clear"),
    Action("chat.continue", "alt+l", "Last chat", "go on with the last conversation", "continue", slash="continue"),
    Action("chat.rename", "", "Rename chat", "another title for this conversation", "rename"),
    Action("chat.export", "", "Export chat", "this conversation as Markdown, JSON or SVG", "export"),
    Action("param.reload", "", "Reload", "load the model again, with another context", "reload"),
    Action("chat.full", "", "Context", "what can be done when the context is full", "open('full')", slash="full"),
    Action("param.reset", "", "Reset parameters", "every parameter back to its default", "reset", slash="reset"),
    Action("app.models", "", "Models", "profiles, models here, models to fetch", "open('models')", slash="models"),
    Action("app.requests", "", "Requests", "what other programs ask this model", "open('requests')", slash="requests"),
    Action("app.tools", "", "Tools", "tools of MCP servers, on and off", "open('tools')"),
    Action("app.tour", "", "Tour", "the parts of the screen in six steps", "open('tour')", slash="tour"),
    Action("app.theme", "", "Theme", "other colours, tried while you choose", "open('themes')"),
    Action("app.notices", "", "Notices", "earlier notices, the newest first", "notices", slash="notices"),
    Action("app.log", "", "Log", "where the log file is", "log", slash="log"),
    Action("app.help", "f1", "Help", "this page", "help", True, "help"),
    Action(
        "app.explain", "question_mark", "Explain", "explain the figures here; in an empty prompt too", "app.explain"
    ),
    Action("app.palette", "ctrl+p", "Palette", "every action by name"),
    Action("app.lines", "j,k", "Lines", "down and up in lists and pages, where letters are not text"),
    Action("app.ends", "g,G", "Ends", "to the first and last line of lists and pages; gg too"),
    Action("app.pages", "ctrl+d,ctrl+u", "Pages", "a page down and up in lists and pages"),
    Action("app.interrupt", "ctrl+c", "Copy or stop", "copy the selection; else stop the answer"),
    Action("steps.before", "left_square_bracket", "Step before", "the step before", "step(-1)"),
    Action("steps.next", "right_square_bracket", "Next step", "the next step", "step(1)"),
    Action("steps.older", "comma", "Older", "the turn before", "turn(-1)", True),
    Action("steps.newer", "full_stop", "Newer", "the turn after", "turn(1)", True),
    Action("steps.view", "v,tab", "View", "tree, text or calibration", "view", True),
    Action("steps.by", "c", "Colour", "mark the text by draft depth or by step", "by", True),
    Action("steps.left_out", "r", "Left out", "candidates outside the tree", "left_out", True),
    Action("steps.taken", "a", "Taken", "only the accepted path", "taken", True),
    Action("steps.all", "s", "All", "calibration over this turn, or the newest 20", "all", True),
    Action("steps.up", "pageup", "Scroll up", "scroll the first view up", "scroll(-1)"),
    Action("steps.down", "pagedown", "Scroll down", "scroll the first view down", "scroll(1)"),
    Action("steps.line_up", "up", "Line up", "scroll the first view a line up", "lines(-1)"),
    Action("steps.line_down", "down", "Line down", "scroll the first view a line down", "lines(1)"),
    Action("steps.export", "x", "Export", "the steps, or the calibration, as JSON or CSV", "export", True),
    Action("experiment.edit", "e", "Edit", "change what is run; Enter starts it", "edit", True),
    Action("experiment.start", "r", "Again", "measure again, from the beginning", "start", True),
    Action("experiment.adopt", "a", "Use best", "the best setting from the next turn", "adopt", True),
    Action("experiment.choose", "enter", "Use", "the setting under the cursor from the next turn"),
    Action("experiment.save", "s", "Save preset", "save the setting as a preset", "save", True),
    Action("experiment.export", "x", "Export", "write JSON, CSV, PNG or SVG", "export", True),
    Action("experiment.past", "h", "Before", "what was measured before", "view('past')", True),
    Action("experiment.tune", "t", "Tune", "the fastest of many settings", "view('tune')"),
    Action("experiment.sweep", "w", "Sweep", "parameters over ranges", "view('sweep')"),
    Action("experiment.ab", "b", "A against B", "a setting against another", "view('ab')"),
    Action("experiment.whatif", "i", "What if", "what other budgets would give", "view('whatif')"),
    Action("requests.preset", "p", "Preset", "the next preset for this program", "preset", True),
    Action("requests.tune", "f8", "Tune", "find the fastest setting on its prompts", "tune", True),
    Action("requests.keep", "c", "Store prompts", "store prompts in memory for F8", "keep", True),
    Action("whatif.exact", "e", "Exact", "run the drafter again for every budget", "exact", True),
    Action("whatif.measure", "m", "Measure", "measure these budgets: a sweep", "measure", True),
    Action("whatif.export", "x", "Export", "write JSON or CSV", "export", True),
    Action("whatif.p_min", "p", "p_min", "the same with the next p_min", "p_min"),
    Action("whatif.drafter", "d", "Drafter", "the next of several drafters", "drafter"),
    Action("whatif.adopt", "a", "Adopt best", "the best budget from the next turn", "adopt", True),
    Action("whatif.choose", "enter", "Adopt", "the budget under the cursor from the next turn"),
    Action("chats.open", "enter", "Open", "go on with the conversation"),
    Action("chats.search", "slash", "Search", "words of titles and messages", "search", True),
    Action("chats.rename", "r", "Rename", "another title", "rename", True),
    Action("chats.export", "x", "Export", "write Markdown, JSON or SVG", "export", True),
    Action("chats.delete", "d,delete", "Delete", "delete it; asks first", "delete", True),
    Action("chats.undo", "u", "Undo", "bring back what was deleted last", "undo", True),
    Action("chats.new", "n", "New", "an empty conversation", "new", True),
    Action("models.load", "enter", "Load", "load the model under the cursor; a download asks first"),
    Action("models.drafter", "left,right", "Drafter", "choose another drafter for the model"),
    Action("models.download", "ctrl+g", "Download", "show the running or finished download", "download"),
    Action("models.plan", "f5", "Memory", "memory of the model; settings that fit", "plan", True),
    Action("models.save", "ctrl+s", "Save", "save model and parameters as a profile", "save", True),
    Action("models.rename", "ctrl+r", "Rename", "another name for the profile", "rename", True),
    Action("models.delete", "delete", "Delete", "delete the profile; Ctrl+Z brings it back", "delete", True),
    Action("models.undo", "ctrl+z", "Undo", "bring back the profile", "undo", True),
    *(Action(f"{page}.help", "f1", "Help", "these keys", "help", True) for page in BACK),
    *(Action(f"{page}.back", "escape", "Back", back, "back", True) for page, back in BACK.items()),
    Action("app.quit", "ctrl+q", "Quit", "quit; asks once while an answer is written", "app.quit", slash="quit"),
)


MOVES: Mapping[str, tuple[str, ...]] = {
    "j": ("down",), "k": ("up",), "g": ("ctrl+home", "home"), "G": ("ctrl+end", "end"),
    "ctrl+d": ("pagedown",), "ctrl+u": ("pageup",),
}  # fmt: skip
"""Keys of lists and pages, and the keys that they stand for: the first one that means something there."""
FIXED = frozenset(one.id for one in ACTIONS if not one.action)
"""Keys that a widget handles itself, and the keys of the palette."""
_KNOWN = {one.id: one for one in ACTIONS}
_EDITING = {key for one in TextArea.BINDINGS if isinstance(one, Binding) for key in one.key.split(",")}
_EDITING -= {key for one in ACTIONS if one.scope == "chat" and one.action for key in one.keys.split(",")}
_NOWHERE = "no_key_for_"
_MODIFIERS = frozenset(("ctrl", "alt", "shift", "super", "meta"))
_NAMED = frozenset(key.value for key in Keys if key.value.isalnum()) | frozenset(REPLACED_KEYS)


def checked(id: str, keys: str) -> str:
    """A user's keys for an action, normalized, separated by commas; "" removes its keys. Raises DFlashError."""
    names = list(dict.fromkeys(key.strip().lower() for key in keys.split(",") if key.strip()))
    if id not in _KNOWN:
        near = difflib.get_close_matches(id, list(_KNOWN), n=1)
        raise DFlashError("no such action" + (f"; did you mean {near[0]}?" if near else ""))
    if id in FIXED:
        raise DFlashError("its keys are fixed")
    for key in names:
        if not _is_key(key):
            raise DFlashError(f"{key!r} is no key; write it as ctrl+r, f10 or alt+up")
        if key in ("ctrl+h", "ctrl+i", "ctrl+m"):
            raise DFlashError(f"terminals send {key} as another key; choose one that arrives")
        if _KNOWN[id].scope == "chat" and (key in _EDITING or len(key) == 1):
            raise DFlashError(f"the prompt needs {key} for typing; choose another key")
    return ",".join(names)


def _is_key(key: str) -> bool:
    *modifiers, last = key.split("+")
    named = last.isalnum() if len(last) == 1 else last in _NAMED or key_to_character(last) is not None
    return named and _MODIFIERS.issuperset(modifiers)


def clashing(keymap: Mapping[str, str]) -> dict[str, str]:
    """A user's checked keys that clash with another action of the same screen: the reason by id."""
    left, found = dict(keymap), dict[str, str]()
    while clash := _clash(left):
        found[clash[0]] = clash[1]
        del left[clash[0]]  # its default keys are restored, and may now clash with another entry
    return found


def _clash(keymap: Mapping[str, str]) -> tuple[str, str] | None:
    owners: dict[tuple[str, str], str] = {}
    for one in sorted(ACTIONS, key=lambda one: one.id in keymap):
        for key in filter(None, keymap.get(one.id, one.keys).split(",")):
            owner = owners.setdefault((one.scope, key), one.id)
            if owner != one.id and owner in keymap:
                return one.id, f"{key} was given to {owner} too; that one keeps it"
            if owner != one.id:
                return one.id, f"{key} belongs to {owner}; give that one another key first"
    return None


def with_keys(keymap: Mapping[str, str]) -> tuple[Action, ...]:
    """The actions with a user's checked keys."""
    return tuple(dataclasses.replace(one, keys=keymap.get(one.id, one.keys)) for one in ACTIONS)


def actions_of(app: object) -> Sequence[Action]:
    return getattr(app, "actions", ACTIONS)


def offered(one: Action, without: Set[str]) -> bool:
    """Whether an action has an effect now; `without`: ids of actions, and names of commands, that have none."""
    return one.id not in without and (not one.slash or one.slash not in without)


@cache
def actions_without(without: frozenset[str]) -> frozenset[str]:
    """The actions that have no effect; `without` is that of `offered`."""
    return frozenset(one.action for one in ACTIONS if one.action and not offered(one, without))


def retold(text: str, app: object) -> str:
    """Replace the default keys that a text names by the keys of the same actions in `app`."""
    now: dict[str, str] = {}
    for one, mine in zip(ACTIONS, actions_of(app)):
        if one.keys and one.keys != mine.keys and one.scope == "chat":
            instead = mine.shown.split("  ")[0] or (f"/{one.slash}" if one.slash else f"Ctrl+P {one.label}")
            now |= dict.fromkeys(one.shown.split("  "), instead)
    if not now:
        return text
    return re.sub(rf"(?<![\w+])({'|'.join(map(re.escape, now))})(?!\w)", lambda found: now[found[1]], text)


def nowhere(id: str) -> str:
    """The placeholder key of an action without one, which no terminal sends: Textual remaps only what has a key."""
    return f"{_NOWHERE}{id}"


def is_nowhere(key: str) -> bool:
    return key.startswith(_NOWHERE)


def bindings(scope: str = "chat") -> list[Binding]:
    """The key bindings of one screen. Ids are stable, so that keys can be remapped."""
    return [
        Binding(one.keys or nowhere(one.id), one.action, one.label, id=one.id, show=one.footer)
        for one in ACTIONS
        if one.scope == scope and one.action and not one.action.startswith("app.")
    ]
