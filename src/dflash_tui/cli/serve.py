"""`serve`: other programs use the loaded pair over HTTP, by the APIs of OpenAI and Anthropic."""

from __future__ import annotations

import logging
import os
import signal
import sys
from importlib.util import find_spec

from dflash_core.clean import encodable
from dflash_core.errors import DFlashError
from dflash_tui.application.log import LOG
from dflash_tui.cli.options import Invocation
from dflash_tui.server.settings import MAX_BODY, ServerSettings
from dflash_tui.terminal.output import Notes, write_json, write_out

KEY_VARIABLE = "DFLASH_TUI_API_KEY"


def run(call: Invocation) -> int:
    """Load the pair and serve it until a signal. Returns the exit code; raises DFlashError."""
    settings = _settings(call)
    if find_spec("starlette") is None or find_spec("uvicorn") is None:
        raise DFlashError("serving needs starlette and uvicorn: pip install 'dflash-tui[serve]'")
    from dflash_tui.cli.loading import load_with_notes  # imports torch
    from dflash_tui.server.sampling import Defaults
    from dflash_tui.server.service import Served, Service
    from dflash_tui.server.serving import Server, bound

    request, notes = call.request, Notes()
    socket = bound(settings)  # before the load, which may take minutes
    engine = load_with_notes(request, notes)
    recommended = engine.limits.recommended
    if recommended.source:
        values = recommended.words(request.knobs.thinking)
        notes.line(f"note: requests that name no sampling get {values}, {recommended.by}")
    defaults = Defaults(request.knobs, request.chosen, recommended, greedy=request.target is None)
    target = encodable(request.target.stem) if request.target else "demo"
    draft = encodable(request.draft.name) if request.draft else "" if request.target else "demo drafter"
    service = Service(engine, Served(target, draft, defaults), settings)

    def listening(address: str) -> None:
        notes.end_line()
        if call.args.json:
            write_json({"address": address, "model": service.name})
        else:
            write_out(f"listening on {address}\n")
            sys.stdout.flush()

    logging.getLogger("uvicorn.error").handlers = LOG.handlers
    server = Server(service, listening)
    try:
        server.run(sockets=[socket])
    finally:
        service.close()
    return 130 if server.signal == signal.SIGINT else 0


def _settings(call: Invocation) -> ServerSettings:
    args = call.args
    keys = tuple(args.api_key or filter(None, [os.environ.get(KEY_VARIABLE, "")]))
    settings = ServerSettings(
        host=args.host,
        port=args.port,
        keys=keys,
        alias=args.alias,
        origins=tuple(args.cors),
        hosts=tuple(name.lower() for name in args.allowed_host),
        queue=args.queue,
        max_body=args.max_body or MAX_BODY,
    )
    if any(not key.isascii() or not key.isprintable() or " " in key or not key for key in keys):
        call.refuse("--api-key: expected printable ASCII characters without spaces, as a header carries it")
    if not settings.local and not keys and not args.no_api_key:
        call.refuse(f"--host {args.host} lets other machines in; add --api-key KEY, or --no-api-key to let all in")
    if "*" in settings.origins and not keys:
        call.refuse("--cors '*' lets every web page use the model; add --api-key KEY")
    return settings
