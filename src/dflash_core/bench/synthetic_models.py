"""What a synthetic file needs to know of the model that it stands in for, and those of Qwen: sizes as their files state
them, and the types that publishers ship. Other families are in family_models.py.

Settings are GGUF keys without the architecture's prefix. The type mixes are llama.cpp's Q4_K_M rule, as for the 27B
files of Qwen3.6 and for Qwen3; for experts a mix tensor by tensor as in the UD-Q4_K_XL files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from dflash_core.arch.architecture import Head
from dflash_core.arch.assistant import AssistantConfig
from dflash_core.arch.draft_heads import Convolution, Heads, Markov, Selector
from dflash_core.arch.kinds import ROUTER, SHARED_GATE, Attention
from dflash_core.arch.registry import ARCHITECTURES
from dflash_core.arch.spec import ModelSpec
from dflash_core.config import ASSISTANT_ARCHITECTURE, DraftConfig
from dflash_core.drafters.assistant import assistant_config
from dflash_core.formats.metadata import Settings

Q4_K_M = 15  # general.file_type


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Special tokens, with Qwen's names, and their places; everything else is spelt letter by letter."""

    pre: str
    size: int
    end_of_text: int
    im_start: int
    im_end: int
    think: int
    end_think: int


QWEN35 = Vocabulary("qwen35", 248_320, 248_044, 248_045, 248_046, 248_068, 248_069)
QWEN3 = Vocabulary("qwen2", 151_936, 151_643, 151_644, 151_645, 151_667, 151_668)


@dataclass(frozen=True, slots=True)
class Model:
    """A target and its drafter. `storage`: the type of a matrix, from its name without the layer, and whether the layer
    is one that llama.cpp gives more bits, counted over all layers and over those of attention. `names`: tensors that
    the settings do not show. `head`: what drafts; `assistant`: the settings of one."""

    name: str
    architecture: str
    settings: Mapping[str, Any]
    vocabulary: Vocabulary
    draft: DraftConfig
    storage: Callable[[str, bool, bool], str]
    tied: bool = False
    mix: str = "Q4_K_M"
    head: str = "dflash"  # or "mtp" or "assistant"
    names: frozenset[str] = frozenset()
    assistant: Mapping[str, Any] = field(default_factory=dict)

    def target(self) -> ModelSpec:
        return self.read(self.settings)

    def drafter(self) -> DraftConfig | AssistantConfig:
        """The drafter of a file of its own, without a head in the target's."""
        if self.head != "assistant":
            return self.draft
        values = {f"{ASSISTANT_ARCHITECTURE}.{key}": value for key, value in self.assistant.items()}
        keys = Settings("synthetic", values, ASSISTANT_ARCHITECTURE + ".")
        return assistant_config(keys, self.vocabulary.size, 0, self.target())

    def read(self, settings: Mapping[str, Any]) -> ModelSpec:
        """The target with these settings in place of its own."""
        architecture = ARCHITECTURES[self.architecture]
        values = {f"{self.architecture}.{key}": value for key, value in settings.items()}
        general = {"general.name": f"synthetic {self.architecture} {self.name}", "general.file_type": Q4_K_M}
        keys = architecture.settings("synthetic", {**values, **general})
        return architecture.read(keys, Head(self.vocabulary.size, self.tied, self.names))


def is_float(name: str, shape: tuple[int, ...]) -> bool:
    return len(shape) == 1 or name.endswith(("conv1d.weight", "_conv_base", ROUTER, SHARED_GATE, ".bias"))


def target_types(spec: ModelSpec, model: Model) -> dict[str, str]:
    """The storage type of every tensor of the model's target."""
    full = [index for index, layer in enumerate(spec.layers) if isinstance(layer.mixer, Attention)]
    types: dict[str, str] = {}
    for name, shape in spec.tensors().items():
        index = int(name.split(".")[1]) if name.startswith("blk.") else 0
        generous = more_bits(index, spec.block_count), more_bits(sum(at < index for at in full), len(full))
        part = name.split(".", 2)[-1] if name.startswith("blk.") else name
        types[name] = "F32" if is_float(name, shape) else model.storage(part, *generous)
    return types


def draft_types(config: DraftConfig | AssistantConfig) -> dict[str, str]:
    """The storage type of every tensor of a drafter."""
    return {name: "F32" if is_float(name, shape) else "Q8_0" for name, shape in config.tensors().items()}


