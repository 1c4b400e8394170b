"""Finds out which engine answers at an address, or on the usual ports of this machine, and makes a session over it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from dflash_core.clean import one_line
from dflash_core.errors import DFlashError
from dflash_core.progress import Progress, silent
from dflash_tui.application.attach.engine import Engine, RemoteModel
from dflash_tui.application.attach.engines import ENGINES, Own, usual_urls
from dflash_tui.application.attach.own import AttachedSession
from dflash_tui.application.attach.reading import objects, text
from dflash_tui.application.attach.remote import RemoteSession
from dflash_tui.application.attach.server import AttachedServer, AttachError
from dflash_tui.application.session import LoadRequest, SessionLike

MAX_NAMED = 6  # models that a refusal lists


@dataclass(frozen=True, slots=True)
class Recognised:
    """What answers at an address."""

    engine: Engine
    models: tuple[RemoteModel, ...]


def recognise(server: AttachedServer) -> Recognised:
    """Raises AttachError where nothing answers, or nothing that serves models."""
    listed = _listed(server)
    owner = text(listed[0], "owned_by") if listed else ""
    engine = next((one for one in ENGINES if one.recognises(server, owner)), ENGINES[-1])
    if not listed and engine is ENGINES[-1]:
        raise AttachError(f"{server.url} answers, but lists no models: it is no known server of models")
    return Recognised(engine, engine.models(server, listed))


def _listed(server: AttachedServer) -> Sequence[Mapping[str, Any]]:
    """OpenAI's list of models; empty where there is none."""
    try:
        return objects(server.json("/v1/models"), "data")
    except AttachError as error:
        if error.status in (404, 405, 501):
            return ()
        raise


def chosen(found: Recognised, server: AttachedServer, name: str) -> RemoteModel:
    """The model of that name, or the one that is loaded, or the only one. Raises AttachError."""
    models, engine = found.models, found.engine.name
    named = ", ".join(one_line(one.name, 60) for one in models[:MAX_NAMED]) + (", …" if len(models) > MAX_NAMED else "")
    if name:
        same = next((one for one in models if name in (one.name, one.name.rsplit("/", 1)[-1])), None)
        if same is None:
            raise AttachError(f"{server.url}: {engine} has no model {one_line(name, 60)!r}; it has {named or 'none'}")
        return same
    loaded = [one for one in models if one.loaded]
    if len(loaded) == 1 or (loaded and len(loaded) == len(models)):
        return loaded[0]
    if len(models) == 1:
        return models[0]
    if not models:
        raise AttachError(f"{server.url}: {engine} has no model; load one there")
    which = f"{len(loaded)} are loaded" if loaded else "none is loaded"
    raise AttachError(f"{server.url}: {engine} has {len(models)} models, {which}: name one of {named}")


def check_server(request: LoadRequest) -> tuple[AttachedServer, Recognised, RemoteModel]:
    """The server of a request, what it is, and the model to use. Raises AttachError where it cannot be used."""
    server = AttachedServer(request.attach, request.attach_key)
    found = recognise(server)
    return server, found, chosen(found, server, request.attach_model)


def attach(request: LoadRequest, progress: Progress = silent) -> SessionLike:
    """A session over the server that a request names. Raises AttachError and FormatError."""
    progress(f"asking {request.attach}", 0.0)
    server, found, model = check_server(request)
    return AttachedSession(server) if isinstance(found.engine, Own) else RemoteSession(server, found.engine, model)


PATIENCE_S = 1.0
"""For each answer; what is on this machine answers in milliseconds."""


def find(urls: Iterable[str] = tuple(usual_urls()), patience_s: float = PATIENCE_S) -> dict[str, str]:
    """What answers there, by address: its name and models, or why it cannot be used as it is, as for want of a key.
    All are asked at once, and without a key, which was given for no particular server."""
    asked = tuple(urls)
    with ThreadPoolExecutor(max(len(asked), 1), "dflash-attach") as pool:
        return dict(filter(None, pool.map(lambda url: _asked(url, patience_s), asked)))


def lines(found: Mapping[str, str]) -> Iterator[str]:
    """What answers, as shown to users; a line that says where was looked if nothing does."""
    yield from (f"{url}  {about}" for url, about in found.items())
    if not found:
        ports = ", ".join(url.rpartition(":")[2] for url in usual_urls())
        yield f"nothing answers on the usual ports of this machine ({ports}); name the address of a server"


def _asked(url: str, patience_s: float) -> tuple[str, str] | None:
    server = AttachedServer(url, patience_s=patience_s)
    try:
        found = recognise(server)
    except AttachError as error:
        return (server.url, str(error).removeprefix(f"{server.url}: ")) if error.status else None
    except DFlashError:
        return None
    names = [one.name.rsplit("/", 1)[-1] for one in found.models]
    models = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return server.url, f"{found.engine.name}: {models or 'no model'}"
