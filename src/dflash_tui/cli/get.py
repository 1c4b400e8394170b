"""`get`: fetches a pair of the catalogue, or a model of a repository: a file, or a folder."""

from __future__ import annotations

import re
import sys
import threading
from pathlib import Path

from dflash_core.memory import gib
from dflash_tui.application.hub.catalogue import Pair, load_catalogue
from dflash_tui.application.hub.fetch import fetch, requested_files
from dflash_tui.application.hub.files import FileRequest, HubError, check_disk, fetched, received
from dflash_tui.application.hub.fitting import by_size
from dflash_tui.application.hub.quantisations import FOLDER, Quantisation, chosen, quantisations
from dflash_tui.application.hub.walk import downloads
from dflash_tui.cli.options import Invocation
from dflash_tui.terminal.hangup import stop_on_interrupt
from dflash_tui.terminal.output import Notes, write_out


def run(call: Invocation) -> int:
    """Fetch what the command line names. Returns the exit code; raises DFlashError."""
    return get(call.args.name, call.args.to, yes=call.args.yes)


def get(name: str, to: Path | None, *, yes: bool, endpoint: str | None = None) -> int:
    """Fetch a pair of the catalogue, or a model of a repository (OWNER/NAME:QUANT): show sizes, licence and whether it
    fits, then ask if there is a terminal to answer. For just OWNER/NAME its models are listed; a repository that is
    nothing but the folder of a model is fetched.

    Raises DFlashError.
    """
    folder, notes = to or downloads(), Notes()
    if "/" in name:
        repo, _, quant = re.sub("^(https://)?(huggingface|hf)[.]co/", "", name).partition(":")
        files_there = quantisations(repo, endpoint)
        if not quant and [one.name for one in files_there] == [FOLDER]:
            quant = FOLDER
        if not quant:
            write_out(f"{repo}: fetch one with dflash-tui get {repo}:QUANT\n" + "".join(map(listed, files_there)))
            return 0
        pair = chosen(repo, files_there, quant)
    else:
        pair = load_catalogue()[name]
    files = requested_files(pair, endpoint)
    for line in before_a_byte(pair, files, folder):
        notes.line(line)
    check_disk(files, folder)
    if not yes and not sys.stdin.isatty():
        notes.line("nothing was fetched; --yes fetches without asking")
        return 1
    if not yes:
        notes.line("fetch it? y/n")
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            notes.line("nothing was fetched")
            return 1
    stop = threading.Event()

    def progressed(file: str, here: int, size: int, more: str) -> None:
        amounts = f" {gib(here)} of {gib(size)}{f', {more}' if more else ''}" if notes.is_terminal else ""
        notes.progress(f"{file}{amounts}", here / size)

    with stop_on_interrupt(stop.set) as interrupted:
        try:
            for one in files:
                fetch(one, folder, progressed, endpoint, stop)
        except HubError:
            notes.line(f"{'interrupted; ' if interrupted else ''}{received(files, folder)}")
            if interrupted:
                return 130
            raise
    notes.end_line()
    target, draft = fetched(pair, folder)
    write_out(f"dflash-tui --target {target}{f' --draft {draft}' if draft else ''}\n")
    return 0


def listed(one: Quantisation) -> str:
    """A file of a repository on a line: its name, its size, and whether it fits."""
    return f"  {one.name:<14}{gib(one.size):>10}  {by_size(one.size).partition(':')[0]:<14}{one.file}\n"


def before_a_byte(pair: Pair, files: list[FileRequest], folder: Path) -> list[str]:
    """The description of a pair before anything of it is fetched."""
    size = sum(one.size for one in files)
    return [
        f"{pair.name}: {pair.about}",
        f"licence: {pair.licence or 'not stated; see the repository'}",
        *(f"  {one.where}  {gib(one.size)}" for one in files),
        f"  {gib(size)} in all, into {folder}",
        by_size(size),
    ]
