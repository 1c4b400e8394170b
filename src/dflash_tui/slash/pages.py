"""Slash commands for conversations, experiments, models and other programs."""

from __future__ import annotations

import shlex
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from dflash_core.errors import DFlashError, KnobError
from dflash_core.files import check_regular
from dflash_core.knobs import SPECS
from dflash_tui.application.attach import attaching
from dflash_tui.application.attach.engines import usual_urls
from dflash_tui.application.attach.server import AttachedServer
from dflash_tui.application.background import aside
from dflash_tui.application.hub.catalogue import load_catalogue
from dflash_tui.chat.parts import ChatParts
from dflash_tui.server.settings import ServerSettings, keys_given
from dflash_tui.text.pages import KINDS
from dflash_tui.widgets.flash import Note

if TYPE_CHECKING:
    from dflash_tui.application.session import SessionLike


def knob_words(host: ChatParts) -> Mapping[str, str]:
    return {spec.name: spec.help for spec in SPECS}


@dataclass(frozen=True, slots=True)
class Slash:
    """`run` gets the chat screen and the rest of the line with its case unchanged. If it raises DFlashError, it has
    done nothing. `words`: the possible first arguments for the completer, and what each means ("": see `help`)."""

    name: str
    usage: str
    help: str
    run: Callable[[ChatParts, str], Awaitable[None]]
    words: Callable[[ChatParts], Mapping[str, str]] = lambda host: {}


def _no_more_words(rest: str) -> None:
    if rest:
        raise DFlashError(f"expected no more words, found: {rest}")


def does(action: str) -> Callable[[ChatParts, str], Awaitable[None]]:
    """A `run` that executes an action of the chat screen, written as in a key binding; it takes no argument."""

    async def run(host: ChatParts, rest: str) -> None:
        _no_more_words(rest)
        await host.screen.run_action(action)

    return run


PORT = 8080
PROFILE = "write /profile NAME, /profile save NAME, /profile rename NAME TO, /profile delete NAME or /profile undo"
ATTACH = "write /attach URL [MODEL]; without a URL it lists the servers of this machine. DFLASH_TUI_API_KEY is the key"

# Conversations


def _answer(host: ChatParts, command: str, outcome: str | Exception) -> None:
    """Says how a command has ended that ran on a worker. If it has failed, it is back in the prompt."""
    if isinstance(outcome, Exception):
        host.sending.give_back(command, outcome)
    else:
        host.say(outcome)


async def _export(host: ChatParts, rest: str) -> None:
    kind, _, path = rest.partition(" ")
    if kind not in KINDS:
        raise DFlashError("write /export md, /export json or /export svg, and a path if you like")
    host.conversation.files.export(kind, path.strip(), None, lambda outcome: _answer(host, f"/export {rest}", outcome))


async def _import(host: ChatParts, rest: str) -> None:
    if not rest:
        raise DFlashError("write /import FILE, a JSON export of conversations")
    host.conversation.files.import_file(rest, lambda outcome: _answer(host, f"/import {rest}", outcome))


async def _rename(host: ChatParts, rest: str) -> None:
    host.say(host.conversation.files.rename(rest))


async def _version(host: ChatParts, rest: str) -> None:
    if rest not in ("", "-", "+"):
        raise DFlashError("write /version - for the one before, /version + for the one after")
    await host.conversation.branching.switch(-1 if rest == "-" else 1)


# The lab: each opens its screen and starts at once


def _ready(host: ChatParts) -> SessionLike:
    """The session, if an experiment can begin."""
    if host.state.session is None:
        raise DFlashError(host.state.no_pair)
    if host.state.busy:
        raise DFlashError("an answer is being written: Esc stops it")
    return host.state.session


def _lab(page: Literal["sweep", "ab"]) -> Callable[[ChatParts, str], Awaitable[None]]:

    async def run(host: ChatParts, rest: str) -> None:
        from dflash_tui.application.lab_request import AB, SWEEP, parse_ab, parse_sweep  # imports numpy

        session, usual = _ready(host), SWEEP if page == "sweep" else AB
        try:
            if page == "sweep":
                parse_sweep(rest or usual)
            else:
                parse_ab(rest, host.state.knobs, session.limits)
        except KnobError as error:
            raise DFlashError(f"{error}. Write /{page} {usual}") from None
        host.open_page(page, rest or usual)

    return run


async def _tune(host: ChatParts, rest: str) -> None:
    _ready(host)
    if rest:
        path = Path(rest).expanduser()
        try:
            check_regular(path)
            found = path.exists()
        except OSError as error:
            raise DFlashError(f"{path}: {error.strerror}; check the path") from None
        if not found:
            raise DFlashError(f"{path}: no such file; /tune without a file measures on the conversation's prompts")
    host.open_page("tune", f"prompts={shlex.quote(rest)}" if rest else "")


# Models


