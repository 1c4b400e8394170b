"""Which servers of models answer on the usual ports of this machine. Nothing else is asked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from dflash_core.errors import DFlashError
from dflash_tui.application.attach.attaching import recognise
from dflash_tui.application.attach.engines import usual_urls
from dflash_tui.application.attach.server import AttachedServer, AttachError

PATIENCE_S = 1.0
"""For each answer; what is on this machine answers in milliseconds."""


@dataclass(frozen=True, slots=True)
class Local:
    """A server on this machine. `models`: names; `problem`: why it cannot be used as it is, as for want of a key."""

    url: str
    name: str
    models: tuple[str, ...] = ()
    problem: str = ""

    @property
    def about(self) -> str:
        """What it is, in a line."""
        models = ", ".join(self.models[:3]) + (f" and {len(self.models) - 3} more" if len(self.models) > 3 else "")
        return self.problem or f"{self.name}: {models or 'no model'}"


def find(urls: Iterable[str] = tuple(usual_urls()), patience_s: float = PATIENCE_S) -> list[Local]:
    """The servers that answer, all asked at once and without a key, which was given for no particular server."""
    asked = tuple(urls)
    with ThreadPoolExecutor(max(len(asked), 1), "dflash-attach") as pool:
        return [one for one in pool.map(lambda url: _asked(url, patience_s), asked) if one is not None]


def lines(found: Sequence[Local]) -> Iterator[str]:
    """What answers, as shown to users; a line that says where was looked if nothing does."""
    yield from (f"{one.url}  {one.about}" for one in found)
    if not found:
        ports = ", ".join(url.rpartition(":")[2] for url in usual_urls())
        yield f"nothing answers on the usual ports of this machine ({ports}); name the address of a server"


def _asked(url: str, patience_s: float) -> Local | None:
    server = AttachedServer(url, patience_s=patience_s)
    try:
        found = recognise(server)
    except AttachError as error:
        return Local(server.url, "", problem=str(error).removeprefix(f"{server.url}: ")) if error.status else None
    except DFlashError:
        return None
    return Local(server.url, found.name, tuple(one.name.rsplit("/", 1)[-1] for one in found.models))
