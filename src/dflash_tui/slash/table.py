"""Slash commands: `/set drafting tree 32`, `/retry`, … A message may begin with a slash when it is doubled."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Mapping

from dflash_core.cache_types import AUTO, AUTO_PAIRS, TYPES, checked
from dflash_core.errors import DFlashError, KnobError
from dflash_core.knobs import CONTEXT, SPEC, SPEC_FORMER, SPECS, described, parse_settings, spec_of
from dflash_tui.application.mentions import Offer
from dflash_tui.application.new_file import typed_pair
from dflash_tui.chat.parts import ChatParts
from dflash_tui.settings.keys import ACTIONS
from dflash_tui.slash.pages import CHATS, LAB, MODELS_AND_PROGRAMS, Slash, does, knob_words
from dflash_tui.widgets.prompt import COMMAND


async def run(text: str, host: ChatParts) -> None:
    """Run a command. Raises DFlashError if it is unknown, misused or refused; nothing has been changed then."""
    match = COMMAND.fullmatch(text.strip())
    if match is None:
        raise DFlashError(f"not a command: {text.strip()}; /help lists them")
    name, rest = match[1].lower(), (match[2] or "").strip()
    if name not in SLASH and rest and (name in SPEC or name in SPEC_FORMER):
        await _set(host, f"{name} {rest}")
        return
    if name not in SLASH:
        near = [one for one in SLASH if one.startswith(name)] or difflib.get_close_matches(name, list(SLASH), n=1)
        hint = f"did you mean /{near[0]}?" if near else "/help lists the commands"
        raise DFlashError(f"unknown command /{name}; {hint}")
    if name in host.state.refused:
        raise DFlashError(host.state.refusal)
    await SLASH[name].run(host, rest)


def complete(text: str, host: ChatParts) -> list[Offer]:
    """Completions of a command that is being typed; none for a message."""
    if not text.startswith("/") or text.startswith("//") or "\n" in text:
        return []
    name, space, rest = text[1:].partition(" ")
    if not space:
        known = [one for one in SLASH.values() if one.name not in host.state.refused]
        starts = [one for one in known if one.name.startswith(name.lower())]
        holds = [one for one in known if len(name) > 1 and name.lower() in one.name and one not in starts]
        return [Offer(f"/{one.name} ", one.usage, one.help) for one in (*starts, *holds)]
    command = SLASH.get(name.lower())
    if command is None or " " in rest or command.name in host.state.refused:
        return []
    words = command.words(host).items()
    found = [(word, about) for word, about in words if word.startswith(rest) and word != rest]
    return [Offer(f"/{name} {word} ", word, about or command.help) for word, about in found]


async def _set(host: ChatParts, rest: str) -> None:
    several = [word.partition("=") for word in rest.split()]
    if len(several) > 1 and all(name and value for name, _, value in several):
        changes = parse_settings({name: value for name, _, value in several})
        host.tuning.set(**changes)
        host.say(f"{', '.join(described(host.state.knobs, changes))} from the next turn")
        return
    words = rest.replace("=", " ", 1).split(maxsplit=1 if rest.startswith(("mode", "drafting")) else -1)
    if len(words) == 2 and words[0] == CONTEXT.name:
        host.tuning.ask_for_context(words[1])
        return
    if len(words) == 1 and (words[0] in SPEC or words[0] in SPEC_FORMER):
        spec = spec_of(words[0])
        raise DFlashError(f"{spec.name}: {spec.help}; {spec.allowed}. Write /set {spec.name} VALUE")
    if len(words) != 2:
        raise DFlashError(
            "write /set NAME VALUE, for example /set drafting tree 32; names: " + ", ".join(s.name for s in SPECS)
        )
    host.tuning.set(**parse_settings({words[0]: words[1]}))
    host.say(f"{', '.join(described(host.state.knobs, words[:1]))} {host.tuning.when(words[0])}")


async def _think(host: ChatParts, rest: str) -> None:
    levels = host.tuning.reasoning.levels
    if rest.lower() not in ("on", "off", *levels):
        raise DFlashError("write " + " or ".join(f"/think {level}" for level in (*(levels or ("on",)), "off")))
    host.tuning.think(rest.lower())


async def _preset(host: ChatParts, rest: str) -> None:
    words = rest.split()
    if len(words) == 1:
        host.tuning.use(words[0])
    elif len(words) == 2 and words[0] == "save":
        host.tuning.save(words[1])
    else:
        names = ", ".join(f"{one.name} ({one.about})" if one.about else one.name for one in host.state.presets)
        raise DFlashError(f"write /preset NAME or /preset save NAME; there are {names}")


async def _theme(host: ChatParts, rest: str) -> None:
    if rest:
        host.program.use_theme(rest)
    else:
        host.open_page("themes")


async def _load(host: ChatParts, rest: str) -> None:
    try:
        words = shlex.split(rest)
    except ValueError as error:
        raise DFlashError(f"{rest}: {error}") from None
    if not words:
        host.open_page("models")
    elif len(words) > 2:
        raise DFlashError("write /load MODEL [DRAFT], in quotes where a path has spaces; /load shows the list")
    else:
        host.program.change_model(*typed_pair(*words))


async def _reload(host: ChatParts, rest: str) -> None:
    if rest:
        host.tuning.set_context(rest)
    host.program.reload()


async def _system(host: ChatParts, rest: str) -> None:
    first, _, text = rest.partition(" ")
    if not rest:
        now = host.state.conversation.system
        host.say(
            f"the system message is: {now}" if now else "no system message; /system TEXT sets one for this conversation"
        )
    elif host.refuses_change():
        return
    elif first == "default":
        problem = host.program.remember_system(text.strip())
        host.say(problem or f"new conversations begin with {'this system message' if text.strip() else 'none'}")
    elif rest == "off":
        host.conversation.set_system("")
        host.say("no system message from the next turn")
        host.tuning.tell_reading()
    else:
        host.conversation.set_system(rest)
        host.say("the system message counts from the next turn")
        host.tuning.tell_reading()


async def _policy(host: ChatParts, rest: str) -> None:
    if rest == "reset" and host.state.session is not None and not host.state.decoder.used_by:
        host.state.session.forget_learned()
        host.say("what was learned of this pair is forgotten; start values from the next turn")
    elif rest == "reset":
        user = host.state.decoder.used_by
        busy = "an answer is being written: Esc stops it" if host.state.busy else f"the decoder is used by {user}"
        raise DFlashError(busy if user else host.state.no_pair)
    elif rest in SPEC_FORMER["policy"].choices:
        await _set(host, f"policy {rest}")
    else:
        raise DFlashError(
            "write /policy reset to forget what was learned of this pair; /set drafting says what decodes"
        )


async def _kv(host: ChatParts, rest: str) -> None:
    try:
        kv = checked(rest)
    except KnobError as error:
        raise DFlashError(f"{error}. Write /kv TYPE, then /reload") from None
    host.tuning.ask_for_cache(kv)


def _kv_types(host: ChatParts) -> Mapping[str, str]:
    pairs = {str(pair): "keys / values" if "/" in str(pair) else "" for pair in AUTO_PAIRS}
    return {AUTO: "the first that the context fits with", **dict.fromkeys(TYPES, ""), **pairs}


def _levels(host: ChatParts) -> Mapping[str, str]:
    it = host.tuning.reasoning
    return {level: it.adds(level) for level in ("on", *it.levels, "off")}


RESET = {"reset": "forget what was learned"}
SYSTEM = {"off": "no system message here", "default": "for new conversations, also after the next start"}
# Commands with an argument. Actions of keys.py that name a slash command are commands without one.
SLASH: dict[str, Slash] = {
    one.name: one
    for one in (
        Slash("set", "/set NAME VALUE", "set a parameter of the next turn", _set, knob_words),
        Slash(
            "preset", "/preset [save] NAME", "a named set of parameters; save stores the present one", _preset,
            lambda host: {one.name: one.about for one in host.state.presets}
            | {"save": "save the present parameters under a name"},
        ),
        *LAB,
        *CHATS,
        Slash("policy", "/policy reset", "forget what auto learned of this pair", _policy, lambda host: RESET),
        Slash(
            "theme", "/theme [NAME]", "other colours, also after the next start", _theme,
            lambda host: dict.fromkeys(sorted(host.screen.app.available_themes), ""),
        ),
        Slash("kv", "/kv TYPE|K/V", "the cache type of keys and values, from the next load on", _kv, _kv_types),
        *MODELS_AND_PROGRAMS,
        Slash("load", "/load [MODEL [DRAFT]]", "another model", _load),
        Slash("reload", "/reload [CONTEXT]", "load the model again, with a context of this many positions", _reload),
        Slash("system", "/system [TEXT]", "the system message of this conversation", _system, lambda host: SYSTEM),
        Slash("think", "/think on|off|LEVEL", "thinking for the next turn", _think, _levels),
        *(Slash(row.slash, f"/{row.slash}", row.help, does(row.action)) for row in ACTIONS if row.slash),
    )
}  # fmt: skip
