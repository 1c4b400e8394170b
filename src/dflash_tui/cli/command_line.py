"""The command line: options in, an exit code out. Nothing heavy is imported before a command needs it."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import gc
import io
import os
import re
import shlex
import sys
import textwrap
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from dflash_core.cache_types import KV_HELP, checked
from dflash_core.clean import encodable, one_line
from dflash_core.demo import DEMO_KINDS
from dflash_core.drafters.registry import is_named, missing, parts
from dflash_core.errors import MESSAGE, DFlashError, KnobError
from dflash_core.files import check_regular
from dflash_core.knobs import CONTEXT, SPECS, parse_settings
from dflash_tui import __version__
from dflash_tui.application import log
from dflash_tui.application.session import LAST, LISTED, LoadRequest
from dflash_tui.application.settings.config import Config, load_config
from dflash_tui.application.settings.presets import Presets, Profile
from dflash_tui.cli.table import COMMANDS, TRACE_HELP, Invocation, file_path, memory_size
from dflash_tui.settings.key_rules import KEY_RULES
from dflash_tui.terminal import marks
from dflash_tui.terminal.hangup import watched
from dflash_tui.terminal.output import discard, write_err

if TYPE_CHECKING:
    from dflash_core.trace import TraceWriter

DONE, FAILED, INTERRUPTED = 0, 1, 130
ESCAPE_MS = "25"

# What argparse says of a word in the place of a command.
_UNKNOWN_COMMAND = re.compile(r"argument COMMAND: invalid choice: '(?P<word>[^']+)'")

DESCRIPTION = """\
Chat in the terminal with a GGUF model of the Qwen3 or Qwen3.5 architectures,
dense or with experts, decoded in this process with a drafter (DFlash, DFlash 2,
DSpark, MTP or the text itself) and DDTree. Without a command the app opens.
Without --target it takes the model that the settings name. If they name none,
the first start of the app asks which; all else takes the built-in demo pair."""

EPILOG = f"""\
parameters for --set:
{textwrap.fill(", ".join(spec.name for spec in SPECS), 78, initial_indent="  ", subsequent_indent="  ")}

exit codes:
  0 done, also where a pipe's reader left early; 1 a failure, explained in one
  line; 2 wrong usage; 130 interrupted"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code."""
    _mend_streams()
    # How long Textual waits after Esc for the rest of a key. Its default of 100 ms turns a held Alt+K (30/s) into text.
    os.environ.setdefault("ESCDELAY", ESCAPE_MS)
    parser = build_parser()
    args = _text(parser.parse_args(argv))
    parser = _speaking(parser, args)
    config = _config(parser, args)
    settings = config.settings
    profile = Presets().profile(args.profile) if args.profile else None
    request = LoadRequest(
        settings.target,
        settings.draft,
        settings.device,
        settings.knobs,
        context=args.context if args.context is not None else profile.context if profile else 0,
        activations=args.activations,
        reading=args.reading,
        draft_type=args.draft_type,
        vram_limit=args.vram_limit,
        embedding=settings.embedding,
        kv=settings.kv,
        tune=not args.no_tune,
        resume=args.resume,
        keep_states=settings.keep_states,
        states_memory=settings.states_memory,
    )
    problem = log.begin(settings.log_level, verbose=args.verbose)
    config = dataclasses.replace(config, problems=(*config.problems, *([problem] if problem else ())))
    try:
        if args.command is not None:
            for line in config.problems:
                write_err(f"dflash-tui: {line}")
        log.LOG.info("dflash-tui %s: %s", __version__, args.command or "app")
        if args.command not in [one.name for one in COMMANDS if not one.models]:
            _check_files(config, profile, args.command)
        if profile is not None:
            Presets().used(profile.name)
        # With both outputs redirected, closing the terminal must not end the command; the app needs the terminal.
        with watched((1, 2)), _tracing(args.trace) as trace:
            asked = request if trace is None else dataclasses.replace(request, watchers=(trace,))
            code = _dispatch(parser, args, asked, config)
        if trace is not None and trace.problem:
            write_err(f"dflash-tui: {trace.problem}")
        sys.stdout.flush()
        return code
    except DFlashError as error:
        from dflash_tui.application import advice

        return _fail(advice.on_command_line(error))
    except BrokenPipeError:
        # The reader has ended early (`| head`). The buffered rest cannot be written.
        for stream in (sys.stdout, sys.stderr):
            discard(stream)
        return DONE
    except OSError as error:
        return _fail(f"{error.filename}: {error.strerror}" if error.filename else error.strerror or str(error))
    except MemoryError:
        return _fail("out of memory; close other programs or use a smaller model")
    except KeyboardInterrupt:
        write_err("\ninterrupted")
        return INTERRUPTED


