"""The engines that can be attached to. Each is a file beside this one and a line here; the last knows only the API."""

from __future__ import annotations

from dflash_tui.application.attach.engine import Engine
from dflash_tui.application.attach.llama_server import LlamaServer
from dflash_tui.application.attach.lm_studio import LMStudio
from dflash_tui.application.attach.ninfer import NInfer
from dflash_tui.application.attach.ollama import Ollama
from dflash_tui.application.attach.sglang import SGLang
from dflash_tui.application.attach.vllm import VLLM

ENGINES: tuple[Engine, ...] = (LlamaServer(), VLLM(), SGLang(), NInfer(), Ollama(), LMStudio(), Engine())
HOST = "127.0.0.1"
OWN_PORT = 8080
OWN = "dflash-tui"
"""The owner of the models of our own server."""


def usual_urls() -> dict[str, str]:
    """Addresses on this machine, and what usually answers there."""
    names: dict[str, list[str]] = {f"http://{HOST}:{OWN_PORT}": [OWN]}
    for engine in ENGINES:
        if engine.port:
            names.setdefault(f"http://{HOST}:{engine.port}", []).append(engine.name)
    return {url: ", ".join(found) for url, found in names.items()}
