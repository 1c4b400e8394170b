"""`replay`: a trace with its figures and no model, or summarized as JSON."""

from __future__ import annotations

from typing import Any

from dflash_core.trace import Trace, read_trace
from dflash_tui.application.replay import reported
from dflash_tui.cli.options import Invocation
from dflash_tui.terminal.output import Notes, check_terminal, write_json


def run(call: Invocation) -> int:
    """Show the trace; returns the exit code. Raises TraceError if it is not a trace."""
    path = call.args.file
    trace = read_trace(path)
    if trace.problem:
        Notes().line(f"note: {trace.problem}")
    if call.args.json:
        write_json(summary(trace))
        return 0
    check_terminal("a replay", "use: dflash-tui replay FILE --json")
    from dflash_tui.launch import run_replay  # imports the whole app

    return run_replay(trace, path)


def summary(trace: Trace) -> dict[str, Any]:
    """The output of `--json`: each turn as `ask --json` reports it, with its prompt, models and time."""
    turns = []
    for record in map(reported, trace.turns):
        start = record.start
        head = {name: getattr(start, name) for name in ("prompt", "system", "created", "target", "draft")}
        turns.append(head | {"ended": record.ended} | (record.report.to_json() if record.report else {}))
    loaded = trace.loaded
    pair = {"title": loaded.title, "context_length": loaded.context_length} if loaded else {}
    return {**pair, "problem": trace.problem, "turns": turns}
