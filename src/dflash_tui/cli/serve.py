"""`serve`: other programs use the loaded pair over HTTP, by the APIs of OpenAI and Anthropic."""

from __future__ import annotations

import logging
import re
import signal
import sys
from dataclasses import replace

from dflash_tui.application import collector
from dflash_tui.application.log import LOG
from dflash_tui.application.requests import Requests
from dflash_tui.application.settings.presets import Presets
from dflash_tui.cli.options import Invocation
from dflash_tui.server.settings import MAX_BODY, RequestLog, ServerSettings, keys_given, needs
from dflash_tui.terminal.output import Notes, check_terminal, write_json, write_out


def run(call: Invocation) -> int:
    """Load the pair and serve it until a signal. Returns the exit code; raises DFlashError."""
    settings = _settings(call)
    needs()
    if call.args.ui:
        check_terminal("serve --ui", "leave --ui out")
        from dflash_tui.launch import run_app

        clients = {**call.config.settings.clients, **_clients(call)}
        config = replace(call.config, settings=replace(call.config.settings, clients=clients))
        return run_app(call.request, config, settings)
    from dflash_tui.cli.loading import load_with_notes  # imports torch
    from dflash_tui.server import sampling, service, serving

    request, notes, presets = call.request, Notes(), Presets()
    own = _clients(call)
    for name in own.values():
        presets[name]  # refused before the load
    socket = serving.bound(settings)  # before the load, which may take minutes
    engine = load_with_notes(request, notes)
    collector.calm(tidied=False)
    recommended = engine.limits.recommended
    if recommended.source:
        values = recommended.words(request.knobs.thinking)
        notes.line(f"note: requests that name no sampling get {values}, {recommended.by}")
    defaults = sampling.Defaults(request.knobs, request.chosen, recommended, greedy=request.target is None)
    named = {**call.config.settings.clients, **own}
    found, problems = sampling.of_clients(named, presets, recommended, greedy=request.target is None)
    for line in problems:
        notes.line(f"note: {line}")
    served = service.Service(engine, service.served(request, defaults, found), settings, Requests(records=0))

    def listening(address: str) -> None:
        notes.end_line()
        if call.args.json:
            write_json({"address": address, "model": served.name})
        else:
            write_out(f"listening on {address}\n")
            sys.stdout.flush()

    logging.getLogger("uvicorn.error").handlers = LOG.handlers
    server = serving.Server(served, listening)
    try:
        server.run(sockets=[socket])
    finally:
        served.close()
    return 130 if server.signal == signal.SIGINT else 0


def _clients(call: Invocation) -> dict[str, str]:
    """The presets of clients that the command line names."""
    found = {}
    for one in call.args.client:
        name, _, preset = one.partition("=")
        if not name or not preset:
            call.refuse(f"--client {one}: expected NAME=PRESET, such as claude-cli=plain")
        found[name.lower()] = preset
    return found


def _settings(call: Invocation) -> ServerSettings:
    args = call.args
    keys = tuple(args.api_key) or keys_given()
    settings = ServerSettings(
        host=args.host,
        port=args.port,
        keys=keys,
        alias=args.alias,
        origins=tuple(args.cors),
        hosts=tuple(name.lower() for name in args.allowed_host),
        queue=args.queue,
        max_body=args.max_body or MAX_BODY,
        share_events=args.share_events,
    )
    if args.log_prompts and not args.log:
        call.refuse("--log-prompts needs the file that they go into: add --log FILE")
    if any(not key.isascii() or not key.isprintable() or " " in key or not key for key in keys):
        call.refuse("--api-key: expected printable ASCII characters without spaces, as a header carries it")
    if not settings.local and not keys and not args.no_api_key:
        call.refuse(f"--host {args.host} lets other machines in; add --api-key KEY, or --no-api-key to let all in")
    if wrong := [one for one in args.cors if not re.fullmatch(r"\*|null|[\w+.-]+://[^/]+", one)]:
        call.refuse(f"--cors {wrong[0]}: expected an origin, such as http://localhost:3000 without a path")
    if "*" in settings.origins and not keys:
        call.refuse("--cors '*' lets every web page use the model; add --api-key KEY")
    # Last: a refused command line makes no file.
    return replace(settings, log=RequestLog(args.log, prompts=args.log_prompts)) if args.log else settings
