"""Gemma 4's assistants: small models that draft token by token from the target's hidden state, keys and values."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from dflash_core.arch import gemma
from dflash_core.arch.assistant import CELLS_USED, AssistantConfig
from dflash_core.arch.folders.opening import is_assistant, open_model
from dflash_core.arch.kinds import Attention, SwiGLU
from dflash_core.arch.spec import ModelSpec
from dflash_core.config import ASSISTANT_ARCHITECTURE, refuse_misfit
from dflash_core.drafters.capabilities import BLOCK_KNOBS, ON_DEVICE, Capabilities
from dflash_core.drafters.draft import Draft, DraftTarget
from dflash_core.errors import FormatError
from dflash_core.formats.gguf import GGUFFile, architecture_of
from dflash_core.formats.metadata import Settings, check_unread
from dflash_core.formats.weights import check_tensors
from dflash_core.knobs import MAX_MTP_DEPTH

KIND = "assistant"
FOLLOWED = BLOCK_KNOBS - {"draft_window"} | {"mtp_depth"}
OTHER = "the assistant that was made for this target"
HARMLESS = frozenset({"nextn_predict_layers", "attention.shared_kv_layers", "embedding_length_per_layer_input"})
"""Settings that say what all assistants are: as many layers as MTP blocks, all of which read the target's keys."""


def capabilities(config: AssistantConfig, *, on_device: bool = False) -> Capabilities:
    knobs = FOLLOWED | ON_DEVICE if on_device else FOLLOWED
    return Capabilities(KIND, 1 + MAX_MTP_DEPTH, on_device, (config.target_layers - 1,), knobs)


def holds_assistant(path: Path) -> bool:
    if path.is_dir():
        return is_assistant(path)
    return path.suffix == ".gguf" and architecture_of(path) == ASSISTANT_ARCHITECTURE


def open_assistant(path: str | Path, target: DraftTarget) -> Draft:
    """Read an assistant's header. Raises FormatError, UnsupportedError, MismatchError."""
    return opened(open_model(path).settled(), target)


def opened(file: GGUFFile, target: DraftTarget) -> Draft:
    """Like `open_assistant`, of an open file."""
    keys = Settings(str(file.path), file.metadata, ASSISTANT_ARCHITECTURE + ".")
    found = (file.tensors.get(name) for name in ("token_embd.weight", "masked_embd_centroids.weight"))
    vocab, cells = (one.shape[0] if one else 0 for one in found)
    config = assistant_config(keys, vocab, cells, target.config)
    config = replace(config, name=keys.text("general.name", default=file.path.stem), notes=check_unread(keys, HARMLESS))
    check_tensors(str(file.path), file.tensors, config.tensors())
    return Draft(target, capabilities(config), config, (file,), config.notes)


def assistant_config(keys: Settings, vocab: int, cells: int, target: ModelSpec) -> AssistantConfig:
    """An assistant of `target` by its settings and the rows of its embedding and its centroids. Raises FormatError,
    UnsupportedError, MismatchError."""
    source = keys.source
    blocks, width = keys.integer("block_count", high=64), keys.integer("embedding_length")
    target_width = keys.integer("embedding_length_out")
    mixers, widths = gemma.attention(keys, blocks), keys.per_layer("feed_forward_length", blocks)
    sources = _sources(source, mixers, target)
    _check_fit(source, mixers, sources, (target_width, vocab), target)
    if cells and vocab % cells:
        raise FormatError(
            f"{source}: {cells:,} centroids for {vocab:,} tokens, expected as many tokens for each; download it again"
        )
    layers = tuple(
        replace(gemma.LAYER, mixer=replace(mixer, kv_from=at), ffn=SwiGLU(wide, "gelu_tanh"))
        for mixer, at, wide in zip(mixers, sources, widths, strict=True)
    )
    return AssistantConfig(
        name="", layers=layers, embedding_length=width, target_width=target_width, target_layers=target.block_count,
        vocab_size=vocab, rms_eps=mixers[0].eps, cells=cells,
        cells_used=keys.integer("centroids_used", default=CELLS_USED),
    )  # fmt: skip


def _sources(source: str, mixers: list[Attention], target: ModelSpec) -> tuple[int, ...]:
    """The target's layer whose keys each layer reads: the last one of its kind that has its own."""
    own = {
        bool(layer.mixer.window): index
        for index, layer in enumerate(target.layers)
        if isinstance(layer.mixer, Attention) and layer.mixer.kv_from is None
    }
    missing = {bool(mixer.window) for mixer in mixers} - own.keys()
    kind = "with a window" if True in missing else "that see all positions"
    wrong = [f"it reads keys of layers {kind}, expected a target that has them"] if missing else []
    refuse_misfit(source, target, wrong, OTHER)
    return tuple(own[bool(mixer.window)] for mixer in mixers)


def _check_fit(
    source: str, mixers: list[Attention], sources: tuple[int, ...], sizes: tuple[int, int], target: ModelSpec
) -> None:
    of_target = target.embedding_length, target.vocab_size
    names = "made for hidden size", "vocabulary"
    wrong = [f"{name} {found:,}, expected {one:,}" for name, found, one in zip(names, sizes, of_target) if found != one]
    for mixer, at in zip(mixers, sources):
        keys = target.layers[at].mixer
        assert isinstance(keys, Attention), "keys of a layer that has none"
        found, expected = (f"{one.kv_heads} KV heads of {one.head_dim}" for one in (mixer, keys))
        if found != expected or mixer.heads % keys.kv_heads or mixer.window != keys.window:
            wrong.append(f"reads {found} of layer {at}, expected {expected}")
    refuse_misfit(source, target, wrong, OTHER)
