"""The subcommands: options and functions, one row each. A command's module is imported when the command runs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

from dflash_core.clean import blank
from dflash_core.errors import KnobError
from dflash_core.memory import parse_bytes
from dflash_tui.application.session import LoadRequest
from dflash_tui.application.settings.config import Config
from dflash_tui.terminal.output import check_file

TRACE_HELP = "record every step in a new file, for dflash-tui replay"


@dataclass(frozen=True, slots=True)
class Invocation:
    """One checked command line. `refuse` reports what is wrong with it and exits with code 2."""

    args: argparse.Namespace
    request: LoadRequest
    config: Config
    refuse: Callable[[str], NoReturn]


def _no_options(parser: argparse.ArgumentParser) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Command:
    """A subcommand. `run` returns the exit code and may raise DFlashError; `models`: it needs model files;
    `profile`: it accepts a profile."""

    name: str
    help: str
    run: Callable[[Invocation], int]
    options: Callable[[argparse.ArgumentParser], None] = _no_options
    models: bool = True
    profile: bool = True


def file_path(text: str) -> Path:
    """A path as typed, for argparse's `type`."""
    try:
        return Path(text).expanduser()
    except RuntimeError as error:  # "~name" of a user that does not exist
        raise argparse.ArgumentTypeError(f"{text}: {error}") from None


def memory_size(text: str) -> int:
    """Bytes, as 24GiB, for argparse's `type`."""
    try:
        return parse_bytes(text)
    except KnobError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def at_least_one(text: str) -> int:
    """A count of one or more, for argparse's `type`."""
    try:
        count = int(text)
    except ValueError:
        count = 0
    if count < 1:
        raise argparse.ArgumentTypeError(f"{text}: expected a whole number from 1")
    return count


def _ask_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("text", nargs="*", help="the prompt; without it, or with -, standard input is read")
    parser.add_argument("--system", default="", metavar="TEXT", help="the system message")
    parser.add_argument(
        "--file",
        action="append",
        default=[],
        metavar="FILE",
        help="send a text file along; may be repeated",
    )
    parser.add_argument("--plain", action="store_true", help="whole lines, no control codes: for screen readers")
    parser.add_argument("--trace", type=file_path, default=argparse.SUPPRESS, metavar="FILE", help=TRACE_HELP)


def _ask(call: Invocation) -> int:
    from dflash_tui.cli import ask

    prompt = ask.read_prompt(call.args.text, sys.stdin)
    if blank(prompt):
        found = "nothing to read in the prompt" if prompt.strip() else "no prompt"
        beside = " beside the files" if call.args.file else ""
        call.refuse(f"{found}; give words{beside} as an argument or on standard input")
    prompt = ask.with_files(prompt, call.args.file)
    return ask.run(call.request, prompt, system=call.args.system, as_json=call.args.json, plain=call.args.plain)


def _replay_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=file_path, metavar="FILE", help="what --trace has written")


def _replay(call: Invocation) -> int:
    from dflash_tui.cli import replay

    return replay.run(call.args.file, as_json=call.args.json)


def _sweep_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("axes", nargs="+", metavar="NAME=VALUES", help="one or two parameters: budget=4,15,22 or 4..63 or 4..63:8")
    add("--prompt", metavar="TEXT", help="the prompt to measure on")
    add("--prompts", type=file_path, metavar="FILE", help="prompts: HumanEval, GSM8K, MATH-500, MT-bench, JSONL, text")
    add("--samples", type=at_least_one, metavar="N", help="how many of them, drawn with seed 42 (10)")
    add("--repeats", type=at_least_one, metavar="N", help="runs of each setting on each prompt")
    add("--out", type=file_path, action="append", default=[], metavar="FILE", help="write .json, .csv, .png or .svg")


def _sweep(call: Invocation) -> int:
    from dflash_tui.cli import sweep

    args = call.args
    if (args.prompt is None) == (args.prompts is None):
        call.refuse("sweep: give the prompt, --prompt TEXT, or a file of them, --prompts FILE")
    if args.prompt is not None and not args.prompt.strip():
        call.refuse("sweep: the prompt is empty")
    if args.samples is not None and args.prompts is None:
        call.refuse("sweep: --samples draws from a file of prompts: give it, --prompts FILE")
    job = sweep.Job(args.axes, args.prompt, args.prompts, args.samples or 10, args.repeats, args.out)
    return sweep.run(call.request, job, as_json=args.json)