def more_bits(at: int, count: int) -> bool:
    """llama.cpp's use_more_bits: the first and the last eighth of the layers, and every third one between them."""
    return at < count // 8 or at >= 7 * count // 8 or (at - count // 8) % 3 == 2


def dense(part: str, generous: bool, generous_attention: bool) -> str:
    """Q4_K_M, with more bits for the tensors to which publishers of the hybrid models give more."""
    if part == "output.weight":
        return "Q6_K"
    if part in ("attn_qkv.weight", "ssm_out.weight"):
        return "Q5_K"
    if part in ("ssm_alpha.weight", "ssm_beta.weight"):
        return "Q8_0"
    if part == "ffn_down.weight":
        return "Q6_K" if generous else "Q4_K"
    if part == "attn_v.weight":
        return "Q6_K" if generous_attention else "Q4_K"
    return "Q4_K"


def tied(part: str, generous: bool, generous_attention: bool) -> str:
    """`dense` for a model whose embedding is also its output head."""
    return "Q6_K" if part == "token_embd.weight" else dense(part, generous, generous_attention)


def _experts(part: str, generous: bool, generous_attention: bool) -> str:
    """Experts at 4 and 5 bits, attention and the shared expert at 8; the small gates of the delta net stay f16."""
    if part.startswith(("ssm_alpha", "ssm_beta")):
        return "F16"
    if part.startswith(("attn_q.", "attn_k.", "attn_v.", "attn_output.")) or "shexp" in part:
        return "Q8_0"
    return "Q5_K" if part.startswith("ffn_down") else dense(part, generous, generous_attention)


def block_drafter(
    layers: int, hidden: int, width: int, kv_heads: int, captured: tuple[int, ...], mask: int, base: float
) -> DraftConfig:
    """A drafter with blocks of 16, whose layers all see the whole context."""
    return DraftConfig(
        name="synthetic DFlash drafter", flavour="dflash", block_count=layers, embedding_length=hidden,
        feed_forward_length=width, head_count=32, head_count_kv=kv_heads, key_length=128, rms_eps=1e-6,
        rope_freq_base=base, block_size=16, target_layers=captured, mask_token_id=mask, vocab_size=None,
        target_block_count=None, sliding_window=0, sliding=(False,) * layers, causal=(False,) * layers,
    )  # fmt: skip


def _sliding(config: DraftConfig, window: int) -> DraftConfig:
    """`config` with a sliding window in all layers but the last: they see `window` positions."""
    return replace(config, sliding_window=window, sliding=(True,) * (config.block_count - 1) + (False,))


_HYBRID: dict[str, Any] = {
    "context_length": 262_144, "attention.key_length": 256, "attention.layer_norm_rms_epsilon": 1e-6,
    "rope.freq_base": 1e7, "rope.dimension_count": 64, "rope.dimension_sections": [11, 11, 10, 0],
    "ssm.conv_kernel": 4, "ssm.state_size": 128, "ssm.group_count": 16, "full_attention_interval": 4,
}  # fmt: skip
_QWEN3: dict[str, Any] = {
    "block_count": 36, "context_length": 40_960, "attention.head_count": 32, "attention.head_count_kv": 8,
    "attention.key_length": 128, "attention.layer_norm_rms_epsilon": 1e-6, "rope.freq_base": 1e6,
}  # fmt: skip
_QWEN3_TAPS = (1, 9, 17, 25, 33)

