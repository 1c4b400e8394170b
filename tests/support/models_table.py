"""The tables of docs/models.md: the memory that published models take, by their shapes and the program's arithmetic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dflash_core.arch.architecture import Head
from dflash_core.arch.registry import ARCHITECTURES
from dflash_core.arch.spec import ModelSpec
from dflash_core.cache_types import F16

GIB, KIB = 1 << 30, 1 << 10
Q4_K_M, Q8_0 = 4.85, 8.5  # bits per weight, the whole file counted; published files differ by a few hundredths
CARDS = (16, 24, 32)
# Memory of a card that is not available to weights and cache: the driver, kernels, passes and graphs, and the rounding
# of its nominal size.
TAKEN = 1.6 * GIB

EPS = "attention.layer_norm_rms_epsilon"
HYBRID = {
    "context_length": 262_144, "attention.key_length": 256, EPS: 1e-6, "rope.freq_base": 1e7,
    "rope.dimension_count": 64, "ssm.conv_kernel": 4, "ssm.state_size": 128, "ssm.group_count": 16,
}  # fmt: skip
PLAIN = {"context_length": 40_960, "attention.key_length": 128, EPS: 1e-6, "rope.freq_base": 1e6}
LONG = PLAIN | {"context_length": 262_144}


def sizes(layers: int, hidden: int, heads: int, kv_heads: int, ffn: int = 0, *experts: int) -> dict[str, Any]:
    """`experts`: how many, how many of them a token takes, their width."""
    keys: dict[str, Any] = {
        "block_count": layers, "embedding_length": hidden, "attention.head_count": heads,
        "attention.head_count_kv": kv_heads,
    }  # fmt: skip
    if ffn:
        keys["feed_forward_length"] = ffn
    return keys | dict(zip(("expert_count", "expert_used_count", "expert_feed_forward_length"), experts))


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

    @property
    def spec(self) -> ModelSpec:
        architecture = ARCHITECTURES[self.architecture]
        vocabulary = 248_320 if "35" in self.architecture else 151_936
        return architecture.read(architecture.settings(self.name, self.keys), Head(vocabulary, self.tied))


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
    Published("Qwen3-0.6B", "qwen3", PLAIN | sizes(28, 1024, 16, 8, 3072), "", tied=True),
    Published("Qwen3-1.7B", "qwen3", PLAIN | sizes(28, 2048, 16, 8, 6144), "", tied=True),
    Published("Qwen3-4B, 4B-2507", "qwen3", LONG | sizes(36, 2560, 32, 8, 9728), "DFlash", tied=True),
    Published("Qwen3-8B", "qwen3", PLAIN | sizes(36, 4096, 32, 8, 12288), "DFlash"),
    Published("Qwen3-14B", "qwen3", PLAIN | sizes(40, 5120, 40, 8, 17408), ""),
    Published("Qwen3-32B", "qwen3", PLAIN | sizes(64, 5120, 64, 8, 25600), ""),
    Published(
        "Qwen3-30B-A3B, 30B-A3B-2507, Coder-30B-A3B",
        "qwen3moe",
        LONG | sizes(48, 2048, 32, 4, 0, 128, 8, 768),
        "DFlash (Coder)",
    ),
    Published("Qwen3-235B-A22B", "qwen3moe", LONG | sizes(94, 4096, 64, 4, 0, 128, 8, 1536), ""),
)


def models_table() -> str:
    """Sizes, and the longest context of an f16 cache that fits beside Q4_K_M weights, without a drafter."""
    titles = ["model", "architecture", "parameters", "active per token", "Q4_K_M", "Q8_0", "cache per position"]
    titles += [*(f"on {card} GB" for card in CARDS), "drafters"]
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for model in PUBLISHED:
        spec = model.spec
        cells = [model.name, f"`{model.architecture}`", billions(spec.parameters), billions(spec.active_parameters)]
        cells += [f"{weight_bytes(spec, bits) / GIB:.1f} GiB" for bits in (Q4_K_M, Q8_0)]
        cells += [f"{position_bytes(spec) / KIB:.0f} KiB", *(context_on(spec, card) for card in CARDS)]
        lines.append(f"| {' | '.join([*cells, model.drafter or 'text'])} |")
    return "\n".join(lines) + "\n"


def billions(count: int) -> str:
    return f"{count / 1e9:.1f} B"


def weight_bytes(spec: ModelSpec, bits: float) -> float:
    return spec.parameters * bits / 8


def position_bytes(spec: ModelSpec) -> int:
    return spec.position_bytes(F16)


def context_on(spec: ModelSpec, card: int) -> str:
    """In thousands of positions, at most what the model was made for."""
    left = card * GIB - TAKEN - weight_bytes(spec, Q4_K_M)
    longest = min(int(left // position_bytes(spec)), spec.context_length)
    return f"{longest // 1024}k" if longest >= 2048 else "no"


def parts() -> dict[str, str]:
    """What docs/models.md must hold between `<!-- name -->` and `<!-- /name -->`."""
    return {"models": models_table()}