class _Parser(argparse.ArgumentParser):
    """Its errors may quote file names, because a shell expands `*` to the names in a folder."""

    def error(self, message: str) -> NoReturn:
        if found := _UNKNOWN_COMMAND.match(message):
            word = found["word"]
            if word.endswith(".gguf") or os.path.lexists(word):
                message = f"{word} is no command; to open a model: dflash-tui --target {shlex.quote(word)}"
        # Without the usage, which is longer than the message and hides it.
        hint = "" if "; known: " in message else f"; {self.prog} --help shows what is possible"
        self.exit(2, f"{self.prog}: {one_line(message, MESSAGE)}{hint}\n")


def build_parser() -> argparse.ArgumentParser:
    """The syntax. Global options are accepted before and after the command."""
    parser = _Parser(
        prog="dflash-tui",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"dflash-tui {__version__}")
    parser.add_argument("--trace", type=file_path, metavar="FILE", help=TRACE_HELP)
    parser.add_argument("--theme", metavar="NAME", help="the app's colours")
    parser.add_argument(
        "--resume", default="", nargs="?", const=LISTED, metavar="ID",
        help="continue a conversation: an id's beginning; alone, the list of all",
    )  # fmt: skip
    parser.add_argument(
        "--continue", dest="resume", action="store_const", const=LAST, help="continue the last conversation"
    )
    parser.add_argument("--no-mouse", action="store_true", help="leave the mouse to the terminal")
    _add_global_options(parser)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")

    # Made once: the checks of each option take most of the time of building a parser.
    after = _Parser(add_help=False, allow_abbrev=False)
    _add_global_options(after, after_command=True)
    for one in COMMANDS:
        sub = commands.add_parser(one.name, help=one.help, description=one.help, allow_abbrev=False, parents=[after])
        one.options(sub)
    return parser


def _speaking(parser: argparse.ArgumentParser, args: argparse.Namespace) -> argparse.ArgumentParser:
    """The parser of the given command, so that an error names it."""
    for action in parser._subparsers._group_actions if parser._subparsers is not None else ():
        if isinstance(action.choices, dict) and args.command in action.choices:
            found = action.choices[args.command]
            assert isinstance(found, argparse.ArgumentParser)
            return found
    return parser


def _text(args: argparse.Namespace) -> argparse.Namespace:
    """Arguments that are not UTF-8 become text that can be stored and shown; paths stay as they are."""
    for name, value in vars(args).items():
        if isinstance(value, str):
            setattr(args, name, encodable(value))
        elif isinstance(value, list):
            setattr(args, name, [encodable(one) if isinstance(one, str) else one for one in value])
    return args


