"""The command line: options in, an exit code out. Nothing heavy is imported before a command needs it."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import errno
import gc
import io
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dflash_core.clean import encodable, one_line
from dflash_core.demo import DEMO_KINDS, smollm2_draft_path
from dflash_core.drafters.registry import is_named, missing, parts
from dflash_core.errors import MESSAGE, DFlashError, KnobError
from dflash_core.files import check_regular
from dflash_core.fits import CardOptions
from dflash_core.knobs import SPECS, parse_settings
from dflash_core.trace import TraceWriter
from dflash_tui import __version__
from dflash_tui.application import advice, log
from dflash_tui.application.session import LoadRequest
from dflash_tui.application.settings.config import Config, KeyRules, load_config
from dflash_tui.application.settings.presets import Presets, Profile
from dflash_tui.cli.options import BY_NAME, Invocation, build_parser, is_model
from dflash_tui.server.settings import keys_given
from dflash_tui.terminal.hangup import watched
from dflash_tui.terminal.output import MARKS, check_terminal, discard, register_marks, write_err, write_out

DONE, FAILED, INTERRUPTED = 0, 1, 130
ESCAPE_MS = "25"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code."""
    answerable = _mend_streams()
    # How long Textual waits after Esc for the rest of a key. Its default of 100 ms turns a held Alt+K (30/s) into text.
    os.environ.setdefault("ESCDELAY", ESCAPE_MS)
    parser = build_parser()
    try:
        args, unknown = parser.parse_known_args(argv)
        args = _text(args)
        parser = _speaking(parser, args)
        if unknown:
            parser.error(_unknown(unknown))
        if not answerable and args.command not in (None, "serve"):
            return _fail(
                "standard output is closed, and the result would be lost; redirect it to a file or to /dev/null"
            )
        config = _config(parser, args)
        settings = config.settings
        profile = Presets().profile(args.profile) if args.profile else None
        request = LoadRequest(
            settings.target, settings.draft, settings.device, settings.knobs,
            context=args.context if args.context is not None else profile.context if profile else 0,
            card=CardOptions(
                args.activations, args.draft_type, not args.no_tune, args.vram_limit, settings.embedding, args.experts,
                args.reading,
            ),
            kv=settings.kv, resume=args.resume, keep_states=settings.keep_states, states_memory=settings.states_memory,
            chosen=frozenset(name.removeprefix("knobs.") for name in config.origins if name.startswith("knobs.")),
        )  # fmt: skip
        if problem := log.begin(settings.log_level, verbose=args.verbose):
            config = dataclasses.replace(config, problems=(*config.problems, problem))
        if args.command is not None:
            for line in config.problems:
                write_err(f"dflash-tui: {line}")
        log.LOG.info("dflash-tui %s: %s", __version__, args.command or "app")
        if args.command is None or BY_NAME[args.command].models:
            _check_files(config, profile, args.command)
        if profile is not None:
            Presets().used(profile.name)
        # With both outputs redirected, closing the terminal must not end the command; the app needs the terminal.
        with watched((1, 2)), TraceWriter(args.trace) if args.trace else contextlib.nullcontext() as trace:
            watched_request = dataclasses.replace(request, watchers=(trace,) if trace is not None else ())
            code = _dispatch(parser, args, watched_request, config)
        if trace is not None and trace.problem:
            write_err(f"dflash-tui: {trace.problem}")
        sys.stdout.flush()
        return code
    except DFlashError as error:
        return _fail(advice.on_command_line(error))
    except BrokenPipeError:
        # The reader has ended early (`| head`). The buffered rest cannot be written.
        for stream in (sys.stdout, sys.stderr):
            discard(stream)
        return DONE
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT) and not error.filename:
            discard(sys.stdout)
            return _fail("the output is cut off: no space left on its disk; write it to another one")
        remedy = "; check the path" if error.errno in (errno.ENOENT, errno.ENOTDIR) else ""
        return _fail(f"{error.filename}: {error.strerror}{remedy}" if error.filename else error.strerror or str(error))
    except MemoryError:
        return _fail("out of memory; close other programs or use a smaller model")
    except KeyboardInterrupt:
        write_err("\ninterrupted")
        return INTERRUPTED


