"""What a model is, filled once from the file that holds it; nothing later reads metadata keys."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from dataclasses import dataclass
from typing import Literal

from dflash_core.errors import FormatError, MismatchError, UnsupportedError
from dflash_core.formats.gguf import GGUFFile
from dflash_core.formats.metadata import Settings
from dflash_core.formats.weights import TensorInfo, WeightFile, check_tensors, listed
from dflash_core.memory import gib

TARGET_ARCHITECTURE = "qwen35"
DRAFT_ARCHITECTURES = ("dflash", "dflash-draft", "qwen35-dflash-draft")
Flavour = Literal["z-lab", "dflash", "dflash-draft", "lucebox"]
UNUSED_TOKEN = 5  # llama.cpp's token type of the padding entries of a vocabulary
FILE_TYPES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S", 12: "Q3_K_M",
    13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K", 19: "IQ2_XXS", 20: "IQ2_XS",
    21: "Q2_K_S", 22: "IQ3_XS", 23: "IQ3_XXS", 25: "IQ4_NL", 26: "IQ3_S", 27: "IQ3_M", 28: "IQ2_S", 29: "IQ2_M",
    30: "IQ4_XS", 32: "BF16",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TargetConfig:
    """A qwen35 model: gated full attention on some layers, gated delta net on the others."""

    name: str
    architecture: str
    block_count: int  # trunk layers, the MTP blocks not counted
    nextn_predict_layers: int
    context_length: int
    embedding_length: int
    feed_forward_length: int
    head_count: int
    head_count_kv: int
    key_length: int
    rms_eps: float
    rope_freq_base: float
    rope_dimension_count: int
    conv_kernel: int
    state_size: int  # of a K head
    group_count: int  # K heads of the delta net
    time_step_rank: int  # V heads of the delta net
    inner_size: int
    full_attention: tuple[bool, ...]
    vocab_size: int  # rows of the embedding, padding rows included
    tied_output: bool
    file_type: str  # "Q4_K_M"; empty where the file does not say

    @property
    def value_head_dim(self) -> int:
        return self.inner_size // self.time_step_rank

    @property
    def conv_channels(self) -> int:
        return 2 * self.group_count * self.state_size + self.inner_size

    @property
    def n_attention(self) -> int:
        return sum(self.full_attention)

    @property
    def n_linear(self) -> int:
        return self.block_count - self.n_attention


@dataclass(frozen=True, slots=True)
class DraftConfig:
    """A DFlash drafter. `target_layers` are 0-based: the outputs of these target layers are its features."""

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


def target_config(gguf: GGUFFile) -> TargetConfig:
    """The configuration of a target, its tensors checked. Raises FormatError or UnsupportedError."""
    source = gguf.path.name
    architecture = Settings(source, gguf.metadata).text("general.architecture")
    _check_architecture(source, architecture)
    keys = Settings(source, gguf.metadata, architecture + ".")
    _check_settings(keys)
    blocks = keys.integer("block_count", high=1024)
    nextn = keys.integer("nextn_predict_layers", low=0, high=blocks - 1, default=0)
    embedding = gguf.tensors.get("token_embd.weight")
    key_length = keys.integer("attention.key_length")
    config = TargetConfig(
        name=keys.text("general.name", default=gguf.path.stem),
        architecture=architecture,
        block_count=blocks - nextn,
        nextn_predict_layers=nextn,
        context_length=keys.integer("context_length", high=1 << 40),
        embedding_length=keys.integer("embedding_length"),
        feed_forward_length=keys.uniform("feed_forward_length"),
        head_count=keys.uniform("attention.head_count"),
        head_count_kv=keys.uniform("attention.head_count_kv"),
        key_length=key_length,
        rms_eps=keys.number("attention.layer_norm_rms_epsilon"),
        rope_freq_base=keys.number("rope.freq_base"),
        rope_dimension_count=keys.integer("rope.dimension_count", low=2, high=key_length),
        conv_kernel=keys.integer("ssm.conv_kernel", low=2, high=64),
        state_size=keys.integer("ssm.state_size"),
        group_count=keys.integer("ssm.group_count"),
        time_step_rank=keys.integer("ssm.time_step_rank"),
        inner_size=keys.integer("ssm.inner_size"),
        full_attention=_full_attention(keys, blocks)[: blocks - nextn],
        vocab_size=embedding.shape[0] if embedding else 0,
        tied_output="output.weight" not in gguf.tensors,
        file_type=FILE_TYPES.get(keys.integer("general.file_type", low=0, default=-1), ""),
    )
    keys.check_divides("attention.head_count_kv", config.head_count_kv, "attention.head_count", config.head_count)
    keys.check_divides("ssm.group_count", config.group_count, "ssm.time_step_rank", config.time_step_rank)
    keys.check_divides("ssm.time_step_rank", config.time_step_rank, "ssm.inner_size", config.inner_size)
    if config.rope_dimension_count % 2:
        raise FormatError(f"{source}: rope.dimension_count is {config.rope_dimension_count}, expected an even number")
    _check_target_tensors(gguf, config)
    return config


def _check_architecture(source: str, architecture: str) -> None:
    if architecture == TARGET_ARCHITECTURE:
        return
    if architecture in DRAFT_ARCHITECTURES:
        raise UnsupportedError(
            f"{source} is a DFlash drafter ({architecture}), expected a target model ({TARGET_ARCHITECTURE});"
            " give it as the draft, beside the target it was made for"
        )
    mixture = " (mixture of experts)" if architecture == "qwen35moe" else ""
    raise UnsupportedError(
        f"{source} has the architecture {architecture}{mixture}, expected {TARGET_ARCHITECTURE}:"
        " use a dense Qwen3.5 or Qwen3.6 model"
    )


def _check_settings(keys: Settings) -> None:
    """Refuse settings that would change the forward pass and that nothing here implements."""
    scaling = keys.get("rope.scaling.type")
    if scaling not in (None, "none") and keys.get("rope.scaling.factor") != 1.0:
        raise UnsupportedError(f"{keys.source} scales its rotary positions ({scaling}), expected none")
    key, value = keys.integer("attention.key_length"), keys.get("attention.value_length")
    if value not in (None, key):
        raise UnsupportedError(f"{keys.source}: attention.value_length is {value!r}, expected {key}, the key length")


def _full_attention(keys: Settings, blocks: int) -> tuple[bool, ...]:
    """Which layers are full attention: every fourth, unless the file says otherwise."""
    if keys.find("attention.recurrent_layers"):
        return tuple(not recurrent for recurrent in keys.flags("attention.recurrent_layers", count=blocks))
    interval = keys.integer("full_attention_interval", high=1024, default=4)
    return tuple((index + 1) % interval == 0 for index in range(blocks))


def target_shapes(config: TargetConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor of the trunk and its shape in torch order."""
    c, hidden = config, config.embedding_length
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (c.vocab_size, hidden), "output_norm.weight": (hidden,)}
    if not c.tied_output:
        shapes["output.weight"] = (c.vocab_size, hidden)
    for index, full in enumerate(c.full_attention):
        block: dict[str, tuple[int, ...]] = {
            "attn_norm.weight": (hidden,),
            "post_attention_norm.weight": (hidden,),
            "ffn_gate.weight": (c.feed_forward_length, hidden),
            "ffn_up.weight": (c.feed_forward_length, hidden),
            "ffn_down.weight": (hidden, c.feed_forward_length),
        }
        if full:
            block |= {
                "attn_q.weight": (2 * c.head_count * c.key_length, hidden),  # of each head the query, then its gate
                "attn_k.weight": (c.head_count_kv * c.key_length, hidden),
                "attn_v.weight": (c.head_count_kv * c.key_length, hidden),
                "attn_output.weight": (hidden, c.head_count * c.key_length),
                "attn_q_norm.weight": (c.key_length,),
                "attn_k_norm.weight": (c.key_length,),
            }
        else:
            block |= {
                "attn_qkv.weight": (c.conv_channels, hidden),
                "attn_gate.weight": (c.inner_size, hidden),
                "ssm_conv1d.weight": (c.conv_channels, c.conv_kernel),
                "ssm_dt.bias": (c.time_step_rank,),
                "ssm_a": (c.time_step_rank,),
                "ssm_beta.weight": (c.time_step_rank, hidden),
                "ssm_alpha.weight": (c.time_step_rank, hidden),
                "ssm_norm.weight": (c.value_head_dim,),
                "ssm_out.weight": (hidden, c.inner_size),
            }
        shapes |= {f"blk.{index}.{name}": shape for name, shape in block.items()}
    return shapes