def _add_global_options(parser: argparse.ArgumentParser, *, after_command: bool = False) -> None:
    """Add the options that every command has.

    A subparser overwrites values read before the command with its defaults. So absent options after the command set
    nothing, and --set, which accumulates, has a separate list.
    """

    def default(value: object) -> object:
        return argparse.SUPPRESS if after_command else value

    add = parser.add_argument
    add("--target", type=file_path, default=default(None), metavar="FILE", help="the model: a GGUF file")
    add(
        "--draft",
        type=file_path,
        action=Joined,
        default=default(None),
        metavar="FILE",
        help="its drafter: a file or folder of DFlash, DFlash 2, DSpark or MTP, or mtp or text; repeated: several",
    )
    add("--profile", default=default(""), metavar="NAME", help="a target, its drafter and settings, by a name")
    add("--demo", action="store_true", default=default(False), help="the built-in demo pair")
    add("--device", choices=("auto", "cpu", "cuda"), default=default(None), help="where to decode")
    add(
        "--set",
        dest="set_after" if after_command else "set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="set a parameter; may be repeated",
    )
    add(
        "--activations",
        choices=("int8", "mixed", "f16"),
        default=default("int8"),
        help="on a GPU: int8; mixed, more precise where it matters and a little slower; f16, exact and slower",
    )
    add(
        "--reading",
        choices=("auto", "passes"),
        default=default("auto"),
        help="on a GPU: passes reads prompts as answers are decoded: slower, but an answer then does not depend on "
        "what was read before it",
    )
    add("--draft-type", choices=("q8_0", "q4_0"), default=default(""), help="on a GPU: quantize the drafter further")
    add(
        "--embedding",
        choices=("card", "host"),
        default=default(None),
        help="on a GPU: keep the token embedding there (card), or in main memory, which frees its bytes (host)",
    )
    add("--no-tune", action="store_true", default=default(False), help="on a GPU: no timing of passes at a first load")
    add(
        "--vram-limit",
        type=memory_size,
        default=default(0),
        metavar="SIZE",
        help="on a GPU: use no more memory than a card of this size has, such as 24GiB",
    )
    add("--context", type=_context, default=default(None), metavar="N", help=f"{CONTEXT.help} ({CONTEXT.default})")
    add(
        "--kv", type=_cache_type, default=default(None), metavar="TYPE", help=f"the cache of keys and values: {KV_HELP}"
    )
    add("--verbose", action="store_true", default=default(False), help="show the log on stderr too")
    add("--json", action="store_true", default=default(False), help="one JSON object on stdout, the rest on stderr")


def _context(text: str) -> int:
    try:
        return int(CONTEXT.parse(text))
    except KnobError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