def _unknown(arguments: Sequence[str]) -> str:
    """The error for arguments that the command does not have; for a parameter or a model it says what to write."""
    for word in arguments:
        name = word.partition("=")[0].lstrip("-").replace("-", "_")
        if word.startswith("--") and any(spec.name == name for spec in SPECS):
            return f"{word}: no option of this name, {name} is a parameter; give it as --set {name}=VALUE"
        if is_model(word):
            return f"{word}: a model is given as --target {shlex.quote(word)}"
    return f"unrecognized arguments: {' '.join(arguments)}"


def _speaking(parser: argparse.ArgumentParser, args: argparse.Namespace) -> argparse.ArgumentParser:
    """The parser of the given command, and of its own command where it has some, so that an error names it."""
    for action in parser._subparsers._group_actions if parser._subparsers is not None else ():
        if isinstance(action.choices, dict) and (name := getattr(args, action.dest, None)) in action.choices:
            return _speaking(action.choices[name], args)
    return parser


def _text(args: argparse.Namespace) -> argparse.Namespace:
    """Arguments that are not UTF-8 become text that can be stored and shown; paths stay as they are."""
    for name, value in vars(args).items():
        if isinstance(value, str):
            setattr(args, name, encodable(value))
        elif isinstance(value, list):
            setattr(args, name, [encodable(one) if isinstance(one, str) else one for one in value])
    return args


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
    unknown = _unknown_kind(args.draft) if args.demo and args.draft and not args.target else None
    target = args.target or args.smollm2 or args.profile or (args.demo and named) or args.command == "inspect"
    for wrong, message in (
        (args.draft and "" in parts(args.draft),
         f"--draft {args.draft}: a plus without a drafter beside it; expected names joined by a plus, as mtp+ngram"),
        (unknown, f"--draft: no drafter '{unknown}'; the demo pair has {', '.join(DEMO_KINDS)}"),
        (args.demo and (args.target or (args.draft and not named)),
         "--demo brings its own target and drafter; leave out --target and --draft FILE, or --demo"),
        (args.smollm2 and (args.demo or args.target),
         "--smollm2 brings its own target; leave out --target and --demo, or --smollm2"),
        (args.draft and not target,
         "--draft needs a --target, the model that it drafts for, or --demo"),
        (args.trace and args.command not in (None, "ask"),
         f"--trace goes with the app and with ask, not with {args.command}"),
        (args.resume and args.command, f"--resume and --continue go with the app, not with {args.command}"),
        (args.attach is not None and args.command, f"--attach goes with the app, not with {args.command}"),
        (args.json and args.command is None, f"--json needs a command: {', '.join(BY_NAME)}"),
    ):  # fmt: skip
        if wrong:
            parser.error(message)
    if args.smollm2:
        from dflash_tui.application.smollm2 import smollm2  # few starts need it

        try:
            args.target, args.draft = smollm2(), args.draft or smollm2_draft_path()
        except DFlashError as error:
            raise SystemExit(_fail(str(error))) from None
    if args.demo or args.target:
        given |= {"target": args.target, "draft": args.draft}
    elif args.draft:
        given |= {"draft": args.draft} if args.profile else {"target": None, "draft": args.draft}
    plain = ("device", "theme", "kv", "embedding")
    given |= {name: value for name in plain if (value := getattr(args, name)) is not None}
    if args.no_mouse:
        given["mouse"] = False
    return load_config(given, profile=profile, key_rules=key_rules)


