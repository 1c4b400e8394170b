"""A pair of models, read from the files that hold them and checked: the target, the drafter, whether they fit."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from dflash_core.arch.architecture import Architecture, matrix_types
from dflash_core.arch.draft_heads import SIDES, Convolution, Heads
from dflash_core.arch.facts import expert_notes, has_experts
from dflash_core.arch.kinds import Attention, Gate, NextN, Shapes, SwiGLU
from dflash_core.arch.reading import apart, in_halves, layers_of
from dflash_core.arch.registry import ARCHITECTURES, supported
from dflash_core.arch.rope import Scaling
from dflash_core.arch.spec import EMBEDDING, LayerSpec, ModelSpec, layer_tensors, reads_other_keys
from dflash_core.cache_types import EXACT, CachePair
from dflash_core.clean import one_line
from dflash_core.errors import Code, FormatError, MismatchError, UnsupportedError
from dflash_core.formats.factors import with_factors
from dflash_core.formats.gguf import IMAGE_TENSORS, GGUFFile
from dflash_core.formats.metadata import Settings
from dflash_core.formats.weights import TensorInfo, WeightFile, check_tensors
from dflash_core.memory import gib

ASSISTANT_ARCHITECTURE = "gemma4-assistant"
DRAFT_ARCHITECTURES = ("dflash", "dspark", "dflash-draft", "qwen35-dflash-draft", ASSISTANT_ARCHITECTURE)
Flavour = Literal["z-lab", "dflash", "dspark", "dflash-draft", "lucebox"]
NAMES_EXPERTS = re.compile(r"(?<![a-z0-9])a\d+(\.\d+)?b(?![a-z0-9])|moe", re.IGNORECASE)  # such as "35B-A3B"
_STATED_KINDS = {  # by general.type or general.architecture
    "mmproj": "vision encoder", "clip": "vision encoder", "adapter": "LoRA adapter", "imatrix": "imatrix file",
}  # fmt: skip
OTHER_KINDS = {  # of GGUF files that are no model to generate text with: the remedy, if it is not the usual one
    "vision encoder": "give the model's own file; images are not read",
    "LoRA adapter": "merge it into its model, and give the merged file",
    "embedding or reranker model": "use the chat model of the family",
}
UNUSED_TOKEN = 5  # llama.cpp's token type of the padding entries of a vocabulary


@dataclass(frozen=True, slots=True)
class DraftConfig:
    """A block drafter. Its features are the outputs of `target_layers`: 0-based indices, or EMBEDDING.

    notes: what its file leaves open, and settings without effect, for the user.
    """

    name: str
    flavour: Flavour
    block_count: int
    embedding_length: int
    feed_forward_length: int
    head_count: int
    head_count_kv: int
    key_length: int
    rms_eps: float
    rope_freq_base: float  # 0 where the file does not say: the target's
    block_size: int
    target_layers: tuple[int, ...]
    mask_token_id: int | None
    vocab_size: int | None
    target_block_count: int | None
    sliding_window: int  # 0 for none
    sliding: tuple[bool, ...]
    causal: tuple[bool, ...]
    heads: Heads = Heads()
    rope_scaling: Scaling | None = None
    notes: tuple[str, ...] = dataclasses.field(default=(), compare=False)

    @property
    def kind(self) -> str:
        """Its kind of drafter: dflash, dflash2 or dspark."""
        return self.heads.kind

    @property
    def mask_token(self) -> int:
        """The token that stands for positions to be drafted, once `paired` has filled it in."""
        assert self.mask_token_id is not None, "a drafter that was not checked against its target"
        return self.mask_token_id

    @property
    def depths(self) -> int:
        """Positions after the anchor for which a block proposes tokens."""
        return self.block_size if self.heads.anchor_first else self.block_size - 1

    @property
    def has_offsets(self) -> bool:
        """Whether d2t holds the offset of each token from its row, as checkpoints do, instead of the token."""
        return self.flavour == "z-lab"

    @property
    def layers(self) -> tuple[LayerSpec, ...]:
        """Its layers; RoPE rotates all dimensions of a head."""
        ffn = SwiGLU(self.feed_forward_length)
        sizes = (self.head_count, self.head_count_kv, self.key_length, self.key_length, self.rope_freq_base)
        windows = (self.sliding_window if sliding else 0 for sliding in self.sliding)
        gate: Gate = "softplus" if self.heads.gated else "none"
        mixers = (
            Attention(*sizes, self.rms_eps, gate=gate, window=window, scaling=self.rope_scaling) for window in windows
        )
        return tuple(LayerSpec(mixer, ffn) for mixer in mixers)

    @property
    def tap_norms(self) -> tuple[str, ...]:
        """The tensors of the norms of captured layers: one for each in a checkpoint, one for all in GGUF."""
        if not self.heads.taps_normed:
            return ()
        each = tuple(f"enc.aux_norm.{index}.weight" for index in range(len(self.target_layers)))
        return each if self.flavour == "z-lab" else ("enc.aux_norm.weight",)

    def position_bytes(self, kv: CachePair) -> int:
        """What it stores for every position, including those that layers with a window no longer see."""
        layers = (layer.mixer for layer in self.layers)
        caches = (kv.windowed if window else kv for window in self.sliding)
        return sum(mixer.position_bytes(cache) for mixer, cache in zip(layers, caches, strict=True))

    def tensors(self) -> Shapes:
        """Every tensor, in the order of a forward pass."""
        hidden, vocab, heads = self.embedding_length, self.vocab_size or 0, self.heads
        shapes: Shapes = {"token_embd.weight": (vocab, hidden)} if heads.own_embedding else {}
        joined = () if self.flavour == "z-lab" else (len(self.target_layers),)
        shapes |= dict.fromkeys(self.tap_norms, (*joined, hidden))
        shapes |= dflash_tensors(hidden, len(self.target_layers), self.layers, heads.conv)
        return shapes | heads.tensors(hidden, vocab)


@dataclass(frozen=True, slots=True)
class MtpConfig:
    """An MTP head. `index`: its block in the file; it equals the number of layers of the trunk."""

    name: str
    index: int
    layer: LayerSpec
    nextn: NextN
    embedding_length: int
    vocab_size: int
    rms_eps: float

    @property
    def kind(self) -> str:
        return "mtp"

    @property
    def block_count(self) -> int:
        return 1

    def position_bytes(self, kv: CachePair) -> int:
        """Keys and values, and the hidden state of the position, always as floats: drafting after an earlier position
        starts from it."""
        return self.layer.mixer.position_bytes(EXACT) + 4 * self.embedding_length

    @property
    def prefix(self) -> str:
        return f"blk.{self.index}."

    def tensors(self) -> Shapes:
        """Every tensor, in the order of a forward pass."""
        beside = self.nextn.tensors(self.embedding_length, self.vocab_size)
        layer = layer_tensors(self.index, self.layer, self.embedding_length)
        return {**{self.prefix + name: shape for name, shape in beside.items()}, **layer}


def draft_tokens(config: DraftConfig, file: WeightFile) -> npt.NDArray[np.int64]:
    """The target's token of each row of a drafter's own head, (draft vocab,). Raises FormatError."""
    ids, vocab = file.int64("d2t"), config.vocab_size or 0
    if config.has_offsets:
        ids = ids + np.arange(len(ids))
    if len(np.unique(ids)) < len(ids) or ids.min() < 0 or ids.max() >= vocab:
        found = f"{config.name}: d2t names tokens {ids.min()} to {ids.max()} for {len(ids):,} rows"
        raise FormatError(f"{found}, expected each once and under {vocab:,}; convert the drafter again")
    return ids


def dflash_tensors(hidden: int, captured: int, layers: Sequence[LayerSpec], conv: Convolution | None = None) -> Shapes:
    """The tensors of a drafter that reads `captured` layers of its target."""
    shapes: Shapes = {"fc.weight": (hidden, captured * hidden), "enc.output_norm.weight": (hidden,)}
    for index, layer in enumerate(layers):
        shapes |= layer_tensors(index, layer, hidden)
        for side in SIDES if conv else ():
            assert conv is not None, "sides of a convolution"
            shapes |= {f"blk.{index}.{name}": shape for name, shape in conv.tensors(hidden, side).items()}
    return {**shapes, "output_norm.weight": (hidden,)}


def target_config(gguf: GGUFFile) -> ModelSpec:
    """The model in a target's file, its tensors checked. Raises FormatError or UnsupportedError."""
    return read_target(gguf)[1]


