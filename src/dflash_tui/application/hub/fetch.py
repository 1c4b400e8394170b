"""Files from a hub: file lists through huggingface_hub with the user's token; the bytes through its HTTP client.

The library's own download (2.4) writes to a temporary file of a random name and deletes it when it is interrupted,
cannot be cancelled while the hub is silent, and compares sizes, not checksums. So the bytes are written to our part
file: resumed at the next try, or begun again where the hub does not send the rest, checked against the hub's checksum,
then moved into place. Every error is one line. Importing this imports the library.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import re
import threading
import time
from collections.abc import Callable, Generator
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from queue import Empty, Queue
from typing import Any, BinaryIO, TypeVar

from huggingface_hub import errors, get_hf_file_metadata, hf_hub_url
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status  # type: ignore[attr-defined]

from dflash_core.clean import one_line
from dflash_tui.application.hub.catalogue import Pair
from dflash_tui.application.hub.files import FileRequest, HubError, delete_older, part_of, place

T = TypeVar("T")
AHEAD = 2  # pieces that are read ahead
LOOK_S = 0.05
TIMEOUT_S = 20.0  # without a response, or without a byte
TRIES = 10  # without a new byte: a network may be down for some minutes
PAUSE_S = 1.0  # before the first retry; doubled each time, up to
LONGEST_PAUSE_S = 60.0
LONGEST_WAIT_S = 120.0  # the longest wait that a hub may request
CHUNK = 1 << 20
PIECE = 1 << 17  # bytes received between writes, progress reports and checks for cancellation
_SHA256 = re.compile(r"[0-9a-f]{64}")
_SHA1 = re.compile(r"[0-9a-f]{40}")

OnProgress = Callable[[str, int, int, str], None]
"""(file, bytes received, bytes in total, a message or "")."""


class CancelledError(HubError):
    """The user has cancelled."""


@dataclass(frozen=True, slots=True)
class _Watch:
    """Called with the progress of a file; raises CancelledError once the user has stopped it."""

    on_progress: OnProgress
    stop: threading.Event

    def __call__(self, file: str, here: int, size: int, message: str = "") -> None:
        self.look()
        self.on_progress(file, here, size, message)

    def look(self) -> None:
        if self.stop.is_set():
            raise CancelledError("cancelled")

    def pause(self, seconds: float, why: str, one: FileRequest, here: int) -> None:
        """Wait; the user sees the reason and can cancel."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self(one.file, here, one.size, f"{why}; asking again in {seconds:.0f} s")
            self.stop.wait(min(left, 0.2))


def requested_files(pair: Pair, endpoint: str | None = None, stop: threading.Event | None = None) -> list[FileRequest]:
    """The files of a pair with their sizes; only metadata is requested.

    Raises HubError, and CancelledError soon after `stop` was set.
    """

    def asked() -> Generator[FileRequest, None, None]:
        for source in filter(None, (pair.target, pair.draft)):
            for file in source.files:
                where, url = f"{source.repo}/{file}", hf_hub_url(source.repo, file, endpoint=endpoint)
                try:
                    about = get_hf_file_metadata(url, timeout=TIMEOUT_S, endpoint=endpoint)
                except Exception as error:
                    raise explained(error, where) from None
                if not about.size or not about.etag or not about.commit_hash:
                    raise HubError(f"{where}: the answer is not from a hub (a web page or a proxy); check HF_ENDPOINT")
                yield FileRequest(source, file, about.size, about.commit_hash, about.etag)

    return list(as_it_comes(asked, _Watch(lambda *progress: None, stop or threading.Event()).look))


def fetch(
    one: FileRequest,
    folder: Path,
    on_progress: OnProgress,
    endpoint: str | None = None,
    stop: threading.Event | None = None,
) -> Path:
    """Fetch and verify a file, into its repository's folder below `folder`. A partial file is resumed.

    Raises HubError, and CancelledError soon after `stop` was set, even if the hub is silent; the part file then stays,
    unless its checksum is wrong.
    """
    watch = _Watch(on_progress, stop or threading.Event())
    path, part = place(one.source, folder) / one.file, part_of(one, folder)
    try:
        if _is_whole(one, path, watch):
            watch(one.file, one.size, one.size)
            return path
        part.parent.mkdir(parents=True, exist_ok=True)
        with part.open("ab") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise HubError(f"{one.where}: another dflash-tui is fetching it; wait until it has ended") from None
            if file.tell() > one.size:
                file.truncate(0)
            delete_older(one, folder)
            _complete(one, file, watch, endpoint)
            _check(one, part, watch)
            part.replace(path)
    except Exception as error:
        raise explained(error, one.where) from None
    _remember(one, path)
    return path


