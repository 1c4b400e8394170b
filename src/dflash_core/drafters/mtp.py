"""MTP heads: the block after the trunk of some models, in their file or a separate one. A head drafts token by token:
first from the newest token and the target's hidden state before it, as the target's head reads it, then from its own
token and its own hidden state."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from dflash_core.arch.kinds import EMBEDDING, HEAD, NORM, NextN
from dflash_core.arch.reading import apart, layers_of
from dflash_core.arch.registry import ARCHITECTURES
from dflash_core.arch.spec import LayerSpec, ModelSpec
from dflash_core.config import MtpConfig, refuse_misfit
from dflash_core.drafters.capabilities import BLOCK_KNOBS, ON_DEVICE, Capabilities
from dflash_core.drafters.draft import Draft, DraftTarget
from dflash_core.errors import UnsupportedError
from dflash_core.formats.gguf import GGUFFile, architecture_of, open_gguf
from dflash_core.formats.metadata import Settings
from dflash_core.formats.weights import WeightFile, check_tensors
from dflash_core.knobs import MAX_MTP_DEPTH

KIND = "mtp"
# A head sees all of the context: a window has no effect.
FOLLOWED = BLOCK_KNOBS - {"draft_window"} | {"mtp_depth"}
OWN_HEAD = "the MTP head in the target's own file drafts, mtp_depth tokens at a time"


def capabilities(config: MtpConfig, *, on_device: bool = False) -> Capabilities:
    knobs = FOLLOWED | ON_DEVICE if on_device else FOLLOWED
    return Capabilities(KIND, 1 + MAX_MTP_DEPTH, on_device, (config.index - 1,), knobs)


def open_mtp(path: str | Path, target: DraftTarget) -> Draft:
    """Read the header of the head in the target's own file (`path` is the kind's name), or in another.

    Raises FormatError, UnsupportedError, MismatchError.
    """
    config, file = find_head(path, target.file, target.config)
    own = str(path) == KIND
    return Draft(target, capabilities(config), config, (file,), (OWN_HEAD,) if own else ())


def find_head(path: str | Path, own: GGUFFile, target: ModelSpec) -> tuple[MtpConfig, WeightFile]:
    """Like `open_mtp`, for a target of which only the file `own` is known."""
    file = own if str(path) == KIND else open_gguf(path)
    spec, source = target, str(file.path)
    if file is not own:  # it may hold nothing else of its model
        spec = ARCHITECTURES[Settings(source, file.metadata).text("general.architecture")].spec(file)
    layer = _layer(source, spec)
    if file is not own:
        _check_fit(source, spec, target)
        file = apart(file, layers_of(spec), spec.embedding_length)
    return _head(file, layer, target)


def has_head(file: GGUFFile, spec: ModelSpec) -> bool:
    """Whether a file has an MTP head that can be drafted with."""
    return spec.nextn_predict_layers == 1 and f"blk.{spec.block_count}.nextn.eh_proj.weight" in file.tensors


def holds_mtp(path: Path) -> bool:
    """Whether a file's header has MTP blocks; those of a complete model count too."""
    if path.is_dir() or path.suffix != ".gguf":
        return False
    architecture = architecture_of(path)
    if not isinstance(architecture, str) or architecture not in ARCHITECTURES:
        return False
    nextn = open_gguf(path).metadata.get(f"{architecture}.nextn_predict_layers")
    return isinstance(nextn, int) and nextn > 0


def _layer(source: str, spec: ModelSpec) -> LayerSpec:
    """The layer of a file's MTP head, as that file stores the layer: experts may be fused in one file and separate in
    the other."""
    blocks = spec.nextn_predict_layers
    if blocks != 1 or spec.nextn is None:
        counted = f"{blocks} MTP blocks" if blocks else "no MTP block (nextn tensors)"
        found = f"{source} has {spec.block_count} layers and {counted} after them, expected one to draft with"
        raise UnsupportedError(f"{found}; draft with a DFlash drafter made for it, or from the text")
    return spec.nextn


def _check_fit(source: str, spec: ModelSpec, target: ModelSpec) -> None:
    sizes = (
        ("its head stands after layer", spec.block_count, target.block_count),
        ("hidden size", spec.embedding_length, target.embedding_length),
    )
    wrong = [f"{what} {found:,}, expected {expected:,}" for what, found, expected in sizes if found != expected]
    if spec.architecture != target.architecture:
        wrong.append(f"architecture {spec.architecture}, expected {target.architecture}")
    refuse_misfit(source, target, wrong, "the MTP file made from this target")


def _head(file: GGUFFile, layer: LayerSpec, target: ModelSpec) -> tuple[MtpConfig, WeightFile]:
    """The head in `file` after a target of this shape, its tensors checked."""
    prefix = f"blk.{target.block_count}."
    tensors = {name: info for name, info in file.tensors.items() if name.startswith(prefix)}
    nextn = NextN(*(prefix + name in tensors for name in (NORM, EMBEDDING, HEAD)))
    hidden, vocab = target.embedding_length, target.vocab_size
    config = MtpConfig(target.name, target.block_count, layer, nextn, hidden, vocab, target.rms_eps)
    check_tensors(str(file.path), tensors, config.tensors())
    return config, replace(file, tensors=tensors)