class Joined(argparse.Action):
    """An option that may be repeated: its paths are joined by "+", which may also be typed."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        before = getattr(namespace, self.dest, None)
        setattr(namespace, self.dest, values if before is None else Path(f"{before}+{values}"))


def _cache_type(text: str) -> str:
    try:
        return checked(text)
    except KnobError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _config(parser: argparse.ArgumentParser, args: argparse.Namespace) -> Config:
    """The settings; the command line has priority. Exits through `parser.error`, code 2, if options
    contradict each other."""
    pairs: dict[str, str] = {}
    for pair in [*args.set, *getattr(args, "set_after", [])]:
        name, equals, value = pair.partition("=")
        if not equals:
            parser.error(f"--set {pair}: expected NAME=VALUE")
        pairs[name.strip()] = value
    try:
        given: dict[str, Any] = {f"knobs.{name}": value for name, value in parse_settings(pairs).items()}
    except KnobError as error:
        parser.error(f"--set: {error}")
    profile = _profile(parser, args)
    named = args.draft is not None and (is_named(args.draft) or (args.demo and _is_demos(args.draft)))
    if args.demo and not args.target and args.draft and (unknown := _unknown_kind(args.draft)):
        parser.error(f"--draft: no drafter '{unknown}'; the demo pair has {', '.join(DEMO_KINDS)}")
    if args.demo and (args.target or (args.draft and not named)):
        parser.error("--demo brings its own target and drafter; leave out --target and --draft FILE, or --demo")
    if args.draft and not (args.target or args.profile or (args.demo and named)) and args.command != "inspect":
        parser.error("--draft needs the --target that it was made for, or that it is to draft for")
    if args.trace and args.command not in (None, "ask"):
        parser.error(f"--trace goes with the app and with ask, not with {args.command}")
    if args.resume and args.command is not None:
        parser.error(f"--resume and --continue go with the app, not with {args.command}")
    if args.json and args.command is None:
        parser.error(f"--json needs a command: {', '.join(one.name for one in COMMANDS)}")
    if args.demo or args.target:
        given |= {"target": args.target, "draft": args.draft}
    elif args.draft:
        given |= {"draft": args.draft} if args.profile else {"target": None, "draft": args.draft}
    plain = (("device", args.device), ("theme", args.theme), ("kv", args.kv), ("embedding", args.embedding))
    given |= {name: value for name, value in plain if value is not None}
    if args.no_mouse:
        given["mouse"] = False
    return load_config(given, profile=profile, key_rules=KEY_RULES)


def _profile(parser: argparse.ArgumentParser, args: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    """The values of a profile, by the names of settings."""
    if not args.profile:
        return "", {}
    if args.command in [one.name for one in COMMANDS if not one.profile]:
        parser.error(f"--profile goes with commands that load a model, not with {args.command}")
    try:
        found = Presets().profile(args.profile)
    except DFlashError as error:
        parser.error(f"--profile: {error}")
    values = {"target": found.target, "draft": found.draft, "kv": found.kv}
    return found.name, values | {f"knobs.{name}": value for name, value in found.changes.items()}


def _dispatch(parser: argparse.ArgumentParser, args: argparse.Namespace, request: LoadRequest, config: Config) -> int:
    for command in COMMANDS:
        if command.name == args.command:
            gc.enable()
            return command.run(Invocation(args, request, config, parser.error))
    if not _on_a_terminal():
        raise DFlashError("the app needs a terminal; in a pipe or a script use: dflash-tui ask")
    from dflash_tui.app import run_app

    return run_app(request, config)


def _tracing(path: Path | None) -> AbstractContextManager[TraceWriter | None]:
    """A trace that is written to `path`; None if there is no path. Raises TraceError."""
    if path is None:
        return contextlib.nullcontext()
    from dflash_core.trace import TraceWriter

    return TraceWriter(path)


def _is_demos(draft: Path) -> bool:
    """Whether the drafter consists of kinds that work with the demo target."""
    return all(kind in DEMO_KINDS for kind in str(draft).split("+"))


def _unknown_kind(draft: Path) -> str | None:
    """The first part that names neither a drafter of the demo target nor, as it seems, a file."""
    words = (part for part in parts(draft) if part not in DEMO_KINDS)
    return next((word for word in words if not (Path(word).exists() or Path(word).suffix or os.sep in word)), None)


def _on_a_terminal() -> bool:
    """Whether the app can read keys and draw; it draws on stderr, so that stdout stays unused."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def _check_files(config: Config, profile: Profile | None, command: str | None) -> None:
    """Report files that are missing or cannot be read as such before anything is loaded or the screen is used."""
    if profile is not None and config.origins.get("target") == f"profile {profile.name}" and (gone := profile.gone()):
        raise DFlashError(_moved(profile, gone, config))
    from dflash_tui.application.hub.catalogue import named as named_pair  # late: most commands need no catalogue

    for name, path in (("target", config.settings.target), ("draft", config.settings.draft)):
        if path is not None and path.exists() and not path.is_dir():
            check_regular(path)
        if path is None or path.exists() or (config.settings.target is None and _is_demos(path)):
            continue
        if name == "target" and named_pair(path) is not None:
            if command == "plan":
                continue
            raise DFlashError(f"--target {path}: a pair of the catalogue, not a file; dflash-tui get {path} fetches it")
        lost = str(path) if name == "target" else missing(path)
        if lost is not None:
            origin = config.origins[name]
            named = f"--{name}" if origin == "command line" else f"{origin}: {name}"
            raise DFlashError(f"{named} {lost}: no such file or folder; check the path")


def _moved(profile: Profile, gone: Path, config: Config) -> str:
    """The error for a profile whose file is missing: where it was, and where a file of that name is."""
    from dflash_tui.application.hub.find import of_name
    from dflash_tui.application.hub.places import places

    found = of_name(gone.name, places(config.settings.model_folders))
    said = f"profile {profile.name}: {gone} is not there"
    if found is None:
        return f"{said}, and no {gone.name} where models are looked for; dflash-tui models lists what there is"
    now = profile.moved(gone, found)
    draft = f" --draft {shlex.quote(str(now.draft))}" if now.draft else ""
    return (
        f"{said}, but {found} is: /models in the app changes the profile;"
        f" once, --profile {profile.name} --target {shlex.quote(str(now.target))}{draft}"
    )


def _fail(message: str) -> int:
    with contextlib.suppress(OSError):  # the terminal is closed
        write_err(f"dflash-tui: {one_line(message, MESSAGE)}")
    return FAILED


def _mend_streams() -> None:
    """Closed streams become empty ones; characters that the locale cannot encode are replaced, not an error."""
    marks.register()
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - for as long as the process lives
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=marks.ERRORS if mode == "w" else "replace")