def _complete(one: FileRequest, file: BinaryIO, watch: _Watch, endpoint: str | None) -> None:
    """Complete the part file: request the missing bytes, and retry a few times if none arrive."""
    url = hf_hub_url(one.source.repo, one.file, revision=one.commit or None, endpoint=endpoint)
    tries, waited, furthest = 0, 0.0, file.seek(0, 2)
    while file.tell() < one.size:
        watch(one.file, file.tell(), one.size)
        try:
            _receive(url, one, file, watch)
        except HubError:
            raise
        except Exception as error:
            tries = 1 if file.tell() > furthest else tries + 1
            furthest = max(furthest, file.tell())
            wait = _asked_to_wait(error)
            refused = isinstance(error, HfHubHTTPError) and error.response.status_code < 500 and wait is None
            waited += wait or 0.0
            if refused or tries >= TRIES or waited > LONGEST_WAIT_S:
                raise
            pause = min(PAUSE_S * 2 ** (tries - 1), LONGEST_PAUSE_S) if wait is None else wait
            watch.pause(pause, _cause(error), one, file.tell())


def _receive(url: str, one: FileRequest, file: BinaryIO, watch: _Watch) -> None:
    """Append bytes to the part file as long as they arrive."""
    start = file.tell()
    with closing(as_it_comes(lambda: _bytes_from(start, url, one), watch.look)) as pieces:
        for at, piece in pieces:
            if at < file.tell():  # the hub sends the whole file; the part file stays until its first byte arrives
                file.truncate(at)
                file.seek(0, 2)
            if at + len(piece) > one.size:
                file.truncate(0)
                raise HubError(f"{one.where}: more bytes than the {one.size:,} that the hub announced; fetch it again")
            try:
                file.write(piece)
                file.flush()
                watch(one.file, file.tell(), one.size)
            except OSError as error:
                raise explained(error, one.where) from None
    if file.tell() < one.size:
        raise EOFError("the hub sent only a part of the file")


def _bytes_from(start: int, url: str, one: FileRequest) -> Generator[tuple[int, bytes], None, None]:
    """Bytes of a file from `start` on, and their offset; from 0 if the hub sends only whole files."""
    headers: dict[str, str] = {**build_hf_headers(), "Accept-Encoding": "identity", "Range": f"bytes={start}-"}
    client: Any = get_session()
    # A hub redirects to another host: the client does not send the token there.
    with client.stream("GET", url, headers=headers, timeout=TIMEOUT_S, follow_redirects=True) as response:
        fits = _is_answer(response.headers, response.status_code, start, one.size)
        refused = start and (response.status_code == 416 or (response.status_code == 206 and not fits))
        if not refused:
            hf_raise_for_status(response)
            if not fits:
                raise HubError(f"{one.where}: the answer is not the file (a web page or a proxy); check HF_ENDPOINT")
            at = start if response.status_code == 206 else 0
            for piece in response.iter_bytes(PIECE):
                yield at, piece
                at += len(piece)
    if refused:
        yield from _bytes_from(0, url, one)


def _is_answer(headers: Any, status: int, start: int, size: int) -> bool:
    """Whether the response is the file, or its rest from `start` on, according to its headers."""
    if status == 206:
        match = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", str(headers.get("Content-Range", "")))
        return match is not None and int(match[1]) == start and match[2] in (str(size), "*")
    return str(headers.get("Content-Length", size)) == str(size)


def _asked_to_wait(error: Exception) -> float | None:
    """Seconds that the hub asks to wait (429, 503); None for other responses."""
    response = getattr(error, "response", None)
    if response is None or response.status_code not in (429, 503):
        return None
    retry_after = str(response.headers.get("Retry-After", ""))
    if retry_after.isdigit():
        return float(retry_after)
    with suppress(ValueError, TypeError):
        return max((parsedate_to_datetime(retry_after) - datetime.now(UTC)).total_seconds(), 0.0)
    return 5.0


def _check(one: FileRequest, part: Path, watch: _Watch) -> None:
    """Compare with the hub's checksum. A file that differs is useless and is deleted."""
    if not _has_sum(one, part, watch):
        part.unlink()
        raise HubError(
            f"{one.where}: its checksum is not the hub's, so it was deleted; fetch it again, and if that does"
            " not help, check HF_ENDPOINT and proxies"
        )


