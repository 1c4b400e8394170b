"""Files from a hub, by huggingface_hub: resumed, checked, with the user's own token. Every refusal is one line."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash_core.clean import one_line
from dflash_core.errors import DFlashError
from dflash_core.memory import gib
from dflash_tui.hub.catalogue import Pair, Source

SPARE = 1 << 28  # bytes of the disk that are left free
TIMEOUT_S = 20.0

Told = Callable[[str, int, int], None]
"""(file, bytes that are here, bytes in all)"""


class HubError(DFlashError):
    """A file that could not be fetched; what there is of it stays and is gone on with."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A file to fetch and its size in bytes, as the hub says."""

    source: Source
    file: str
    size: int


def wanted(pair: Pair, endpoint: str | None = None) -> list[Wanted]:
    """The files of a pair with their sizes; nothing but headers is asked for. Raises HubError."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_url

    found = []
    for source in filter(None, (pair.target, pair.draft)):
        for file in source.files:
            url = hf_hub_url(source.repo, file, endpoint=endpoint)
            try:
                about = get_hf_file_metadata(url, timeout=TIMEOUT_S, endpoint=endpoint)
            except Exception as error:
                raise _explained(error, source, file) from None
            if about.size is None or not about.etag or not about.commit_hash:
                raise HubError(f"{source.repo}/{file}: the answer is no hub's (a page, a proxy's); look at HF_ENDPOINT")
            found.append(Wanted(source, file, about.size))
    return found


def check_room(files: list[Wanted], folder: Path) -> None:
    """Raise HubError where the disk has no room for them."""
    needed = sum(one.size for one in files if not _is_there(one, folder))
    there = next((one for one in (folder, *folder.parents) if one.exists()), Path("/"))
    free = shutil.disk_usage(there).free
    if needed + SPARE > free:
        raise HubError(f"{folder}: {gib(needed)} to fetch, {gib(free)} free; make room, or name a folder with --to")


def fetch(one: Wanted, folder: Path, told: Told, endpoint: str | None = None) -> Path:
    """Fetch a file into its repository's place below `folder`; what is there is gone on with. Raises HubError."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.utils import tqdm  # type: ignore[attr-defined]

    class Telling(tqdm):
        """The library's own progress, handed on instead of drawn."""

        def __init__(self, *args: Any, **options: Any) -> None:
            options.pop("name", None)
            super().__init__(*args, **(options | {"disable": False, "file": _Nowhere()}))  # type: ignore[no-untyped-call]

        def update(self, n: float | None = 1) -> None:
            super().update(n)
            told(one.file, int(self.n), one.size)

    try:
        path = hf_hub_download(
            one.source.repo, one.file, local_dir=place(one.source, folder), endpoint=endpoint, tqdm_class=Telling,
            etag_timeout=TIMEOUT_S,
        )  # fmt: skip
    except Exception as error:
        raise _explained(error, one.source, one.file) from None
    if (size := Path(path).stat().st_size) != one.size:
        with suppress(OSError):
            Path(path).unlink()
        raise HubError(f"{one.file}: {size:,} bytes arrived, {one.size:,} were promised; fetch it again")
    return Path(path)


def place(source: Source, folder: Path) -> Path:
    """Where the files of a repository go."""
    return folder / source.repo.replace("/", "--")


def _is_there(one: Wanted, folder: Path) -> bool:
    path = place(one.source, folder) / one.file
    return path.exists() and path.stat().st_size == one.size


class _Nowhere:
    """Where a progress bar is drawn that nobody sees."""

    def write(self, text: str) -> int:
        return len(text)

    def flush(self) -> None:
        pass


def _explained(error: Exception, source: Source, file: str) -> HubError:
    """What the library says, in a line: found, and what to do."""
    from huggingface_hub import errors

    status = getattr(getattr(error, "response", None), "status_code", None)
    where = f"{source.repo}/{file}"
    if isinstance(error, HubError):
        return error
    if isinstance(error, errors.GatedRepoError) or status in (401, 403):
        return HubError(f"{where}: refused without a token ({status or 401}); accept its licence, then: hf auth login")
    if isinstance(error, (errors.RepositoryNotFoundError, errors.EntryNotFoundError)) or status == 404:
        return HubError(f"{where}: not on the hub (404); the catalogue's entry may be out of date")
    if status == 429:
        return HubError(f"{where}: the hub asks to wait (429: too many requests); try again in a few minutes")
    if isinstance(error, OSError) and error.errno == 28:
        return HubError(f"{where}: no space left on the disk; what is here stays, and is gone on with")
    if isinstance(error, errors.FileMetadataError):
        return HubError(f"{where}: the answer is no file of a hub (a page, or a proxy's); look at HF_ENDPOINT")
    why = one_line(str(error)) or type(error).__name__
    return HubError(f"{where}: {why[:160]}; what is here stays, and is gone on with at the next try")