def read_target(gguf: GGUFFile) -> tuple[GGUFFile, ModelSpec]:
    """Like `target_config`, together with the file; its fused tensors are split into those of the model."""
    source, tensors = str(gguf.path), gguf.tensors
    if kind := other_kind(gguf):
        remedy = OTHER_KINDS.get(kind, "give the model's own file")
        raise UnsupportedError(
            f"{source} holds no model to chat with: {kind}, expected one that generates text; {remedy}"
        )
    architecture = _architecture(source, Settings(source, gguf.metadata).text("general.architecture"))
    spec = architecture.spec(gguf)
    if spec.nextn_predict_layers and "blk.0.attn_norm.weight" not in tensors:
        raise UnsupportedError(
            f"{source} holds only the MTP blocks of a model; give it as the draft, together with the model's own file"
        )
    _check_nextn(source, tensors, spec)
    expected = spec.tensors()
    gguf = with_factors(gguf, expected)
    file = in_halves(apart(gguf, layers_of(spec), spec.embedding_length), spec)
    check_tensors(source, file.tensors, expected, (*mtp_tensors(file, spec), *unread_tensors(file, spec)))
    return file, spec


def other_kind(gguf: GGUFFile) -> str:
    """What a file is that is no model to generate text with, a noun; "" if it may be one."""
    architecture, kind = (str(gguf.metadata.get(f"general.{key}", "")) for key in ("architecture", "type"))
    for found in (kind, architecture):
        if found in _STATED_KINDS:
            return _STATED_KINDS[found]
    if not gguf.tensors:
        return "vocabulary file"
    ranks = f"{architecture}.pooling_type" in gguf.metadata or any(name.startswith("cls.") for name in gguf.tensors)
    if ranks or "bert" in architecture:
        return "embedding or reranker model"
    return "" if kind in ("model", "") else f"{one_line(kind, 40)} file"