async def _profile(host: ChatParts, rest: str) -> None:
    profiles, words = host.profiles, rest.split()
    match words:
        case []:
            host.open_page("models")
        case ["save", name]:
            host.say(profiles.save(profiles.of_present(name)))
        case ["rename", name, to]:
            host.say(profiles.rename(name, to))
        case ["delete", name]:
            host.say(profiles.delete(name))
        case ["undo"]:
            host.say(profiles.undo())
        case [name] if name not in ("save", "rename", "delete"):
            profiles.load(name, host.say)
        case _:
            raise DFlashError(PROFILE)


def _profile_words(host: ChatParts) -> Mapping[str, str]:
    return {one.name: one.words for one in host.state.presets.profiles.values()} | {
        "save": "save the loaded pair with the present parameters", "rename": "another name",
        "delete": "delete a profile", "undo": "bring back what was deleted or replaced last",
    }  # fmt: skip


async def _get(host: ChatParts, rest: str) -> None:
    if rest and host.downloads.of(rest) is None:
        load_catalogue()[rest]  # refuses a name that it does not have
    host.open_page("get", rest)


# Other programs: servers of models, our own server, tool servers


async def _attach(host: ChatParts, rest: str) -> None:
    match rest.split():
        case []:
            host.screen.run_worker(_list(host), group="attach", exclusive=True)
            host.say("looking at the usual ports of this machine…")
        case [url, *model] if len(model) <= 1:
            server = AttachedServer(url)  # refuses what is no address
            request = host.state.request
            known = request.attach_key if AttachedServer(request.attach or url).url == server.url else ""
            host.program.attach(server.url, known or next(iter(keys_given()), ""), "".join(model))
        case _:
            raise DFlashError(ATTACH)


async def _list(host: ChatParts) -> None:
    found = await aside(attaching.find)
    found.pop(host.state.serving, "")
    more = "/attach URL uses one" if found else ""
    await host.transcript.mount(Note("\n".join(attaching.lines(found)), more, kind="info"))
    host.say("")


async def _detach(host: ChatParts, rest: str) -> None:
    _no_more_words(rest)
    host.program.detach()


async def _serve(host: ChatParts, rest: str) -> None:
    if rest == "off":
        await host.serving.end()
        host.say("other programs cannot use the model any more")
        return
    if not rest and host.state.serving:
        host.open_page("requests")
        return
    if rest and not (rest.isascii() and rest.isdigit() and int(rest) < 65_536):
        raise DFlashError("write /serve, /serve PORT (0: any that is free) or /serve off")
    await host.serving.begin(ServerSettings(port=int(rest or PORT), keys=keys_given()))
    host.say(f"programs of this machine can use the model at {host.state.serving}; /requests lists what they ask")


async def _tools(host: ChatParts, rest: str) -> None:
    words = rest.split()
    named = words[1:] or [one.name for one in host.state.settings.servers]
    if not words:
        host.open_page("tools")
    elif words[0] not in ("on", "off") or len(words) > 2:
        raise DFlashError("write /tools, /tools on [SERVER] or /tools off [SERVER]")
    elif words[0] == "on":
        await host.tools.start(named)
    else:
        await host.tools.end(named)
        host.say(f"ended: {', '.join(named)}")


VERSIONS = {"-": "the version before", "+": "the version after"}
ON_OFF = {"on": "start the servers of the settings, or the one named", "off": "stop the servers, or the one named"}
LAB = (
    Slash("tune", "/tune [FILE]", "find the fastest setting on your prompts, or on a file of them", _tune),
    Slash("sweep", "/sweep NAME VALUES", "values of one or two parameters: budget 4..63", _lab("sweep"), knob_words),
    Slash("ab", "/ab A | B", "A against B, in turn; without A and B: tree against chain", _lab("ab"), knob_words),
)
CHATS = (
    Slash(
        "export", "/export md|json|svg [PATH]", "write this conversation to a file", _export,
        lambda host: dict.fromkeys(KINDS, ""),
    ),
    Slash("import", "/import FILE", "import the conversations of a JSON export", _import),
    Slash("rename", "/rename TITLE", "name this conversation", _rename),
    Slash("version", "/version -|+", "another version of a message or answer", _version, lambda host: VERSIONS),
)  # fmt: skip
MODELS_AND_PROGRAMS = (
    Slash("profile", "/profile [save] NAME", "a model with all its settings by name", _profile, _profile_words),
    Slash(
        "get", "/get [NAME]", "fetch a model and its drafter; size and licence first", _get,
        lambda host: {one.name: one.about for one in load_catalogue().pairs.values()},
    ),
    Slash(
        "serve", "/serve [PORT|off]", "let agents and editors use this model over HTTP", _serve,
        lambda host: {"off": "end the server"} if host.state.serving else {str(PORT): "the usual port"},
    ),
    Slash(
        "tools", "/tools [on|off] [SERVER]", "tools of MCP servers that the model may call", _tools,
        lambda host: ON_OFF,
    ),
    Slash(
        "attach", "/attach [URL [MODEL]]", "use a server's model; without a URL, list those of this machine", _attach,
        lambda host: usual_urls(),
    ),
    Slash("detach", "/detach", "back from a server to the model of this program", _detach),
)  # fmt: skip