def _conversations_options(parser: argparse.ArgumentParser) -> None:
    does = parser.add_subparsers(dest="does", metavar="ACTION", required=True)

    def action(name: str, help: str) -> Callable[..., argparse.Action]:
        sub = does.add_parser(name, help=help, description=help, allow_abbrev=False)
        sub.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="one JSON object on stdout")
        return sub.add_argument

    add = action("list", "every conversation, the last changed first")
    add("search", nargs="*", metavar="WORD", help="only those that have all these words")
    add = action("export", "write a conversation to a file, or to stdout")
    add("name", metavar="ID", help="the beginning of its id, as list shows it; all of them: all")
    add("--as", dest="kind", choices=("md", "json", "svg"), help="Markdown, JSON (complete, for import), or a picture")
    add("--output", "-o", type=file_path, metavar="FILE", help="the file; its ending sets the format too")
    add = action("import", "import the conversations of a JSON export")
    add("files", nargs="+", type=file_path, metavar="FILE")
    add = action("delete", "delete conversations for good")
    add("names", nargs="+", metavar="ID", help="the beginning of the id of each, as list shows it")


def _conversations(call: Invocation) -> int:
    from dflash_tui.cli import conversations

    return conversations.run(call.args)


def _inspect_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=file_path, nargs="?", metavar="MODEL", help="the file (the demo pair)")


def _inspect(call: Invocation) -> int:
    from dflash_tui.cli import inspect

    named, request = call.args.model, call.request
    if named is not None and call.args.target is not None:
        call.refuse("inspect: MODEL and --target name the same thing; give one of them")
    # A configured drafter belongs to the configured target, not to a file named here.
    meant = replace(request, target=named, draft=call.args.draft) if named else request
    return inspect.run(*meant.files, as_json=call.args.json)


def _plan_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--memory", type=memory_size, default=0, metavar="SIZE", help="plan for a card of this size, such as 24GiB"
    )


def _plan(call: Invocation) -> int:
    from dflash_tui.cli import plan

    return plan.run(call.request, call.args.memory, as_json=call.args.json)


def _states_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what", nargs="?", choices=("show", "clear"), default="show", help="how many and how large, or delete"
    )


def _states(call: Invocation) -> int:
    from dflash_tui.cli import states

    return states.run(clear=call.args.what == "clear", as_json=call.args.json)


def _doctor(call: Invocation) -> int:
    from dflash_tui.cli import doctor

    return doctor.run(as_json=call.args.json)


def _models(call: Invocation) -> int:
    from dflash_tui.cli import models

    return models.run(call.config.settings, as_json=call.args.json)


def _get_options(parser: argparse.ArgumentParser) -> None:
    names = "of a pair, as dflash-tui models lists them; OWNER/NAME lists a repository, OWNER/NAME:QUANT takes a file"
    parser.add_argument("name", metavar="NAME", help=names)
    parser.add_argument("--to", type=file_path, metavar="DIR", help="where the files go (the data folder)")
    parser.add_argument("--yes", action="store_true", help="fetch without asking")


def _get(call: Invocation) -> int:
    from dflash_tui.cli import models

    return models.get(call.args.name, call.args.to, yes=call.args.yes)


def _config_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", nargs="?", choices=("show", "path"), default="show", help="settings, or their files")
    parser.add_argument("--origin", action="store_true", help="say where each setting came from")


def _config(call: Invocation) -> int:
    from dflash_tui.cli import config

    if call.args.what == "path":
        return config.paths(as_json=call.args.json)
    return config.show(call.config, origin=call.args.origin, as_json=call.args.json)


def _contexts(text: str) -> tuple[int, ...]:
    found = [int(part) if part.isdigit() else 0 for part in text.split(",")]
    if not all(200 < one <= 1_048_576 for one in found):
        raise argparse.ArgumentTypeError(f"found {text}, expected positions by commas, such as 32768,131072")
    return tuple(found)


