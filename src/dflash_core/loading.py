"""Files in, models out: `load_target` and `load_draft`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from dflash_core import memory
from dflash_core.arch.spec import ModelSpec
from dflash_core.backends.base import Logits, Machine, Session
from dflash_core.backends.cpu.machine import FLOAT_BYTES, CpuMachine
from dflash_core.backends.cpu.session import CpuSession
from dflash_core.config import (
    DraftConfig,
    check_pair,
    mask_token,
    paired,
    target_config,
    target_weights,
)
from dflash_core.errors import DeviceError, MismatchError, UnsupportedError
from dflash_core.formats.drafter import open_drafter
from dflash_core.formats.gguf import GGUFFile, open_gguf
from dflash_core.formats.weights import TensorInfo, WeightFile
from dflash_core.memory import Ledger, Owner, gib
from dflash_core.models.dflash import DFlash
from dflash_core.models.matrix import Weights
from dflash_core.models.target import TargetModel
from dflash_core.runner import PREFILL_CHUNK, check_ids
from dflash_core.text.template import ChatTemplate
from dflash_core.text.tokenizer import Tokenizer

Progress = Callable[[str, float], None]
# Dense weights may take this share of the free memory; past it they stay packed in the file's own types.
DENSE_SHARE = 0.6


@dataclass(frozen=True, slots=True)
class CardOptions:
    """How weights are held and multiplied on a card. `half_activations`: f16 in place of int8 for every matrix;
    `draft_type`: "q8_0" packs a drafter's float matrices tighter as they are loaded."""

    half_activations: bool = False
    draft_type: str = ""


DEFAULT_CARD = CardOptions()


