"""Every action of the app in one table: keys, footer, palette and help are made from it."""

from __future__ import annotations

from dataclasses import dataclass

from textual.binding import Binding


@dataclass(frozen=True, slots=True)
class Action:
    """`action` is a method of the chat screen (`action_…`); without one the row is for the help only."""

    id: str
    keys: str
    shown: str
    label: str
    help: str
    action: str = ""
    footer: bool = False


ACTIONS: tuple[Action, ...] = (
    Action("turn.send", "enter", "Enter", "Send", "send the message"),
    Action("prompt.newline", "ctrl+j", "Ctrl+J  Shift+Enter", "New line", "a new line in the message"),
    Action("prompt.history", "up", "Up  Down", "History", "earlier prompts, at the edges of the prompt"),
    Action("turn.stop", "escape", "Esc", "Stop", "stop, keep the text; else close the drawer", "stop", True),
    Action("turn.retry", "ctrl+r", "Ctrl+R", "Retry", "answer again; the earlier answer stays", "retry", True),
    Action("param.think", "ctrl+t", "Ctrl+T", "Think", "thinking on or off for the next turn", "think", True),
    Action("view.params", "f2", "F2", "Params", "parameters of the next turn", "panel('params')", True),
    Action("view.stats", "f3", "F3", "Stats", "speed and acceptance", "panel('stats')", True),
    Action("view.tree", "f4", "F4", "Tree", "candidate tree of the last step", "panel('tree')", True),
    Action("view.memory", "f5", "F5", "Memory", "memory by owner", "panel('memory')", True),
    Action("view.side", "ctrl+b,f12", "Ctrl+B  F12", "Inspector", "show or hide the inspector", "side"),
    Action("view.thinking", "alt+t", "Alt+T", "Thinking text", "open or close the newest thinking", "fold"),
    Action("view.scroll", "pageup", "PgUp  PgDn  End", "Scroll", "scroll; End in an empty prompt follows"),
    Action("turn.copy", "", "", "Copy answer", "copy the last answer", "copy"),
    Action("chat.clear", "", "", "Clear", "begin an empty conversation", "clear"),
    Action("param.reset", "", "", "Reset parameters", "every parameter back to its default", "reset"),
    Action("app.help", "f1", "F1", "Help", "this page", "help", True),
    Action("app.palette", "ctrl+p", "Ctrl+P", "Palette", "every action by name; themes too"),
    Action("app.interrupt", "ctrl+c", "Ctrl+C", "Copy or stop", "copy the selection; else stop the answer"),
    Action("app.quit", "ctrl+q", "Ctrl+Q", "Quit", "quit; asks once while an answer is written", "app.quit"),
)


def bindings() -> list[Binding]:
    """The chat screen's key bindings. Ids are stable, so that keys can be remapped later."""
    return [
        Binding(one.keys, one.action, one.label, id=one.id, show=one.footer)
        for one in ACTIONS
        if one.action and one.keys and not one.action.startswith("app.")
    ]
