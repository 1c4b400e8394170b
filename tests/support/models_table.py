"""The tables of docs/models.md: the memory that published models take, by their shapes and the program's arithmetic."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dflash_core.arch.architecture import Head
from dflash_core.arch.kinds import Attention, Experts, Mixer
from dflash_core.arch.registry import ARCHITECTURES
from dflash_core.arch.spec import ModelSpec
from dflash_core.backends.cuda.kv import ring_slots
from dflash_core.bench.family_models import EPS, gemma4, gpt_oss, llama, sizes
from dflash_core.cache_types import F16
from dflash_core.drafting import MAX_NODES
from dflash_core.fits import PREFILL_ROWS

GIB, KIB = 1 << 30, 1 << 10
Q4_K_M, Q8_0, MXFP4 = (
    4.85,
    8.5,
    4.25,
)  # bits per weight, the whole file counted; published files differ by a few hundredths
CARDS = (16, 24, 32)
# Memory of a card that is not available to weights and cache: the driver, kernels, passes and graphs, and the rounding
# of its nominal size.
TAKEN = 1.6 * GIB

HYBRID = {
    "context_length": 262_144, "attention.key_length": 256, EPS: 1e-6, "rope.freq_base": 1e7,
    "rope.dimension_count": 64, "ssm.conv_kernel": 4, "ssm.state_size": 128, "ssm.group_count": 16,
}  # fmt: skip
PLAIN = {"context_length": 40_960, "attention.key_length": 128, EPS: 1e-6, "rope.freq_base": 1e6}
QWEN2 = {"context_length": 32_768, EPS: 1e-6, "rope.freq_base": 1e6}
GROWING = {
    "rope.scaling.type": "yarn", "rope.scaling.factor": 16.0, "rope.scaling.original_context_length": 16_384,
    "rope.scaling.yarn_log_multiplier": 1.0, "attention.temperature_scale": 0.1,
}  # fmt: skip
LONG = PLAIN | {"context_length": 262_144}


def gemma3(layers: int, hidden: int, heads: int, kv_heads: int, ffn: int, head: int = 256) -> dict[str, Any]:
    small = layers <= 26  # 270M and 1B
    return sizes(layers, hidden, heads, kv_heads, ffn) | {
        "context_length": 32_768 if small else 131_072, "attention.key_length": head, EPS: 1e-6,
        "rope.freq_base": 1e6, "attention.sliding_window": 512 if small else 1024,
    }  # fmt: skip


def laguna_xs() -> dict[str, Any]:
    return sizes(40, 2048, 48, 8, 8192, 256, 8, 512) | {
        "attention.head_count": [48 if index % 4 == 0 else 64 for index in range(40)],
        "context_length": 131_072, "attention.key_length": 128, EPS: 1e-6, "rope.freq_base": 5e5,
        "attention.sliding_window": 512, "rope.dimension_count": 64, "rope.dimension_count_swa": 128,
        "expert_shared_feed_forward_length": 512, "leading_dense_block_count": 1, "expert_gating_func": 2,
    }  # fmt: skip


def delta(value_heads: int) -> dict[str, Any]:
    return {"ssm.time_step_rank": value_heads, "ssm.inner_size": 128 * value_heads}


@dataclass(frozen=True, slots=True)
class Published:
    """A model that people run, and the drafter that was made for it, if one was."""

    name: str
    architecture: str
    keys: Mapping[str, Any]
    drafter: str
    tied: bool = False
    vocabulary: int = 0  # 0: Qwen's
    values: bool = True  # layers without a window have values of their own

    @property
    def spec(self) -> ModelSpec:
        architecture = ARCHITECTURES[self.architecture]
        vocabulary = self.vocabulary or (248_320 if "35" in self.architecture else 151_936)
        sliding = self.keys.get("attention.sliding_window_pattern", [])
        own = {f"blk.{index}.attn_v.weight" for index, one in enumerate(sliding) if one or self.values}
        head = Head(vocabulary, self.tied, frozenset(own))
        values = {f"{self.architecture}.{key}": value for key, value in self.keys.items()}
        return architecture.read(architecture.settings(self.name, values), head)


PUBLISHED = (
    Published(
        "Qwen3.5-27B, Qwen3.6-27B, Qwen3.8-27B",
        "qwen35",
        HYBRID | sizes(64, 5120, 24, 4, 17408) | delta(48),
        "DFlash, DFlash 2 and DSpark (3.8), MTP",
    ),
    Published(
        "Qwen3.5-35B-A3B, Qwen3.6-35B-A3B",
        "qwen35moe",
        HYBRID | sizes(40, 2048, 16, 2, 0, 256, 8, 512) | delta(32) | {"expert_shared_feed_forward_length": 512},
        "DFlash, MTP",
    ),
    Published("Qwen3.5-4B", "qwen35", HYBRID | sizes(32, 2560, 16, 4, 9216) | delta(32), "DFlash, MTP", tied=True),
    Published("Qwen3.5-9B", "qwen35", HYBRID | sizes(32, 4096, 16, 4, 12288) | delta(32), "DFlash, MTP"),
    Published("Qwen3-0.6B", "qwen3", PLAIN | sizes(28, 1024, 16, 8, 3072), "", tied=True),
    Published("Qwen3-1.7B", "qwen3", PLAIN | sizes(28, 2048, 16, 8, 6144), "", tied=True),
    Published("Qwen3-4B, 4B-2507", "qwen3", LONG | sizes(36, 2560, 32, 8, 9728), "DFlash", tied=True),
    Published("Qwen3-8B", "qwen3", PLAIN | sizes(36, 4096, 32, 8, 12288), "DFlash"),
    Published("Qwen3-14B", "qwen3", PLAIN | sizes(40, 5120, 40, 8, 17408), "DSpark"),
    Published("Qwen3-32B", "qwen3", PLAIN | sizes(64, 5120, 64, 8, 25600), ""),
    Published(
        "Qwen3-30B-A3B, 30B-A3B-2507, Coder-30B-A3B",
        "qwen3moe",
        LONG | sizes(48, 2048, 32, 4, 0, 128, 8, 768),
        "DFlash (Coder)",
    ),
    Published("Qwen3-235B-A22B", "qwen3moe", LONG | sizes(94, 4096, 64, 4, 0, 128, 8, 1536), ""),
    Published("Qwen2.5-7B, R1-Distill-7B", "qwen2", QWEN2 | sizes(28, 3584, 28, 4, 18944), "", vocabulary=152_064),
    Published("Qwen2.5-14B, R1-Distill-14B", "qwen2", QWEN2 | sizes(48, 5120, 40, 8, 13824), "", vocabulary=152_064),
    Published(
        "Qwen2.5-Coder-32B, R1-Distill-32B", "qwen2", QWEN2 | sizes(64, 5120, 40, 8, 27648), "", vocabulary=152_064
    ),
    Published("SmolLM3-3B", "smollm3", llama(36, 2048, 16, 4, 11008, 65_536), "", True, 128_256),
    Published(
        "Granite-4.2-3B", "granite", llama(40, 2560, 40, 8, 8192) | {"attention.key_length": 64}, "", vocabulary=100_352
    ),
    Published("Granite-3.3-8B", "granite", llama(40, 4096, 32, 8, 12800), "", True, 49_159),
    Published("Granite-4.1-8B", "granite", llama(40, 4096, 32, 8, 12800), "", vocabulary=100_352),
    Published(
        "Seed-OSS-36B",
        "seed_oss",
        LONG | sizes(64, 5120, 80, 8, 27648) | {"context_length": 524_288, "rope.freq_base": 1e7},
        "",
        vocabulary=155_136,
    ),
    Published("Phi-4-14B", "phi3", llama(40, 5120, 40, 10, 17920, 16_384), "", vocabulary=100_352),
    Published(
        "GLM-4-9B-0414, Z1-9B", "glm4", llama(40, 4096, 32, 2, 13696, 32_768) | {"rope.dimension_count": 64}, "",
        vocabulary=151_552,
    ),
    Published(
        "GLM-4-32B-0414, Z1-32B",
        "glm4",
        llama(61, 6144, 48, 2, 23040, 32_768) | {"rope.dimension_count": 64},
        "",
        vocabulary=151_552,
    ),
    Published("SmolLM2-135M", "llama", llama(30, 576, 9, 3, 1536, 8192), "DFlash 2, shipped", True, 49_152),
    Published("Llama-3.2-1B", "llama", llama(16, 2048, 32, 8, 8192), "", True, 128_256),
    Published("Llama-3.2-3B", "llama", llama(28, 3072, 24, 8, 8192), "", True, 128_256),
    Published("Llama-3.1-8B", "llama", llama(32, 4096, 32, 8, 14336), "DFlash", vocabulary=128_256),
    Published("Llama-3.1-70B, 3.3-70B", "llama", llama(80, 8192, 64, 8, 28672), "", vocabulary=128_256),
    Published("Mistral-7B-v0.3", "llama", llama(32, 4096, 32, 8, 14336, 32_768), "", vocabulary=32_768),
    Published(
        "Mistral-Nemo-12B",
        "llama",
        llama(40, 5120, 32, 8, 14336) | {"attention.key_length": 128},
        "",
        vocabulary=131_072,
    ),
    Published(
        "Mistral-Small-3.2-24B",
        "mistral3",
        llama(40, 5120, 32, 8, 32768) | {"attention.key_length": 128},
        "",
        vocabulary=131_072,
    ),
    Published("Ministral-3-8B", "mistral3", llama(34, 4096, 32, 8, 14336, 262_144) | GROWING, "", vocabulary=131_072),
    Published("Gemma-3-270M", "gemma3", gemma3(18, 640, 4, 1, 2048), "", True, 262_144),
    Published("Gemma-3-1B", "gemma3", gemma3(26, 1152, 4, 1, 6912), "", True, 262_144),
    Published("Gemma-3-4B", "gemma3", gemma3(34, 2560, 8, 4, 10240), "", True, 262_208),
    Published("Gemma-3-12B", "gemma3", gemma3(48, 3840, 16, 8, 15360), "", True, 262_208),
    Published("Gemma-3-27B", "gemma3", gemma3(62, 5376, 32, 16, 21504, 128), "", True, 262_208),
    Published(
        "Gemma-4-E2B",
        "gemma4",
        gemma4(5, 1536, 8, (1, 1), [6144] * 15 + [12288] * 20, layers=35, shared=20, per_layer=256),
        "assistant", True, 262_144,
    ),
    Published(
        "Gemma-4-E4B",
        "gemma4",
        gemma4(6, 2560, 8, (2, 2), 10240, layers=42, shared=18, per_layer=256),
        "assistant", True, 262_144,
    ),
    Published(
        "Gemma-4-12B",
        "gemma4",
        gemma4(6, 3840, 16, (8, 1), 15360, layers=48),
        "assistant, DFlash, DSpark", True, 262_144, values=False,
    ),
    Published(
        "Gemma-4-26B-A4B",
        "gemma4",
        gemma4(6, 2816, 16, (8, 2), 2112, 128, 8, 704, layers=30),
        "assistant, DFlash", True, 262_144, values=False,
    ),
    Published(
        "Gemma-4-31B",
        "gemma4",
        gemma4(6, 5376, 32, (16, 4), 21504, layers=60),
        "assistant, DFlash", True, 262_144, values=False,
    ),
    Published("GPT-OSS-20B", "gpt-oss", gpt_oss(24, 32), "DFlash", vocabulary=201_088),
    Published("GPT-OSS-120B", "gpt-oss", gpt_oss(36, 128), "", vocabulary=201_088),
    Published("Laguna-XS.2, XS-2.1", "laguna", laguna_xs(), "DFlash", vocabulary=100_352),
)  # fmt: skip


def models_table() -> str:
    """Sizes, and the longest context of an f16 cache that fits beside Q4_K_M weights, without a drafter."""
    titles = ["model", "architecture", "parameters", "active per token", "Q4_K_M", "Q8_0", "cache per position"]
    titles += [*(f"on {card} GB" for card in CARDS), "drafters"]
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for model in PUBLISHED:
        spec = model.spec
        cells = [model.name, f"`{model.architecture}`", billions(spec.parameters), billions(spec.active_parameters)]
        cells += [gib_of(spec, bits) for bits in (Q4_K_M, Q8_0)]
        cells += [f"{position_bytes(spec) / KIB:.0f} KiB", *(context_on(spec, card) for card in CARDS)]
        lines.append(f"| {' | '.join([*cells, model.drafter or 'n-grams'])} |")
    return "\n".join(lines) + "\n"


def gib_of(spec: ModelSpec, bits: float) -> str:
    size = f"{weight_bytes(spec, bits) / GIB:.1f} GiB"
    if not published_in_mxfp4(spec):
        return size
    return f"{size} (MXFP4)" if bits == Q4_K_M else "-"


def published_in_mxfp4(spec: ModelSpec) -> bool:
    """Whether its experts are published in 4 bits, so that other files of it are rare."""
    return any(isinstance(layer.ffn, Experts) and layer.ffn.activation == "clamped_swiglu" for layer in spec.layers)


def billions(count: int) -> str:
    return f"{count / 1e9:.1f} B"


def weight_bytes(spec: ModelSpec, bits: float) -> float:
    if published_in_mxfp4(spec):  # the other matrices are in Q8_0
        return sum(
            math.prod(shape) * (MXFP4 if name.endswith("_exps.weight") else Q8_0) / 8
            for name, shape in spec.tensors().items()
        )
    return spec.parameters * bits / 8


def cache_bytes(spec: ModelSpec, positions: int) -> int:
    """Of a card, whose layers with a window hold what it sees and what a chunk or a step writes."""
    spare = PREFILL_ROWS + MAX_NODES
    mixers = [layer.mixer for layer in spec.layers]
    return sum(mixer.position_bytes(F16) * ring_slots(window_of(mixer), spare, positions) for mixer in mixers)


def window_of(mixer: Mixer) -> int:
    return mixer.window if isinstance(mixer, Attention) else 0


def position_bytes(spec: ModelSpec) -> int:
    """Of layers that hold all positions."""
    return sum(layer.mixer.position_bytes(F16) for layer in spec.layers if not window_of(layer.mixer))


def context_on(spec: ModelSpec, card: int) -> str:
    """In thousands of positions, at most what the model was made for."""
    left = card * GIB - TAKEN - weight_bytes(spec, Q4_K_M)
    thousands = range(2, spec.context_length // 1024 + 1)
    longest = max((one for one in thousands if cache_bytes(spec, one * 1024) <= left), default=0)
    return f"{longest}k" if longest else "no"


def parts() -> dict[str, str]:
    """What docs/models.md must hold between `<!-- name -->` and `<!-- /name -->`."""
    return {"models": models_table()}
