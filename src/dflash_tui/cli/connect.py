"""`connect`: what to set in another program so that it uses the server."""

from __future__ import annotations

from dflash_tui.application.attach.server import AttachedServer, AttachError
from dflash_tui.cli.options import Invocation
from dflash_tui.server.recipes import NO_KEY, RECIPES, written
from dflash_tui.server.settings import keys_given
from dflash_tui.terminal.output import Notes

PATIENCE_S = 2.0
UNKNOWN = "MODEL", 49_152
"""The model and its context where no server answers: as much as the longest first prompt of an agent needs."""


def run(call: Invocation) -> int:
    """Print the recipe of a program, or list them. Returns the exit code; raises AttachError for what is no address,
    and for a key that no header carries."""
    args, notes = call.args, Notes()
    if not args.name:
        call.result({"names": list(RECIPES)}, "".join(f"{name:12}{one.title}\n" for name, one in RECIPES.items()))
        return 0
    key = args.key or next(iter(keys_given()), "")
    server = AttachedServer(args.url, key, PATIENCE_S)
    url = server.url
    try:
        model, context = served(server)
    except (AttachError, ValueError, LookupError, TypeError) as error:
        model, context = UNKNOWN
        reason = str(error) if isinstance(error, AttachError) else f"{url}: no list of models with their contexts"
        notes.line(f"note: {reason}; put the model's name for {model}")
    text = written(RECIPES[args.name], url=url, key=key or NO_KEY, model=model, context=context)
    call.result({"name": args.name, "url": url, "model": model, "context": context, "text": text}, text)
    return 0


def served(server: AttachedServer) -> tuple[str, int]:
    """The name and the context of the server's model. Raises AttachError, ValueError, LookupError or TypeError."""
    model = server.json("/v1/models")["data"][0]
    return str(model["id"]), int(model["context_length"])