def _check_target_tensors(gguf: GGUFFile, config: TargetConfig) -> None:
    source, tensors = gguf.path.name, gguf.tensors
    if config.nextn_predict_layers and "blk.0.attn_norm.weight" not in tensors:
        raise UnsupportedError(f"{source} holds only the MTP blocks of a model; use the file with the whole model")
    scales = [name for name in tensors if name.endswith((".scale", ".input_scale"))]
    if scales:
        raise UnsupportedError(f"{source} has NVFP4 scale tensors ({listed(scales)}), which are not supported")
    for index, full in enumerate(config.full_attention):
        if full and f"blk.{index}.attn_qkv.weight" in tensors:
            raise UnsupportedError(
                f"{source}: blk.{index}.attn_qkv.weight fuses Q, K and V of a full-attention layer,"
                " expected attn_q, attn_k and attn_v; convert the model again without fusing"
            )
    check_tensors(source, tensors, target_shapes(config), mtp_tensors(gguf, config))


def mtp_tensors(gguf: WeightFile, config: TargetConfig) -> tuple[str, ...]:
    """Names of the tensors of the multi-token-prediction blocks, which follow the trunk."""
    blocks = range(config.block_count, config.block_count + config.nextn_predict_layers)
    prefixes = tuple(f"blk.{index}." for index in blocks)
    return tuple(name for name in gguf.tensors if name.startswith(prefixes))