def unread_tensors(gguf: WeightFile, config: ModelSpec) -> tuple[str, ...]:
    """Names of tensors that change nothing: those for images, and keys of layers that read those of another."""
    shared = (index for index, layer in enumerate(config.layers) if reads_other_keys(layer))
    names = {f"blk.{index}.{name}.weight" for index in shared for name in ("attn_k", "attn_v", "attn_k_norm")}
    return tuple(name for name in gguf.tensors if name in names or name.startswith(IMAGE_TENSORS))


def _check_nextn(source: str, tensors: Iterable[str], spec: ModelSpec) -> None:
    """Refuse a file that counts a layer of its trunk as an MTP block: the layer would be left out."""
    for index in range(spec.block_count, spec.block_count + spec.nextn_predict_layers):
        prefix = f"blk.{index}."
        found = [name for name in tensors if name.startswith(prefix)]
        if found and not any(name.startswith(prefix + "nextn.") for name in found):
            stated = f"nextn_predict_layers is {spec.nextn_predict_layers} and block {index} has no nextn tensors"
            raise FormatError(f"{source}: {stated}, expected an MTP block after the layers; convert the model again")


def _architecture(source: str, name: str) -> Architecture:
    if name in ARCHITECTURES:
        return ARCHITECTURES[name]
    if name in DRAFT_ARCHITECTURES:
        kind = "an assistant of Gemma's" if name == ASSISTANT_ARCHITECTURE else "a DFlash drafter"
        found = f"{source} is {kind} ({name}), expected a target model ({supported()})"
        raise UnsupportedError(f"{found}; give it as the draft, together with the target it was made for")
    raise UnsupportedError(
        f"{source} has the architecture {name}, expected {supported()}", code=Code.UNKNOWN_ARCHITECTURE
    )


