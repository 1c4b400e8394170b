"""`ask`: one prompt, one answer. The answer streams on stdout; thinking, progress and figures go to stderr."""

from __future__ import annotations

import json
import select
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, TextIO

from dflash_core.clean import blank, clean
from dflash_core.errors import ContextError
from dflash_tui.application.amounts import figures
from dflash_tui.application.conversations.tool_messages import result_messages, stored
from dflash_tui.application.mentions import NOT_TEXT, ON_COMMAND_LINE, attached
from dflash_tui.application.new_file import here
from dflash_tui.application.session import LoadRequest
from dflash_tui.application.tools.offered import for_template
from dflash_tui.cli.options import Invocation
from dflash_tui.cli.tools import Unattended, started
from dflash_tui.terminal.hangup import stop_on_interrupt
from dflash_tui.terminal.output import Notes, write_json, write_out

if TYPE_CHECKING:
    from dflash_core.conversation import Turn
    from dflash_core.messages import Message

PIPE_PATIENCE_S = 0.5
MAX_PIPED = 64 * 2**20  # characters: a pipe may be endless


def run(call: Invocation) -> int:
    """Answer the prompt of the command line. Returns the exit code; raises DFlashError."""
    args = call.args
    prompt = read_prompt(args.text, sys.stdin)
    if blank(prompt):
        found = "nothing to read in the prompt" if prompt.strip() else "no prompt"
        beside = " beside the files" if args.file else ""
        call.refuse(f"{found}; give words{beside} as an argument or on standard input")
    prompt += attached(args.file, here(), ON_COMMAND_LINE)  # in the form that the app uses for @ names
    if args.allow and not args.tools:
        call.refuse("--allow goes with --tools")
    with ExitStack() as stack:
        tools = None
        if args.tools:
            notes = Notes(plain=args.plain)
            servers = stack.enter_context(started(call.config.settings.servers))
            for one in servers.connections.values():
                notes.line(f"note: {one.words}")
            tools = Unattended(servers, args.allow, notes)
        return answer(call.request, prompt, system=args.system, as_json=args.json, plain=args.plain, tools=tools)


def read_prompt(words: Sequence[str], stdin: TextIO) -> str:
    """The prompt: the arguments of the command line, then standard input.

    Input is waited for if there are no arguments, or if one of them is "-". Otherwise a pipe is read only if it has
    data at once: many callers leave a pipe open and never write to it. Raises ContextError if the input is too
    long, or not text.
    """
    text = " ".join(word for word in words if word != "-")
    wait = not text or "-" in words
    if stdin.isatty() and "-" not in words:
        return text
    if not wait and not _ready(stdin):
        return text
    piped = stdin.read(MAX_PIPED + 1)
    if len(piped) > MAX_PIPED:
        raise ContextError(f"standard input is longer than {MAX_PIPED:,} characters, which fits no context; shorten it")
    if "\0" in piped:
        raise ContextError(f"standard input {NOT_TEXT}")
    piped = piped.strip("\n")
    return f"{text}\n\n{piped}" if text and piped else text or piped


def _ready(stdin: TextIO) -> bool:
    try:
        return bool(select.select([stdin], [], [], PIPE_PATIENCE_S)[0])
    except (OSError, ValueError):  # closed, or it does not support waiting
        return False


def answer(
    request: LoadRequest,
    prompt: str,
    *,
    system: str = "",
    as_json: bool = False,
    plain: bool = False,
    tools: Unattended | None = None,
) -> int:
    """Load the pair, answer, and report. Returns the exit code; raises DFlashError.

    `plain` is for screen readers: it writes whole lines, announces thinking and answer by name and overwrites
    nothing. `tools`: those that the model may call.
    """
    from dflash_tui.cli.loading import begun_conversation, with_recommended  # imports torch

    notes = Notes(plain=plain)
    engine, conversation = begun_conversation(request, notes, system)
    request, lines = with_recommended(request, engine, "--set temperature=0 decodes greedily")
    for line in lines:
        notes.line(f"note: {line}")
    if tools is not None:
        conversation.tools = for_template(tools.servers.tools)
        if conversation.tools_note:
            notes.line(f"note: {conversation.tools_note}")

    def reading(done: int, total: int) -> None:
        notes.progress("reading the prompt", done / total)

    message: str | Sequence[Message] | None = prompt
    while message is not None:
        turn = conversation.ask(message, request.knobs, on_prefill=reading)
        interrupted = _show_turn(turn, notes, quiet=as_json, lines=plain)
        message = None
        if tools is not None and turn.calls and turn.report is not None and not interrupted:
            in_context = turn.report.stats.prompt_tokens + turn.report.stats.tokens
            with stop_on_interrupt(lambda: None) as stopped:
                results = tools.answered(
                    stored(turn.calls), engine.context_length, in_context, conversation.count, lambda: bool(stopped)
                )
            interrupted = bool(stopped)
            message = result_messages(results) if results is not None else None
    if as_json:
        answered = turn.report.to_json() if turn.report is not None else _nothing(request)
        used = {"drafter": engine.limits.drafter.kind if engine.limits.drafter else None, "kv": str(engine.kv.pair)}
        calls = [
            {"name": call.name, "arguments": json.loads(call.arguments), "outcome": result.outcome, "text": result.text}
            for call, result in (tools.made if tools is not None else ())
        ]
        write_json(answered | used | ({"calls": calls} if tools is not None else {}))
    return 130 if interrupted else 0


def _show_turn(turn: Turn, notes: Notes, *, quiet: bool, lines: bool) -> bool:
    """Stream the turn, then show its figures. `quiet` prints no text (the JSON object has it), `lines` prints whole
    lines. True if the user interrupted it."""
    done = {"thinking": 0, "answer": 0}  # characters that are written

    def show(what: str, text: str, put: Callable[[str], None], *, ended: bool = False) -> None:
        """Write what is new of a text, of which more may come unless it has `ended`."""
        end = text.rfind("\n") + 1 if lines and not ended else len(text)
        new = text[done[what] : end]
        if quiet or not new:
            return
        if lines and not done[what] and new.strip():
            notes.line(f"{what}:")
        done[what] = end
        put(new)

    def write(text: str) -> None:
        notes.end_line()
        write_out(clean(text) if lines else text)
        sys.stdout.flush()

    with stop_on_interrupt(turn.stop) as interrupted:
        try:
            for _ in turn:
                show("thinking", turn.thinking, notes.thinking)
                show("answer", turn.text, write)
        except KeyboardInterrupt:
            turn.close()
    show("thinking", turn.thinking, notes.thinking, ended=True)
    show("answer", turn.text, write, ended=True)  # an interrupted turn releases text that waited for a character's rest
    if turn.text and not turn.text.endswith("\n") and not quiet:
        write("\n")
    if interrupted:
        notes.line("interrupted; the answer is incomplete")
    if turn.report is not None:
        for note in (*(event.summary for event in turn.report.guards), *turn.report.notes):
            notes.line(f"note: {note}")
        notes.line(figures(turn.report))
    return bool(interrupted)


def _nothing(request: LoadRequest) -> dict[str, Any]:
    """The JSON object of a turn that was interrupted before its first token."""
    answer: dict[str, Any] = {"text": "", "thinking": "", "tokens": [], "mode": None, "reason": "no token was drawn"}
    return answer | {"stop": "cancelled", "knobs": request.knobs.to_dict(), "stats": None}
