"""The command line: options in, an exit code out. Nothing heavy is imported before a command needs it."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from dflash_core.demo import demo_draft_path, demo_target_path
from dflash_core.errors import DFlashError, KnobError
from dflash_core.knobs import SPECS, Knobs, parse_settings
from dflash_tui import __version__
from dflash_tui.session import LoadRequest

DONE, FAILED, INTERRUPTED = 0, 1, 130

DESCRIPTION = """\
Chat in the terminal with a Qwen3.5-architecture GGUF model, decoded in this process with a DFlash drafter and
DDTree. Without a command the app opens; without --target it opens on the built-in demo pair."""

EPILOG = f"""\
parameters for --set:
  {", ".join(spec.name for spec in SPECS)}

exit codes:
  0 done, also where a pipe's reader left early; 1 a failure, explained in one line; 2 wrong usage; 130 interrupted"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code."""
    _mend_streams()
    parser = build_parser()
    args = parser.parse_args(argv)
    request = _request(parser, args)
    try:
        _check_files(request)
        code = _dispatch(parser, args, request)
        sys.stdout.flush()
        return code
    except DFlashError as error:
        return _fail(str(error))
    except BrokenPipeError:
        # The reader has what it wanted (`| head`). What is still buffered has nowhere to go.
        for stream in (sys.stdout, sys.stderr):
            _discard(stream)
        return DONE
    except OSError as error:
        return _fail(f"{error.filename}: {error.strerror}" if error.filename else error.strerror or str(error))
    except MemoryError:
        return _fail("out of memory; close other programs or use a smaller model")
    except KeyboardInterrupt:
        sys.stderr.write("\ninterrupted\n")
        return INTERRUPTED


def build_parser() -> argparse.ArgumentParser:
    """The grammar. Global options are understood before and after the command."""
    parser = argparse.ArgumentParser(
        prog="dflash-tui",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"dflash-tui {__version__}")
    _add_global_options(parser)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")

    def command(name: str, help: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=help, description=help, allow_abbrev=False)
        _add_global_options(sub, after_command=True)
        return sub

    ask = command("ask", "answer one prompt on stdout; thinking, progress and figures go to stderr")
    ask.add_argument("text", nargs="*", help="the prompt; without it, or with -, standard input is read")
    ask.add_argument("--system", default="", metavar="TEXT", help="the system message")

    inspect = command("inspect", "what a model file holds, and whether a drafter fits it")
    inspect.add_argument("model", type=_path, nargs="?", metavar="MODEL", help="the file (the demo pair)")

    command("doctor", "check this machine: Python, torch, driver, compiler, memory, folders, terminal")
    return parser


def _add_global_options(parser: argparse.ArgumentParser, *, after_command: bool = False) -> None:
    """Add the options that every command has.

    A subparser writes its defaults over what was read before the command, so after the command absent options leave
    no trace, and --set, which accumulates, has a list of its own.
    """

    def default(value: object) -> object:
        return argparse.SUPPRESS if after_command else value

    add = parser.add_argument
    add("--target", type=_path, default=default(None), metavar="FILE", help="the model: a qwen35 GGUF file")
    add("--draft", type=_path, default=default(None), metavar="FILE", help="its DFlash drafter: a file or folder")
    add("--demo", action="store_true", default=default(False), help="the built-in demo pair (the default)")
    add("--device", choices=("auto", "cpu", "cuda"), default=default("auto"), help="where to decode")
    add(
        "--set",
        dest="set_after" if after_command else "set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="set a parameter; may be repeated",
    )
    add("--json", action="store_true", default=default(False), help="one JSON object on stdout, the rest on stderr")


def _path(text: str) -> Path:
    try:
        return Path(text).expanduser()
    except RuntimeError as error:  # "~name" of a user that does not exist
        raise argparse.ArgumentTypeError(f"{text}: {error}") from None


def _request(parser: argparse.ArgumentParser, args: argparse.Namespace) -> LoadRequest:
    """The checked options. Leaves through `parser.error`, exit code 2, where they contradict each other."""
    settings: dict[str, str] = {}
    for pair in [*args.set, *getattr(args, "set_after", [])]:
        name, equals, value = pair.partition("=")
        if not equals:
            parser.error(f"--set {pair}: expected NAME=VALUE")
        settings[name.strip()] = value
    try:
        knobs = Knobs().replace(**parse_settings(settings))
    except KnobError as error:
        parser.error(f"--set {error}")
    if args.demo and (args.target or args.draft):
        parser.error("--demo brings its own target and drafter; leave out --target and --draft, or --demo")
    if args.draft and not args.target and args.command != "inspect":
        parser.error("--draft needs the --target that it was made for")
    if args.json and args.command is None:
        parser.error("--json needs a command: ask, inspect or doctor")
    return LoadRequest(target=args.target, draft=args.draft, device=args.device, knobs=knobs)


def _dispatch(parser: argparse.ArgumentParser, args: argparse.Namespace, request: LoadRequest) -> int:
    if args.command == "ask":
        from dflash_tui.commands import ask

        prompt = ask.read_prompt(args.text, sys.stdin)
        if not prompt.strip():
            parser.error("ask: no prompt; give it as an argument or on standard input")
        return ask.run(request, prompt, system=args.system, as_json=args.json)
    if args.command == "inspect":
        from dflash_tui.commands import inspect

        if args.model is not None and request.target is not None:
            parser.error("inspect: MODEL and --target name the same thing; give one of them")
        model, draft = args.model or request.target, request.draft
        if model is None:
            model, draft = demo_target_path(), draft or demo_draft_path()
        return inspect.run(model, draft, as_json=args.json)
    if args.command == "doctor":
        from dflash_tui.commands import doctor

        return doctor.run(request, as_json=args.json)
    if not _on_a_terminal():
        raise DFlashError("the app needs a terminal; in a pipe or a script use: dflash-tui ask")
    from dflash_tui.app import run_app

    return run_app(request)


def _on_a_terminal() -> bool:
    """Whether the app can read keys and draw; it draws on stderr, so that stdout stays free."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def _check_files(request: LoadRequest) -> None:
    """Missing files are named before anything is loaded or a screen is taken over."""
    for option, path in (("--target", request.target), ("--draft", request.draft)):
        if path is not None and not path.exists():
            raise DFlashError(f"{option} {path}: no such file or folder")


def _fail(message: str) -> int:
    sys.stderr.write(f"dflash-tui: {message}\n")
    return FAILED


def _mend_streams() -> None:
    """Closed streams become empty ones; bytes or characters that a locale lacks become a mark, not the end."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - for as long as the process lives
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _discard(stream: TextIO) -> None:
    """Point a closed stream at nothing, so that the interpreter's last flush has somewhere to write."""
    try:
        stream.flush()
    except BrokenPipeError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