def mtp_tensors(gguf: WeightFile, config: ModelSpec) -> tuple[str, ...]:
    """Names of the tensors of the multi-token-prediction blocks, which follow the trunk."""
    blocks = range(config.block_count, config.block_count + config.nextn_predict_layers)
    prefixes = tuple(f"blk.{index}." for index in blocks)
    return tuple(name for name in gguf.tensors if name.startswith(prefixes))


def mask_token(gguf: GGUFFile) -> int | None:
    """The mask token that the target's vocabulary names, if it does."""
    found = gguf.metadata.get("tokenizer.ggml.mask_token_id")
    return found if isinstance(found, int) and not isinstance(found, bool) else None


def target_weights(gguf: GGUFFile, config: ModelSpec) -> list[TensorInfo]:
    """The tensors that decoding reads: all but those of MTP blocks."""
    return [gguf.tensors[name] for name in config.tensors() if name in gguf.tensors]


def check_pair(target: ModelSpec, draft: DraftConfig, target_mask_token: int | None) -> tuple[str, ...]:
    """Check that the drafter fits the target. Raises MismatchError if not, else returns notes for the user.

    `target_mask_token` is the mask token of the target's vocabulary, used where the drafter's file names none.
    """
    wrong = []
    if draft.embedding_length != target.embedding_length:
        wrong.append(f"hidden size {draft.embedding_length}, expected {target.embedding_length}")
    beyond = [layer for layer in draft.target_layers if not EMBEDDING <= layer < target.block_count]
    if beyond:
        wrong.append(f"reads target layer {beyond[0]}, expected 0 to {target.block_count - 1}")
    if draft.target_block_count not in (None, target.block_count):
        wrong.append(f"made for {draft.target_block_count} target layers, expected {target.block_count}")
    if draft.vocab_size not in (None, target.vocab_size):
        wrong.append(f"vocabulary of {draft.vocab_size:,} tokens, expected {target.vocab_size:,}")
    if not (draft.rope_freq_base or _rope_base(target)):
        wrong.append("no rotary base in its file, and no attention layer in the target to take it from")
    mask = target_mask_token if draft.mask_token_id is None else draft.mask_token_id
    if mask is None:
        wrong.append("no mask token in its file nor in the target's")
    elif mask >= target.vocab_size:
        wrong.append(f"mask token {mask}, expected an id under {target.vocab_size}")
    refuse_misfit(f"drafter {draft.name}", target, wrong, "the drafter that was made for this target")
    return _pair_notes(target, draft, target_mask_token)


def refuse_misfit(source: str, target: ModelSpec, wrong: Sequence[str], use: str) -> None:
    """Raises MismatchError if anything is `wrong` with a drafter for this target; `use`: what would fit."""
    if wrong:
        raise MismatchError(f"{source} does not fit target {target.name}: {'; '.join(dict.fromkeys(wrong))}; use {use}")


def _rope_base(target: ModelSpec) -> float:
    """The rotary base of the target's first attention layer; 0 where it has none."""
    return next((layer.rope_base for layer in target.of(Attention)), 0.0)


def generation(name: str) -> str:
    """The generation of Qwen in a model's name, such as "3.8"; "" where there is none."""
    found = re.search(r"qwen[-_ ]?(\d+(?:\.\d+)?)", name, re.IGNORECASE)
    return found[1] if found else ""


