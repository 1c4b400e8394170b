"""Files in, models out: `load_target` and `load_draft`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from dflash_core import memory
from dflash_core.backends.cpu.session import CpuSession
from dflash_core.config import DraftConfig, TargetConfig, check_pair, paired, target_config
from dflash_core.errors import DeviceError, MismatchError
from dflash_core.formats.drafter import open_drafter
from dflash_core.formats.gguf import GGUFFile, open_gguf
from dflash_core.formats.weights import WeightFile
from dflash_core.models.dflash import DFlash
from dflash_core.models.matrix import Weights
from dflash_core.models.qwen35 import Qwen35
from dflash_core.runner import PREFILL_CHUNK
from dflash_core.text.template import ChatTemplate
from dflash_core.text.tokenizer import Tokenizer

Progress = Callable[[str, float], None]
FLOAT_BYTES = 4
# Dense weights may take this share of the free memory; past it they stay packed in the file's own types.
DENSE_SHARE = 0.6


class Target:
    """A target model with its tokenizer and chat template, in torch float32 on the CPU."""

    def __init__(self, file: GGUFFile, config: TargetConfig, model: Qwen35, packed: bool) -> None:
        self.file, self.config, self.model, self.packed = file, config, model, packed
        self.tokenizer = Tokenizer.from_metadata(file.metadata)
        self.template = ChatTemplate.for_tokenizer(self.tokenizer)

    @property
    def path(self) -> Path:
        return self.file.path

    @torch.inference_mode()
    def logits(self, ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """Next-token logits at every position, (n, vocab) float32."""
        session = CpuSession(self.model)
        chunks = [self.model.logits(session.run(part, chain)[0]) for part, chain in _chunks(session, ids)]
        result: npt.NDArray[np.float32] = torch.cat(chunks).float().numpy()
        return result

    @torch.inference_mode()
    def hidden(self, ids: Sequence[int], layers: Sequence[int]) -> npt.NDArray[np.float32]:
        """Outputs of `layers` (residual stream after the layer) at every position, concatenated in that order:
        (n, len(layers) * hidden) float32. Raises MismatchError for a layer that the model does not have."""
        wrong = [layer for layer in layers if not 0 <= layer < self.config.block_count]
        if wrong:
            raise MismatchError(f"layer {wrong[0]} does not exist; this target has 0..{self.config.block_count - 1}")
        session = CpuSession(self.model)
        session.taps = tuple(layers)
        chunks = [torch.cat(session.run(part, chain)[1], dim=-1) for part, chain in _chunks(session, ids)]
        result: npt.NDArray[np.float32] = torch.cat(chunks).float().numpy()
        return result


def _chunks(session: CpuSession, ids: Sequence[int]) -> Iterator[tuple[list[int], range]]:
    """Walk a prompt through `session` chunk by chunk: tokens and parents to run; each is committed after its use."""
    for at in range(0, len(ids), PREFILL_CHUNK):
        part = [int(token) for token in ids[at : at + PREFILL_CHUNK]]
        yield part, range(-1, len(part) - 1)
        session.commit(range(len(part)))


class Draft:
    """A drafter bound to its target, whose embedding and head it borrows."""

    def __init__(
        self,
        file: WeightFile,
        config: DraftConfig,
        model: DFlash,
        target: Target,
        mask_token: int,
        notes: tuple[str, ...] = (),
    ) -> None:
        self.file, self.config, self.model, self.target = file, config, model, target
        self.mask_token, self.notes = mask_token, notes

    @torch.inference_mode()
    def logits(self, features: npt.NDArray[np.float32], anchor: int) -> npt.NDArray[np.float32]:
        """Draft rows 1..block-1 behind a context: (block - 1, vocab) float32.

        `features` (n, taps * hidden): what `Target.hidden(ids, config.target_layers)` gives for the n tokens before
        the anchor.
        """
        session = CpuSession(self.target.model, self.model, self.mask_token)
        states = session.draft_states
        self.model.absorb(torch.from_numpy(np.asarray(features)).to(self.model.output_norm.dtype), 0, states)
        block = [int(anchor)] + [self.mask_token] * (self.config.block_size - 1)
        out = self.model.forward(self.target.model.token_embd.rows(block), len(features), states)
        result: npt.NDArray[np.float32] = self.target.model.output(out[1:]).float().numpy()
        return result


def load_target(
    path: str | Path,
    device: str = "cpu",
    *,
    packed: bool | None = None,
    dtype: torch.dtype = torch.float32,
    progress: Progress | None = None,
) -> Target:
    """Load a qwen35 GGUF. `packed` keeps weights quantised in memory; by default only where floats would not fit.

    Raises FormatError, UnsupportedError, DeviceError.
    """
    _check_device(device)
    say = progress or _silent
    say("reading the target's header", 0.0)
    file = open_gguf(path)
    config = target_config(file)
    if packed is None:
        packed = _dense_bytes(file) > DENSE_SHARE * memory.host_memory().free
    weights = Weights(file, dtype=dtype, packed=packed)
    model = Qwen35(weights, config, lambda done, total: say("loading the target", done / total))
    return Target(file, config, model, packed)


def load_draft(
    path: str | Path, target: Target, *, dtype: torch.dtype = torch.float32, progress: Progress | None = None
) -> Draft:
    """Load a DFlash drafter (z-lab directory or safetensors file, or a GGUF of the three flavours) for `target`.

    Raises FormatError, UnsupportedError, and MismatchError where it was made for another target.
    """
    (progress or _silent)("loading the drafter", 0.0)
    config, file = open_drafter(path)
    notes = check_pair(target.config, config, target.tokenizer.mask_token_id)
    config = paired(target.config, config, target.tokenizer.mask_token_id)
    assert config.mask_token_id is not None, "check_pair lets no pair without one pass"
    model = DFlash(Weights(file, dtype=dtype, packed=target.packed), config)
    return Draft(file, config, model, target, config.mask_token_id, notes)


def _check_device(device: str) -> None:
    if device == "cuda":
        raise DeviceError("device cuda asked for, but this version decodes on the CPU only; use --device cpu")
    if device not in ("cpu", "auto"):
        raise DeviceError(f"unknown device {device!r}; expected cpu or auto")


def _dense_bytes(file: GGUFFile) -> int:
    return sum(info.n_elements for info in file.tensors.values()) * FLOAT_BYTES


def _silent(phase: str, done: float) -> None:
    """Progress that nobody watches."""