def _bench_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    kinds = ("modes", "kernels", "start")
    add(
        "what", nargs="?", choices=kinds, default="modes", help="modes, the kernels' ladder, or how fast the app starts"
    )
    add("--prompts", type=file_path, metavar="FILE", help="a prompt set: HumanEval, GSM8K, MATH, MT-bench, JSON lines")
    add("--samples", type=int, metavar="N", help="prompts drawn from it (10)")
    add(
        "--against", type=file_path, metavar="FILE", help="another drafter of --target, compared with --draft by prompt"
    )
    add("--repeats", type=int, metavar="N", help="runs of each")
    sizes = "27b, 35b-a3b, 8b or 4b"
    add("--synthetic", metavar="SIZE", help=f"step times of generated files with the shapes of a real model: {sizes}")
    add("--folder", type=file_path, metavar="DIR", help="folder of the synthetic files")
    add(
        "--accept-trace", metavar="AL", help="force this acceptance length, or lengths step by step, while timing steps"
    )
    add("--contexts", type=_contexts, default=(), metavar="N,..", help="context lengths of step times (32768)")
    add("--steps", action="store_true", help="step times of --target and --draft")
    add("--out", type=file_path, metavar="FILE", help="write everything measured as JSON")
    add("--share", type=file_path, metavar="FILE", help="step times as JSON without any text, path or host name")
    add("--ui", action="store_true", help="what the app costs the decoder, and the lag of its loop")
    add("--rounds", type=int, default=7, metavar="N", help="turns per prompt in each arm of --ui, or starts (7)")


def _bench(call: Invocation) -> int:
    args = call.args
    for name in ("rounds", "samples", "repeats"):
        value = getattr(args, name)
        if value is not None and value < 1:
            call.refuse(f"bench: --{name} {value}: expected 1 or more")
    if args.ui or args.what != "modes":
        others = (
            "prompts",
            "samples",
            "against",
            "repeats",
            "synthetic",
            "folder",
            "accept_trace",
            "steps",
            "share",
            "contexts",
        )
        for name in [one for one in others if getattr(args, one)]:
            call.refuse(f"bench: --{name.replace('_', '-')} goes with modes and step times alone; leave it out")
    if args.samples is not None and args.prompts is None:
        call.refuse("bench: --samples draws from a file of prompts: give it, --prompts FILE")
    for path in filter(None, (args.out, args.share)):
        check_file(path)  # measuring takes minutes
    if args.ui:
        from dflash_tui.cli import ui_run

        return ui_run.run(call.request, rounds=args.rounds, out=args.out, as_json=args.json)
    if args.what == "start":
        from dflash_tui.cli import start_run

        return start_run.run(call.request, rounds=args.rounds, out=args.out, as_json=args.json)
    from dflash_tui.cli import bench

    if args.what == "kernels":
        return bench.kernels(out=args.out, as_json=args.json)
    job = bench.Job(
        args.prompts, args.samples, args.repeats, args.synthetic, args.folder, args.accept_trace, args.steps, args.out,
        args.share, args.against, args.contexts,
    )  # fmt: skip
    return bench.run(call.request, job, as_json=args.json)


COMMANDS: tuple[Command, ...] = (
    Command("ask", "answer one prompt on stdout; thinking, progress and figures go to stderr", _ask, _ask_options),
    Command("sweep", "try settings against each other: speed, acceptance, step time", _sweep, _sweep_options),
    Command(
        "conversations",
        "list, export, import, delete conversations",
        _conversations,
        _conversations_options,
        models=False,
        profile=False,
    ),
    Command(
        "replay",
        "show a trace with its figures, without a model; --json sums it up",
        _replay,
        _replay_options,
        models=False,
        profile=False,
    ),
    Command(
        "inspect", "what a model file contains, and whether a drafter fits it", _inspect, _inspect_options, models=False
    ),
    Command("plan", "how much memory a pair needs, and what fits, before anything is loaded", _plan, _plan_options),
    Command(
        "states",
        "states of conversations on disk (keep_states): how many and how large; clear deletes them",
        _states,
        _states_options,
        models=False,
        profile=False,
    ),
    Command(
        "doctor",
        "check this machine: Python, torch, driver, compiler, memory, folders",
        _doctor,
        _no_options,
        models=False,
    ),
    Command(
        "models",
        "models on this machine, their drafters, and what can be fetched",
        _models,
        models=False,
        profile=False,
    ),
    Command(
        "get", "fetch a pair of the catalogue, sizes and licence first", _get, _get_options, models=False, profile=False
    ),
    Command("config", "the settings in effect and where each came from", _config, _config_options, models=False),
    Command("bench", "measure: modes side by side, step times, kernels, the app's cost", _bench, _bench_options),
)