def _pair_notes(target: ModelSpec, draft: DraftConfig, target_mask_token: int | None) -> tuple[str, ...]:
    notes = [*draft.notes]
    made_for, here = generation(draft.name), generation(target.name)
    if made_for and here and made_for != here:
        notes.append(
            f"the drafter was made for Qwen{made_for}, the target is Qwen{here}: fewer drafts will be accepted"
        )
    if has_experts(target) != bool(NAMES_EXPERTS.search(draft.name)):
        # A sibling may have the same width, depth and vocabulary; then only the name distinguishes them.
        remark = "mentions experts, which this target does not have: if it was made for a model that has them"
        if has_experts(target):
            remark = "does not mention experts, which this target has: if it was made for a dense model"
        notes.append(f"the drafter's name {remark}, few drafts will be accepted")
    if draft.mask_token_id is None:
        notes.append(f"the drafter names no mask token: {target_mask_token} is taken from the target")
    elif target_mask_token not in (None, draft.mask_token_id):
        notes.append(f"mask token: the drafter's {draft.mask_token_id} is used, the target's is {target_mask_token}")
    if paired(target, draft, target_mask_token).rope_freq_base != draft.rope_freq_base:
        base = f"{draft.rope_freq_base:g}" if draft.rope_freq_base else "absent"
        notes.append(f"the drafter's rope base is {base}: the target's {_rope_base(target):g} is used")
    if any(draft.sliding):
        seen = f"see only the last {draft.sliding_window:,} positions"
        notes.append(f"{sum(draft.sliding)} of {draft.block_count} drafter layers {seen}")
    if target.nextn_predict_layers:
        notes.append(unused_heads(target))
    return tuple(notes)


def unused_heads(target: ModelSpec) -> str:
    """The note that its MTP blocks are unused."""
    return f"the target's {target.nextn_predict_layers} MTP block(s) are not used"


def paired(target: ModelSpec, draft: DraftConfig, target_mask_token: int | None) -> DraftConfig:
    """The drafter's configuration for this target; values that its file leaves open are filled in."""
    # lucebox's converter writes a wrong rope base where it finds none, and its runtime takes the target's.
    from_target = draft.flavour == "lucebox" or not draft.rope_freq_base
    return dataclasses.replace(
        draft,
        rope_freq_base=(from_target and _rope_base(target)) or draft.rope_freq_base,
        mask_token_id=target_mask_token if draft.mask_token_id is None else draft.mask_token_id,
    )


def unusual(gguf: GGUFFile, config: ModelSpec) -> tuple[str, ...]:
    """Notes for the user: properties that are accepted but unusual."""
    notes = []
    if len(gguf.shards) > 1:
        notes.append(f"split into {len(gguf.shards)} files")
    if config.nextn_predict_layers:
        names = mtp_tensors(gguf, config)
        size = gib(sum(gguf.tensors[name].n_bytes for name in names))
        notes.append(
            f"{config.nextn_predict_layers} MTP block(s), {len(names)} tensors, {size}: what the mtp drafter runs"
        )
    if gguf.images:
        notes.append(f"{gguf.images} tensors for images and sound are not used: the model reads only text")
    if config.tied_output:
        notes.append("tied head: the embedding is also the output matrix")
    matrices = matrix_types(gguf)
    if len(matrices) > 1:
        notes.append("mixed types: " + ", ".join(f"{kind} {count}" for kind, count in matrices.most_common()))
    notes += [*ARCHITECTURES[config.architecture].notes(gguf, config), *expert_notes(gguf, config)]
    notes += _vocabulary_notes(gguf, config)
    return (*notes, *config.notes)


def _vocabulary_notes(gguf: GGUFFile, config: ModelSpec) -> list[str]:
    tokens, types = gguf.metadata.get("tokenizer.ggml.tokens"), gguf.metadata.get("tokenizer.ggml.token_type")
    if not isinstance(tokens, list):
        return ["no tokenizer in the file"]
    unused = types.count(UNUSED_TOKEN) if isinstance(types, list) else 0
    padding = config.vocab_size - len(tokens) + unused
    notes = [f"{padding:,} of {config.vocab_size:,} vocabulary rows are padding"] if padding > 0 else []
    if not str(gguf.metadata.get("tokenizer.chat_template", "")).strip():
        notes.append("no chat template in the file")
    return notes