def mask_token(gguf: GGUFFile) -> int | None:
    """The mask token that the target's vocabulary names, if it does."""
    found = gguf.metadata.get("tokenizer.ggml.mask_token_id")
    return found if isinstance(found, int) and not isinstance(found, bool) else None


def target_weights(gguf: GGUFFile, config: TargetConfig) -> list[TensorInfo]:
    """The tensors that decoding reads: all but those of MTP blocks."""
    return [gguf.tensors[name] for name in target_shapes(config) if name in gguf.tensors]


def check_pair(target: TargetConfig, draft: DraftConfig, target_mask_token: int | None) -> tuple[str, ...]:
    """Whether the drafter fits the target: raises MismatchError if not, else returns what is worth saying.

    `target_mask_token` is the mask token of the target's vocabulary, used where the drafter's file names none.
    """
    wrong = []
    if draft.embedding_length != target.embedding_length:
        wrong.append(f"hidden size {draft.embedding_length}, expected {target.embedding_length}")
    beyond = [layer for layer in draft.target_layers if not 0 <= layer < target.block_count]
    if beyond:
        wrong.append(f"reads target layer {beyond[0]}, expected 0 to {target.block_count - 1}")
    if draft.target_block_count not in (None, target.block_count):
        wrong.append(f"made for {draft.target_block_count} target layers, expected {target.block_count}")
    if draft.vocab_size not in (None, target.vocab_size):
        wrong.append(f"vocabulary of {draft.vocab_size:,} tokens, expected {target.vocab_size:,}")
    mask = target_mask_token if draft.mask_token_id is None else draft.mask_token_id
    if mask is None:
        wrong.append("no mask token in its file nor in the target's")
    elif mask >= target.vocab_size:
        wrong.append(f"mask token {mask}, expected an id under {target.vocab_size}")
    if wrong:
        raise MismatchError(
            f"drafter {draft.name} does not fit target {target.name}: {'; '.join(wrong)};"
            " use the drafter that was made for this target"
        )
    return _pair_notes(target, draft, target_mask_token)


def _pair_notes(target: TargetConfig, draft: DraftConfig, target_mask_token: int | None) -> tuple[str, ...]:
    notes = []
    if draft.mask_token_id is None:
        notes.append(f"the drafter names no mask token: {target_mask_token} is taken from the target")
    elif target_mask_token not in (None, draft.mask_token_id):
        notes.append(f"mask token: the drafter's {draft.mask_token_id} is used, the target's is {target_mask_token}")
    if paired(target, draft, target_mask_token).rope_freq_base != draft.rope_freq_base:
        said = f"{draft.rope_freq_base:g}" if draft.rope_freq_base else "absent"
        notes.append(f"the drafter's rope base is {said}: the target's {target.rope_freq_base:g} is used")
    if any(draft.sliding):
        seen = f"see only the last {draft.sliding_window:,} positions"
        notes.append(f"{sum(draft.sliding)} of {draft.block_count} drafter layers {seen}")
    if target.nextn_predict_layers:
        notes.append(f"the target's {target.nextn_predict_layers} MTP block(s) are not used")
    return tuple(notes)


