"""`connect`: what to set in another program so that it uses the server."""

from __future__ import annotations

import json
from urllib.error import URLError
from urllib.request import Request, urlopen

from dflash_core.clean import one_line
from dflash_core.errors import DFlashError
from dflash_tui.cli.options import Invocation
from dflash_tui.server.recipes import NO_KEY, RECIPES, written
from dflash_tui.terminal.output import Notes, write_json, write_out

PATIENCE_S = 2.0
UNKNOWN = "MODEL", 32_768
"""The model and its context where no server answers."""


def run(call: Invocation) -> int:
    """Print the recipe of a program, or list them. Returns the exit code."""
    args, notes = call.args, Notes()
    url = args.url.rstrip("/").removesuffix("/v1")
    if not args.name:
        if args.json:
            write_json({"names": list(RECIPES)})
        else:
            write_out("".join(f"{name:12}{recipe.title}\n" for name, recipe in RECIPES.items()))
        return 0
    try:
        model, context = served(url, args.key)
    except (OSError, ValueError, LookupError, TypeError) as error:
        model, context = UNKNOWN
        reason = error.reason if isinstance(error, URLError) else error
        notes.line(f"note: no server answers at {url} ({one_line(str(reason), 80)}); put the model's name for {model}")
    text = written(RECIPES[args.name], url=url, key=args.key or NO_KEY, model=model, context=context)
    if args.json:
        write_json({"name": args.name, "url": url, "model": model, "context": context, "text": text})
    else:
        write_out(text)
    return 0


def served(url: str, key: str) -> tuple[str, int]:
    """The name and the context of the model at `url`. Raises OSError, ValueError, LookupError or TypeError."""
    if not url.startswith(("http://", "https://")):
        raise DFlashError(f"--url {url}: expected an address that begins with http:// or https://")
    request = Request(f"{url}/v1/models", headers={"authorization": f"Bearer {key or NO_KEY}"})
    with urlopen(request, timeout=PATIENCE_S) as response:
        model = json.load(response)["data"][0]
    return str(model["id"]), int(model["context_length"])