def _has_sum(one: FileRequest, path: Path, watch: _Watch) -> bool:
    """Whether a file has its checksum: SHA-256 of large files, git's of small ones. Other values cannot be checked."""
    if _SHA256.fullmatch(one.sum):
        found = hashlib.sha256()
    elif _SHA1.fullmatch(one.sum):
        found = hashlib.sha1(f"blob {one.size}\0".encode(), usedforsecurity=False)
    else:
        return True
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            found.update(chunk)
            watch(one.file, file.tell(), one.size, "checking")
    return found.hexdigest() == one.sum


def _is_whole(one: FileRequest, path: Path, watch: _Watch) -> bool:
    """Whether a file is in place; its checksum is computed once, and again after a change."""
    if not path.is_file() or path.stat().st_size != one.size:
        return False
    with suppress(OSError):
        mark, text = _mark(one, path)
        if mark.read_text() == text:
            return True
    if whole := _has_sum(one, path, watch):
        _remember(one, path)
    return whole


def _remember(one: FileRequest, path: Path) -> None:
    with suppress(OSError):
        mark, text = _mark(one, path)
        mark.write_text(text)


def _mark(one: FileRequest, path: Path) -> tuple[Path, str]:
    """The file that says that a file was checked, and its text."""
    return path.with_name(f".{path.name}.checked"), f"{one.sum} {path.stat().st_mtime_ns}"


def explained(error: Exception, where: str) -> HubError:
    """The library's error as one line: the cause, and what to do."""
    return error if isinstance(error, HubError) else HubError(f"{where}: {_explanation(error)}")


def _explanation(error: Exception) -> str:
    status = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(error, errors.GatedRepoError) or status in (401, 403):
        missing = "the repository does not exist, or needs a token; accept its licence on the hub's page"
        return f"refused ({status or 401}): {missing}, then: hf auth login"
    if isinstance(error, (errors.RepositoryNotFoundError, errors.EntryNotFoundError)) or status == 404:
        return "not on the hub (404); the catalogue's entry may be out of date"
    if status == 429:
        wait = _asked_to_wait(error)
        when = f"in {wait:.0f} s" if wait else "in a few minutes"
        return f"the hub asks to wait (429: too many requests); try again {when}"
    if status is not None and status >= 500:
        return f"the hub has an error ({status}); the received part is saved; try again later"
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "no space left on the disk; the received part is saved; the next try resumes it"
    if isinstance(error, errors.FileMetadataError):
        return "the answer is not a file of a hub (a web page or a proxy); check HF_ENDPOINT"
    why = _cause(error)
    if type(error).__name__.startswith("Connect"):
        return f"the hub cannot be reached ({why[:100]}); check the network and HF_ENDPOINT"
    return f"{why[:160]}; the received part is saved; the next try resumes it"


def _cause(error: Exception) -> str:
    """What happened to a connection, in words. By class name: the classes are not part of the library's interface."""
    name = type(error).__name__
    if isinstance(error, HfHubHTTPError):
        return f"the hub answers {error.response.status_code}"
    if name == "ReadTimeout":
        return f"nothing received for {TIMEOUT_S:.0f} s"
    if name in ("RemoteProtocolError", "ReadError"):
        return "the connection broke off"
    return one_line(str(error)) or name


@dataclass(frozen=True, slots=True)
class _End:
    error: Exception | None = None


def as_it_comes(source: Callable[[], Generator[T, None, None]], look: Callable[[], None]) -> Generator[T, None, None]:
    """Yields what `source` yields, read on another thread; raises what `source` raises.

    `look` is called between pieces and while waiting, and may raise to cancel. The other thread ends when its
    wait ends. What it reads after that is discarded, so `source` must not write anything to disk.
    """
    pieces: Queue[T | _End] = Queue(AHEAD)
    left = threading.Event()

    def read() -> None:
        end = _End()
        try:
            with closing(source()) as found:
                for piece in found:
                    pieces.put(piece)
                    if left.is_set():
                        return
        except Exception as error:
            end = _End(error)
        pieces.put(end)

    # Daemon: a silent hub must not keep a closed program alive.
    threading.Thread(target=read, name="dflash-hub", daemon=True).start()
    try:
        while True:
            look()
            try:
                piece = pieces.get(timeout=LOOK_S)
            except Empty:
                continue
            if isinstance(piece, _End):
                break
            yield piece
        if piece.error is not None:
            raise piece.error
    finally:
        left.set()
        with suppress(Empty):  # frees a slot for a thread that waits for one
            while True:
                pieces.get_nowait()