def paired(target: TargetConfig, draft: DraftConfig, target_mask_token: int | None) -> DraftConfig:
    """The drafter's configuration as it runs beside this target, what its file leaves open filled in."""
    # lucebox's converter writes a wrong rope base where it finds none, and its runtime takes the target's.
    from_target = draft.flavour == "lucebox" or not draft.rope_freq_base
    return dataclasses.replace(
        draft,
        rope_freq_base=target.rope_freq_base if from_target else draft.rope_freq_base,
        mask_token_id=target_mask_token if draft.mask_token_id is None else draft.mask_token_id,
    )


def unusual(gguf: GGUFFile, config: TargetConfig) -> tuple[str, ...]:
    """What a user of this file may want to know: accepted, but not what most files are like."""
    notes = []
    if len(gguf.shards) > 1:
        notes.append(f"split into {len(gguf.shards)} files")
    if config.nextn_predict_layers:
        names = mtp_tensors(gguf, config)
        size = gib(sum(gguf.tensors[name].n_bytes for name in names))
        notes.append(f"{config.nextn_predict_layers} MTP block(s), {len(names)} tensors, {size}: accepted, not used")
    if config.tied_output:
        notes.append("tied head: the embedding is also the output matrix")
    matrices = Counter(
        i.type for i in gguf.tensors.values() if len(i.shape) > 1 and not i.name.endswith("conv1d.weight")
    )
    if len(matrices) > 1:
        notes.append("mixed types: " + ", ".join(f"{kind} {count}" for kind, count in matrices.most_common()))
    narrow = {i.type for i in gguf.tensors.values() if i.name.endswith(("ssm_alpha.weight", "ssm_beta.weight"))}
    if narrow & {"F16", "BF16", "F32"} and len(matrices) > 1:
        notes.append(f"ssm_alpha and ssm_beta are not quantised ({', '.join(sorted(narrow))})")
    if gguf.metadata.get("qwen35.attention.recurrent_layers") is not None:
        chosen = [index for index, full in enumerate(config.full_attention) if full]
        notes.append(f"the file itself names its full-attention layers: {listed([str(i) for i in chosen], 20)}")
    if config.value_head_dim != config.state_size:
        notes.append(f"V heads of {config.value_head_dim} beside K heads of {config.state_size}")
    notes += _vocabulary_notes(gguf, config)
    return tuple(notes)


def _vocabulary_notes(gguf: GGUFFile, config: TargetConfig) -> list[str]:
    tokens, types = gguf.metadata.get("tokenizer.ggml.tokens"), gguf.metadata.get("tokenizer.ggml.token_type")
    if not isinstance(tokens, list):
        return ["no tokenizer in the file"]
    unused = types.count(UNUSED_TOKEN) if isinstance(types, list) else 0
    padding = config.vocab_size - len(tokens) + unused
    notes = [f"{padding:,} of {config.vocab_size:,} vocabulary rows are padding"] if padding > 0 else []
    if "tokenizer.chat_template" not in gguf.metadata:
        notes.append("no chat template in the file")
    return notes


def types_by_group(weights: WeightFile) -> dict[str, dict[str, tuple[int, int]]]:
    """For each group of tensors and each type: how many tensors, how many bytes."""
    mtp = tuple(name.split("nextn.")[0] for name in weights.tensors if ".nextn." in name)
    groups: dict[str, dict[str, tuple[int, int]]] = {}
    for name, info in weights.tensors.items():
        types = groups.setdefault("MTP" if name.startswith(mtp) else _group(name), {})
        count, size = types.get(info.type, (0, 0))
        types[info.type] = (count + 1, size + info.n_bytes)
    return groups


def _group(name: str) -> str:
    for pattern, group in GROUPS:
        if re.search(pattern, name):
            return group
    return "other"


# First match wins; the order is also that of a forward pass, roughly.
GROUPS = (
    (r"norm\.weight$", "norms"),
    (r"^token_embd\.", "embedding"),
    (r"^output\.", "output"),
    (r"^fc\.", "feature fusion"),
    (r"\.ffn_", "feed-forward"),
    (r"\.(attn_qkv|attn_gate|ssm_\w+)", "delta net"),
    (r"\.attn_", "attention"),
)