def _profile(parser: argparse.ArgumentParser, args: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    """The values of a profile, by the names of settings."""
    if not args.profile:
        return "", {}
    if args.command is not None and not BY_NAME[args.command].profile:
        parser.error(f"--profile goes with commands that load a model, not with {args.command}")
    try:
        found = Presets().profile(args.profile)
    except DFlashError as error:
        parser.error(f"--profile: {error}")
    values = {"target": found.target, "draft": found.draft, "kv": found.kv}
    return found.name, values | {f"knobs.{name}": value for name, value in found.changes.items()}


def _dispatch(parser: argparse.ArgumentParser, args: argparse.Namespace, request: LoadRequest, config: Config) -> int:
    if args.command is not None:
        gc.enable()
        return BY_NAME[args.command].run(Invocation(args, request, config, parser.error))
    if args.attach is not None:
        from dflash_tui.application.attach import attaching, server

        if not args.attach:  # which servers answer on the usual ports of this machine
            found = attaching.find()
            page = "\n".join(attaching.lines(found))
            if found:
                write_out(f"{page}\n")
            return DONE if found else _fail(page)
        server.AttachedServer(args.attach)  # refuses what is no address
        key = args.attach_key or next(iter(keys_given()), "")
        request = dataclasses.replace(request, attach=args.attach, attach_key=key, attach_model=args.attach_model)
    check_terminal("the app", "use: dflash-tui ask")
    from dflash_tui.launch import run_app

    return run_app(request, config)


def _is_demos(draft: Path) -> bool:
    """Whether the drafter consists of kinds that work with the demo target."""
    return all(kind in DEMO_KINDS for kind in parts(draft))


def _unknown_kind(draft: Path) -> str | None:
    """The first part that names neither a drafter of the demo target nor, as it seems, a file."""
    words = (part for part in parts(draft) if part not in DEMO_KINDS)
    return next((word for word in words if not (Path(word).exists() or Path(word).suffix or os.sep in word)), None)


def _check_files(config: Config, profile: Profile | None, command: str | None) -> None:
    """Report files that are missing or cannot be read as such before anything is loaded or the screen is used."""
    if profile is not None and config.origins.get("target") == f"profile {profile.name}" and (gone := profile.gone()):
        raise DFlashError(_moved(profile, gone, config))
    for name, path in (("target", config.settings.target), ("draft", config.settings.draft)):
        if path is not None and path.exists() and not path.is_dir():
            check_regular(path)
        if path is None or path.exists() or (config.settings.target is None and _is_demos(path)):
            continue
        from dflash_tui.application.hub import catalogue  # most starts need none

        if name == "target" and catalogue.named(path) is not None:
            if command == "plan":
                continue
            raise DFlashError(f"--target {path}: a pair of the catalogue, not a file; dflash-tui get {path} fetches it")
        lost = str(path) if name == "target" else missing(path)
        if lost is not None:
            origin = config.origins[name]
            named = f"--{name}" if origin == "command line" else f"{origin}: {name}"
            near = catalogue.load_catalogue().near(lost) if name == "target" else ()
            hint = f"did you mean the pair {' or '.join(near)}?" if near else "check the path"
            raise DFlashError(f"{named} {lost}: no such file or folder; {hint}")


def _moved(profile: Profile, gone: Path, config: Config) -> str:
    """The error for a profile whose file is missing: where it was, and where a file of that name is."""
    from dflash_tui.application.hub.walk import of_name, places

    found = of_name(gone.name, places(config.settings.model_folders))
    missing = f"profile {profile.name}: {gone} is not there"
    if found is None:
        return f"{missing}, and no {gone.name} where models are looked for; dflash-tui models lists what there is"
    now = profile.moved(gone, found)
    draft = f" --draft {shlex.quote(str(now.draft))}" if now.draft else ""
    return (
        f"{missing}, but {found} is: /models in the app changes the profile;"
        f" once, --profile {profile.name} --target {shlex.quote(str(now.target))}{draft}"
    )


def _fail(message: str) -> int:
    with contextlib.suppress(OSError):  # the terminal is closed
        write_err(f"dflash-tui: {one_line(message, MESSAGE)}")
    return FAILED


def _mend_streams() -> bool:
    """Closed streams become empty ones; characters that the locale cannot encode are replaced, not an error. Returns
    whether there is a standard output."""
    register_marks()
    answerable = sys.stdout is not None
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - for as long as the process lives
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=MARKS if mode == "w" else "replace")
    return answerable


def key_rules() -> KeyRules:
    """How the app checks the keys of a settings file."""
    from dflash_tui.settings import keys  # imports textual

    return keys
