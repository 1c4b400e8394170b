"""`conversations`: list, export, import and delete the stored conversations. Loads no model."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Any

from dflash_core.clean import escaped, one_line
from dflash_core.errors import DFlashError
from dflash_tui.application.amounts import counted
from dflash_tui.application.conversations.exchange import from_file, import_file
from dflash_tui.application.conversations.history import data_folder
from dflash_tui.application.conversations.store import Card, Store
from dflash_tui.cli.options import Invocation
from dflash_tui.terminal.output import Notes, write_err, write_file, write_json, write_out
from dflash_tui.text.pages import KINDS, render


def run(call: Invocation) -> int:
    """Run the command. Returns the exit code; raises DFlashError."""
    does = {"list": _list, "export": _export, "import": _import, "delete": _delete}
    args, store = call.args, Store(data_folder())
    try:
        report = does[args.does](store, args)
        problem = store.problem()
    finally:
        written = store.close()
    if report is not None:
        if not written:
            raise DFlashError(f"nothing was changed: {problem}")
        report()
    if problem:
        write_err(f"note: {problem}")
    return 0


def _list(store: Store, args: argparse.Namespace) -> None:
    entries = store.list(" ".join(args.search))
    if args.json:
        write_json({"conversations": [_about(entry.card) | {"messages": entry.messages} for entry in entries]})
    elif not entries:
        write_err("no conversations" if not args.search else "no conversation has these words")
    else:
        ids = [entry.card.id for entry in store.list()]
        # The shortest length, at least six, at which the prefixes of all ids differ.
        length = next((n for n in range(6, 16) if len({id[:n] for id in ids}) == len(ids)), 16)
        for one in entries:
            changed, short = datetime.fromtimestamp(one.card.updated), one_line(one.card.id[:length])
            write_out(f"{short}  {changed:%Y-%m-%d %H:%M}  {one.messages:>4}  {one_line(one.card.title)}\n")


def _named(card: Card) -> str:
    return f"{one_line(card.id)}  {one_line(card.title)}"


def _export(store: Store, args: argparse.Namespace) -> None:
    kind = args.kind or (args.output.suffix.lstrip(".") if args.output else "md")
    if kind not in KINDS:
        raise DFlashError(f"--output {args.output}: its ending names no format; add --as md, json or svg")
    if args.name == "all" and kind != "json":
        raise DFlashError("all conversations go into one file as JSON only; add --as json")
    cards = [entry.card for entry in store.list()] if args.name == "all" else [store.find(args.name)]
    data = render([store.stored(card.id, records=kind == "json") for card in cards], kind)
    if args.output is None:
        if args.json:
            raise DFlashError("--json reports on a file; name it with --output FILE, or write --as json")
        if sys.stdout.isatty():
            text = data.decode()
            write_out(escaped(text) if kind == "json" else text)
        else:  # exactly the bytes that a file would have
            sys.stdout.flush()
            sys.stdout.buffer.write(data)
        return
    write_file(args.output, data)
    if args.json:
        write_json({"written": str(args.output), "bytes": len(data), "conversations": [_about(card) for card in cards]})
    else:
        write_err(f"{args.output}: {counted(len(cards), 'conversation')}, {len(data):,} bytes")


def _import(store: Store, args: argparse.Namespace) -> Callable[[], None]:
    """Returns what reports the change, once it is on the disk; so does `_delete`."""
    found = [one for path in args.files for one in from_file(path)]  # all of them are valid, or none is imported
    notes = Notes()
    cards = [import_file(store, one, partial(notes.progress, "importing")) for one in found]
    notes.end_line()
    if args.json:
        return lambda: write_json({"conversations": [_about(card) for card in cards]})
    return lambda: write_out("".join(f"{_named(card)}\n" for card in cards))


def _delete(store: Store, args: argparse.Namespace) -> Callable[[], None]:
    cards = [store.find(name) for name in args.names]  # all of them exist, or none is deleted
    for card in cards:
        store.delete(card.id)
    if args.json:
        return lambda: write_json({"deleted": [_about(card) for card in cards]})
    return lambda: write_err("\n".join(f"deleted {_named(card)}" for card in cards))


def _about(card: Card) -> dict[str, Any]:
    times = {
        name: datetime.fromtimestamp(seconds).astimezone().isoformat(timespec="seconds")
        for name, seconds in (("created", card.created), ("updated", card.updated))
    }
    return {"id": card.id, "title": card.title, "model": card.model, **times}
