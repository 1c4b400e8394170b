"""`models` and `get`: what is on this machine, and what can be fetched."""

from __future__ import annotations

import sys
from pathlib import Path

from dflash_core.memory import gib
from dflash_tui.hub.catalogue import load_catalogue
from dflash_tui.hub.fetch import Told, check_room, fetch, place, wanted
from dflash_tui.hub.find import downloads, found, places
from dflash_tui.terminal.output import Notes, write_json, write_out


def run(*, as_json: bool = False) -> int:
    """List targets with their drafters, and the catalogue. Returns the exit code."""
    here = list(found(places()))
    catalogue = load_catalogue()
    if as_json:
        rows = [
            {
                "path": str(one.path), "where": one.where, "architecture": one.architecture, "bytes": one.size,
                "drafters": [str(path) for path in one.drafters],
            }
            for one in here
        ]  # fmt: skip
        pairs = [{"name": one.name, "about": one.about, "licence": one.licence} for one in catalogue.pairs.values()]
        write_json({"models": rows, "catalogue": pairs, "problems": list(catalogue.problems)})
        return 0
    for line in catalogue.problems:
        Notes().line(f"note: {line}")
    lines = [] if here else ["no model was found on this machine"]
    for one in here:
        lines.append(f"{one.path}\n    {one.architecture}, {gib(one.size)}, {one.where}")
        lines += [f"    drafter: {path}" for path in one.drafters]
        if not one.drafters:
            lines.append("    no drafter beside it; --draft text copies from the conversation")
    lines += ["", "to fetch with: dflash-tui get NAME"]
    lines += [f"    {one.name:<16}{one.about}; {one.licence}" for one in catalogue.pairs.values()]
    write_out("\n".join(lines) + "\n")
    return 0


def get(name: str, to: Path | None, *, yes: bool, endpoint: str | None = None) -> int:
    """Fetch a pair of the catalogue: sizes and licence first, then a question where a terminal can answer it.

    Raises CatalogueError, HubError.
    """
    pair, folder, notes = load_catalogue()[name], to or downloads(), Notes()
    files = wanted(pair, endpoint)
    notes.line(f"{pair.name}: {pair.about}")
    notes.line(f"licence: {pair.licence or 'not stated; see the repository'}")
    for one in files:
        notes.line(f"  {one.source.repo}/{one.file}  {gib(one.size)}")
    notes.line(f"  {gib(sum(one.size for one in files))} in all, into {folder}")
    check_room(files, folder)
    if not yes:
        if not sys.stdin.isatty():
            notes.line("nothing was fetched; --yes fetches without asking")
            return 1
        notes.line("fetch it? y/n")
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            return 1
    for one in files:
        fetch(one, folder, _telling(notes), endpoint)
    notes.end_line()
    target = place(pair.target, folder) / pair.target.file
    words = f"--target {target}"
    if pair.draft is not None:
        draft = place(pair.draft, folder) / (pair.draft.file if not pair.draft.beside else "")
        words += f" --draft {draft}"
    write_out(f"dflash-tui {words}\n")
    return 0


def _telling(notes: Notes) -> Told:
    def told(file: str, here: int, size: int) -> None:
        notes.progress(f"{file} {gib(here)} of {gib(size)}", here / size if size else 1.0)

    return told