SIZE_27B = Model(
    "27b", "qwen35",
    _HYBRID | {
        "block_count": 64, "embedding_length": 5120, "feed_forward_length": 17_408, "attention.head_count": 24,
        "attention.head_count_kv": 4, "ssm.time_step_rank": 48, "ssm.inner_size": 6144,
    },
    QWEN35, _sliding(block_drafter(5, 5120, 17_408, 8, (1, 16, 31, 46, 61), 248_070, 1e7), 2048), dense,
)  # fmt: skip
SIZE_35B_A3B = Model(
    "35b-a3b", "qwen35moe",
    _HYBRID | {
        "block_count": 40, "embedding_length": 2048, "attention.head_count": 16, "attention.head_count_kv": 2,
        "ssm.time_step_rank": 32, "ssm.inner_size": 4096, "expert_count": 256, "expert_used_count": 8,
        "expert_feed_forward_length": 512, "expert_shared_feed_forward_length": 512,
    },
    QWEN35, _sliding(block_drafter(6, 2048, 6144, 4, (1, 6, 11, 16, 22, 27, 32, 37), 248_077, 1e7), 4096), _experts,
    mix="UD-Q4_K_XL",
)  # fmt: skip
SIZE_8B = Model(
    "8b", "qwen3", _QWEN3 | {"embedding_length": 4096, "feed_forward_length": 12_288}, QWEN3,
    block_drafter(5, 4096, 12_288, 8, _QWEN3_TAPS, 151_669, 1e6), dense,
)  # fmt: skip
SIZE_4B = Model(
    "4b", "qwen3", _QWEN3 | {"embedding_length": 2560, "feed_forward_length": 9728}, QWEN3,
    block_drafter(5, 2560, 9728, 8, _QWEN3_TAPS, 151_669, 1e6), tied, tied=True,
)  # fmt: skip
TARGET_27B, DRAFT_27B = SIZE_27B.target(), SIZE_27B.draft
SIZE_27B_DFLASH2 = replace(
    SIZE_27B,
    draft=replace(
        DRAFT_27B, name="synthetic DFlash 2 drafter", block_size=8, sliding=(True,) * 5, vocab_size=QWEN35.size,
        heads=Heads(Convolution(2, 16), Selector(256, 16)),
    ),
)  # fmt: skip


def _dspark(config: DraftConfig, vocab: Vocabulary) -> DraftConfig:
    """`config` with the heads of DSpark."""
    markov = Markov(256, confidence=config.embedding_length + 256, confidence_bias=True)
    return replace(
        config, name="synthetic DSpark drafter", block_size=7, vocab_size=vocab.size, sliding_window=0,
        sliding=(False,) * config.block_count,
        heads=Heads(markov=markov, anchor_first=True, own_embedding=True, own_head=True),
    )  # fmt: skip


SIZE_27B_DSPARK = replace(SIZE_27B, draft=_dspark(DRAFT_27B, QWEN35))
SIZE_27B_MTP, SIZE_35B_A3B_MTP = (replace(model, head="mtp") for model in (SIZE_27B, SIZE_35B_A3B))


def _hybrid(name: str, hidden: int, width: int, *, tied_head: bool) -> Model:
    """A small dense Qwen3.5, and z-lab's drafter of it."""
    sizes = {
        "block_count": 32, "embedding_length": hidden, "feed_forward_length": width, "attention.head_count": 16,
        "attention.head_count_kv": 4, "ssm.time_step_rank": 32, "ssm.inner_size": 4096,
    }  # fmt: skip
    drafter = block_drafter(5, hidden, width, 8, (1, 8, 15, 22, 29), 248_070, 1e7)
    return Model(name, "qwen35", _HYBRID | sizes, QWEN35, drafter, tied if tied_head else dense, tied=tied_head)


SIZE_35_9B = _hybrid("qwen3.5-9b", 4096, 12_288, tied_head=False)
SIZE_35_4B = _hybrid("qwen3.5-4b", 2560, 9216, tied_head=True)  # the feed-forward's width is assumed
SIZE_14B_DSPARK = Model(
    "qwen3-14b-dspark", "qwen3",
    _QWEN3 | {"block_count": 40, "embedding_length": 5120, "feed_forward_length": 17_408, "attention.head_count": 40},
    QWEN3, _dspark(block_drafter(5, 5120, 17_408, 8, (1, 10, 19, 28, 37), 151_669, 1e6), QWEN3), dense,
)  # fmt: skip
QWEN = {
    "27b": SIZE_27B, "27b-mtp": SIZE_27B_MTP, "27b-dflash2": SIZE_27B_DFLASH2, "27b-dspark": SIZE_27B_DSPARK,
    "35b-a3b": SIZE_35B_A3B, "35b-a3b-mtp": SIZE_35B_A3B_MTP, "8b": SIZE_8B, "4b": SIZE_4B, "qwen3.5-9b": SIZE_35_9B,
    "qwen3.5-4b": SIZE_35_4B, "qwen3-14b-dspark": SIZE_14B_DSPARK,
}  # fmt: skip