class Target:
    """A target model in torch float32 on the CPU. The header is read at once, text parts when asked for.

    `model` and `packed` are there after `load`.
    """

    model: Any  # of the backend: models.target.TargetModel on the CPU
    packed: bool

    def __init__(self, path: str | Path) -> None:
        self.notes: tuple[str, ...] = ()  # what a user should know of how it was opened
        self.program_bytes = memory.host_memory().process  # Python and torch, before any of the model
        self.file: GGUFFile = open_gguf(path)
        self.config: ModelSpec = target_config(self.file)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The file's own tokenizer. Raises FormatError or UnsupportedError."""
        return Tokenizer.from_metadata(self.file.metadata)

    @cached_property
    def template(self) -> ChatTemplate:
        """The file's own chat template, or plain ChatML. Raises TemplateError."""
        return ChatTemplate.for_tokenizer(self.tokenizer)

    @property
    def mask_token_id(self) -> int | None:
        return mask_token(self.file)

    @property
    def weight_bytes(self) -> int:
        """What the weights take in memory as they are held."""
        return _bytes(target_weights(self.file, self.config), self.packed)

    def load(self, *, packed: bool | None = None, dtype: torch.dtype = torch.float32, progress: Progress) -> None:
        """Read the weights; `packed` None keeps them quantised only where floats would not fit.

        Raises OutOfMemoryError where dense weights were asked for and do not fit.
        """
        dense = _bytes(target_weights(self.file, self.config), packed=False)
        free = memory.host_memory().free
        self.packed = dense > DENSE_SHARE * free if packed is None else packed
        if not self.packed:
            _check_fits("target", self.file, dense)
        weights = Weights(self.file, dtype=dtype, packed=self.packed)
        self.model = TargetModel(weights, self.config, lambda done, total: progress("loading the target", done / total))

    def check_room(self, draft: OpenedDraft | None, context: int | None) -> None:
        """Refuse from the headers alone what cannot fit together: weights, a drafter's, and `context` positions.

        Raises OutOfMemoryError. Here nothing: weights stay packed where floats would not fit.
        """

    def logits(self, ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """Next-token logits at every position, (n, vocab) float32. Raises ContextError for ids it does not have."""
        return np.concatenate([logits for _, logits in self._passes((), ids)])

    def hidden(self, ids: Sequence[int], layers: Sequence[int]) -> npt.NDArray[np.float32]:
        """Outputs of `layers` (residual stream after the layer) at every position, concatenated in that order:
        (n, len(layers) * hidden) float32.

        Raises ContextError for ids and MismatchError for layers that the model does not have.
        """
        wrong = [layer for layer in layers if not 0 <= layer < self.config.block_count]
        if wrong or not len(layers):
            what = f"layer {wrong[0]} does not exist" if wrong else "no layer named"
            raise MismatchError(f"{what}; this target has 0..{self.config.block_count - 1}")
        return np.concatenate([features for features, _ in self._passes(layers, ids)])

    def load_drafter(self, file: WeightFile, config: DraftConfig, dtype: torch.dtype) -> tuple[Any, int]:
        """A drafter's model, held as this target's is, and its bytes. Raises OutOfMemoryError."""
        if not self.packed:
            _check_fits("drafter", file, _bytes(file.tensors.values(), packed=False))
        model = DFlash(Weights(file, dtype=dtype, packed=self.packed), config)
        return model, _bytes(file.tensors.values(), self.packed)

    @property
    def machine(self) -> Machine:
        """Where it runs."""
        return CpuMachine(self.program_bytes)

    def session(self, draft: Draft | None = None, taps: Sequence[int] = (), context: int = 0) -> Session:
        """An empty sequence on this target; without a drafter, `taps` names the layers whose outputs it records.

        `context`: positions that it must hold, for backends that make room at once.
        """
        return CpuSession(self.model, draft.model if draft else None, draft.mask_token if draft else 0, taps)

    def _passes(self, taps: Sequence[int], ids: Sequence[int]) -> Iterator[tuple[Logits, Logits]]:
        """Run a prompt chunk by chunk: tapped outputs, if any, and logits of each."""
        plain = check_ids(ids, self.config.vocab_size)
        session = self.session(taps=taps, context=len(plain))
        for at in range(0, len(plain), PREFILL_CHUNK):
            part = plain[at : at + PREFILL_CHUNK]
            logits = session.verify(part, range(-1, len(part) - 1))
            yield (session.features() if taps else logits[:, :0]), logits
            session.commit(range(len(part)))


class Draft:
    """A drafter bound to its target, whose embedding and head it borrows."""

    def __init__(
        self,
        file: WeightFile,
        config: DraftConfig,
        model: Any,
        target: Target,
        mask_token: int,
        weight_bytes: int,
        notes: tuple[str, ...] = (),
    ) -> None:
        """`model` is of the target's own backend; `weight_bytes`: what the weights take as they are held."""
        self.file, self.config, self.model, self.target = file, config, model, target
        self.mask_token, self.weight_bytes, self.notes = mask_token, weight_bytes, notes

    def logits(self, features: npt.NDArray[np.float32], anchor: int) -> npt.NDArray[np.float32]:
        """Draft rows 1..block-1 behind a context: (block - 1, vocab) float32.

        `features` (n, taps * hidden): what `Target.hidden(ids, config.target_layers)` gives for the n tokens before
        the anchor. Raises MismatchError for another width, ContextError for an anchor that is not in the vocabulary.
        """
        width = len(self.config.target_layers) * self.config.embedding_length
        array = np.ascontiguousarray(features)
        if array.ndim != 2 or array.shape[1] != width or not len(array):
            raise MismatchError(f"features of shape {array.shape}; this drafter expects (positions, {width})")
        check_ids([anchor], self.target.config.vocab_size)
        session = self.target.session(self, context=len(array))
        session.absorb(array)
        return session.draft(int(anchor), 0)


def load_target(
    path: str | Path,
    device: str = "cpu",
    *,
    packed: bool | None = None,
    dtype: torch.dtype = torch.float32,
    progress: Progress | None = None,
) -> Target:
    """Load a target GGUF. `packed` keeps weights quantised in memory; by default only where floats would not fit.

    Raises FormatError, UnsupportedError, DeviceError, OutOfMemoryError.
    """
    target = open_target(path, device, progress=progress)
    target.load(packed=packed, dtype=dtype, progress=progress or silent)
    return target


def open_target(
    path: str | Path, device: str = "cpu", *, progress: Progress | None = None, card: CardOptions = DEFAULT_CARD
) -> Target:
    """Read a target's header only. Raises FormatError, UnsupportedError, DeviceError."""
    (progress or silent)("reading the target's header", 0.0)
    if device == "cuda":
        return _on_card(path, card)
    if device not in ("cpu", "auto"):
        raise DeviceError(f"unknown device {device!r}; expected auto, cpu or cuda")
    if device == "auto" and _driver_is_there():
        try:
            return _on_card(path, card)
        except (DeviceError, UnsupportedError) as error:
            target = Target(path)
            target.notes = (f"the GPU is not used: {error}",)
            return target
    return Target(path)


def _on_card(path: str | Path, card: CardOptions) -> Target:
    from dflash_core.backends.cuda.target import CudaTarget, first_device

    return CudaTarget(path, first_device(), half=card.half_activations, draft_type=card.draft_type)


def _driver_is_there() -> bool:
    from dflash_core.backends.cuda.driver import find_driver

    try:
        find_driver()
    except DeviceError:
        return False
    return True


def load_draft(
    path: str | Path, target: Target, *, dtype: torch.dtype = torch.float32, progress: Progress | None = None
) -> Draft:
    """Load a DFlash drafter (z-lab directory or safetensors file, or a GGUF of the three flavours) for `target`.

    Raises FormatError, UnsupportedError, OutOfMemoryError, and MismatchError where it was made for another target.
    """
    return open_draft(path, target).load(dtype=dtype, progress=progress)


@dataclass(frozen=True, slots=True)
class OpenedDraft:
    """A drafter whose header was read and found to fit `target`."""

    target: Target
    config: DraftConfig
    file: WeightFile
    notes: tuple[str, ...]

    def load(self, *, dtype: torch.dtype = torch.float32, progress: Progress | None = None) -> Draft:
        """Read the weights, held as the target's are. Raises OutOfMemoryError."""
        (progress or silent)("loading the drafter", 0.0)
        config = self.config
        assert config.mask_token_id is not None, "check_pair lets no pair without one pass"
        model, held = self.target.load_drafter(self.file, config, dtype)
        return Draft(self.file, config, model, self.target, config.mask_token_id, held, self.notes)


def open_draft(path: str | Path, target: Target) -> OpenedDraft:
    """Read a drafter's header only. Raises FormatError, UnsupportedError, MismatchError."""
    config, file = open_drafter(path)
    notes = check_pair(target.config, config, target.mask_token_id)
    return OpenedDraft(target, paired(target.config, config, target.mask_token_id), file, notes)


def _check_fits(owner: str, file: WeightFile, dense: int) -> None:
    """Refuse weights that do not fit as floats, before any of them is read."""
    host = memory.host_memory()
    packed = _bytes(file.tensors.values(), packed=True)
    remedies = (
        f"keep the weights packed (packed=True, {gib(packed)} read from the file as needed), "
        f"take a model of at most {gib(int(DENSE_SHARE * host.free))} as floats, "
        f"or close programs that hold {gib(max(0, dense - host.free))}"
    )
    ledger = Ledger("this machine", (Owner(owner, dense, "float32 weights"),), host.total, host.free)
    memory.check(ledger, remedies)


def _bytes(infos: Iterable[TensorInfo], packed: bool) -> int:
    return sum(info.n_bytes if packed else info.n_elements * FLOAT_BYTES for info in infos)


def silent(phase: str, done: float) -> None:
    """Progress that nobody watches."""
