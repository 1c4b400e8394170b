"""Models of other families that synthetic files stand in for, and the table of all. Sizes are those of published files;
where a drafter's are not known, its comment says what they are assumed to be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dflash_core.arch.draft_heads import Convolution, Heads, Selector
from dflash_core.arch.kinds import ROPE_FACTORS
from dflash_core.bench.synthetic_models import QWEN, QWEN3, Model, block_drafter, dense, tied

EPS = "attention.layer_norm_rms_epsilon"
GEMMA_PERIOD, GEMMA_WINDOW = 6, 1024
LLAMA3 = replace(QWEN3, size=128_256, end_of_text=128_001, im_start=128_006, im_end=128_009)
LLAMA3 = replace(LLAMA3, think=128_010, end_think=128_011)
GEMMA = replace(QWEN3, size=262_144)
GPT_OSS = replace(QWEN3, size=201_088)
SMOLLM2 = replace(QWEN3, size=49_152, end_of_text=0, im_start=1, im_end=2, think=3, end_think=4)
MASK = 151_669  # after the special tokens of the synthetic vocabulary, as in Qwen3's


def sizes(layers: int, hidden: int, heads: int, kv_heads: int, ffn: int = 0, *experts: int) -> dict[str, Any]:
    """Settings that all families have. `experts`: how many, how many of them a token takes, their width."""
    keys: dict[str, Any] = {
        "block_count": layers, "embedding_length": hidden, "attention.head_count": heads,
        "attention.head_count_kv": kv_heads,
    }  # fmt: skip
    if ffn:
        keys["feed_forward_length"] = ffn
    return keys | dict(zip(("expert_count", "expert_used_count", "expert_feed_forward_length"), experts))


def llama(layers: int, hidden: int, heads: int, kv_heads: int, ffn: int, context: int = 131_072) -> dict[str, Any]:
    """Settings of Llama 3 and what is like it."""
    more = {"context_length": context, EPS: 1e-5, "rope.freq_base": 5e5}
    return sizes(layers, hidden, heads, kv_heads, ffn) | more


def sliding(layers: int, period: int = GEMMA_PERIOD) -> list[bool]:
    """Whether each layer of a Gemma has a window."""
    return [(index + 1) % period != 0 for index in range(layers)]


def gemma4(
    period: int, hidden: int, heads: int, kv_heads: tuple[int, int], ffn: int | list[int], *experts: int,
    layers: int, shared: int = 0, per_layer: int = 0,
) -> dict[str, Any]:  # fmt: skip
    """Settings of Gemma 4. `kv_heads`: of layers with a window and of those without, every `period`-th."""
    pattern = sliding(layers, period)
    keys = sizes(layers, hidden, heads, 0, 0, *experts) | {
        "feed_forward_length": ffn,
        "attention.shared_kv_layers": shared,
    }
    return keys | {
        "attention.head_count_kv": [kv_heads[0] if one else kv_heads[1] for one in pattern],
        "attention.sliding_window_pattern": pattern,
        "attention.sliding_window": 512 if per_layer else GEMMA_WINDOW,
        "attention.key_length": 512, "attention.key_length_swa": 256, "rope.dimension_count": 512,
        "rope.dimension_count_swa": 256, "rope.freq_base": 1e6, EPS: 1e-6,
        "context_length": 131_072 if per_layer else 262_144, "embedding_length_per_layer_input": per_layer,
    }  # fmt: skip


def own_values(layers: int, period: int = GEMMA_PERIOD) -> frozenset[str]:
    """The tensors of values of a Gemma 4 whose other layers take their keys as values."""
    return frozenset(f"blk.{index}.attn_v.weight" for index, one in enumerate(sliding(layers, period)) if one)


def gemma4_assistant(target: Mapping[str, Any], hidden: int, ffn: int) -> dict[str, Any]:
    """Settings of an assistant with four layers, the last without a window, and the target's heads."""
    layers, kv_heads = 4, target["attention.head_count_kv"]
    shared = (
        "attention.head_count", "attention.key_length", "attention.key_length_swa", "attention.sliding_window",
        "rope.dimension_count", "rope.dimension_count_swa", "rope.freq_base", "context_length", EPS,
    )  # fmt: skip
    return {key: target[key] for key in shared} | {
        "block_count": layers, "embedding_length": hidden, "embedding_length_out": target["embedding_length"],
        "feed_forward_length": ffn, "attention.sliding_window_pattern": [True] * (layers - 1) + [False],
        "attention.head_count_kv": [kv_heads[0]] * (layers - 1) + [kv_heads[-1]],
    }  # fmt: skip


def gpt_oss(layers: int, experts: int) -> dict[str, Any]:
    return sizes(layers, 2880, 64, 8, 2880, experts, 4, 2880) | {
        "context_length": 131_072, "attention.key_length": 64, EPS: 1e-5, "rope.freq_base": 150_000.0,
        "attention.sliding_window": 128, "rope.scaling.type": "yarn", "rope.scaling.factor": 32.0,
        "rope.scaling.original_context_length": 4096,
    }  # fmt: skip


def _gemma_experts(part: str, generous: bool, generous_attention: bool) -> str:
    """`tied`, but where rows of 704 and 2,112 are not whole blocks of 256, llama.cpp takes types with blocks of 32."""
    if part.startswith("ffn_down"):
        return "Q8_0" if generous else "Q5_0"
    return tied(part, generous, generous_attention)


def _mxfp4(part: str, generous: bool, generous_attention: bool) -> str:
    """As published: experts in MXFP4, the rest in Q8_0."""
    return "MXFP4" if part.endswith("_exps.weight") else "Q8_0"


def _q4_1(part: str, generous: bool, generous_attention: bool) -> str:
    """As published: the embedding, which is the head too, in Q8_0, and the rest in Q4_1."""
    return "Q8_0" if part == "token_embd.weight" else "Q4_1"


SMOLLM2_135M = Model(
    "smollm2-135m", "llama", llama(30, 576, 9, 3, 1536, 8192) | {"rope.freq_base": 1e5}, SMOLLM2,
    replace(
        block_drafter(3, 576, 1536, 3, (1, 8, 14, 20, 27), 16, 1e5), head_count=9, key_length=64, block_size=8,
        vocab_size=49_152, heads=Heads(Convolution(2, 16), Selector(32, 16)),
    ),
    _q4_1, tied=True, mix="Q4_1",
)  # fmt: skip
LLAMA_8B = Model(
    "llama-3.1-8b", "llama", llama(32, 4096, 32, 8, 14_336), LLAMA3,
    block_drafter(5, 4096, 14_336, 8, (1, 8, 15, 22, 29), 128_002, 5e5), dense, names=frozenset({ROPE_FACTORS}),
)  # fmt: skip
_GEMMA_31B = gemma4(6, 5376, 32, (16, 4), 21_504, layers=60)
GEMMA_31B = Model(
    "gemma-4-31b", "gemma4", _GEMMA_31B, GEMMA, block_drafter(5, 5376, 21_504, 8, (1, 15, 29, 43, 57), MASK, 1e6), tied,
    tied=True, head="assistant", names=own_values(60),
    # Its width and that of its feed-forward are assumed to be those of the 26B's.
    assistant=gemma4_assistant(_GEMMA_31B, 1024, 8192),
)  # fmt: skip
_GEMMA_26B = gemma4(6, 2816, 16, (8, 2), 2112, 128, 8, 704, layers=30)
GEMMA_26B = Model(
    "gemma-4-26b-a4b", "gemma4", _GEMMA_26B, GEMMA, block_drafter(5, 2816, 8448, 8, (1, 7, 14, 20, 27), MASK, 1e6),
    _gemma_experts, tied=True, head="assistant", names=own_values(30),
    assistant=gemma4_assistant(_GEMMA_26B, 1024, 8192),  # sizes: a dump in issue 2173 of ikawrakow/ik_llama.cpp
)  # fmt: skip
GPT_OSS_20B = Model(
    "gpt-oss-20b", "gpt-oss", gpt_oss(24, 32), GPT_OSS,
    block_drafter(5, 2880, 8640, 8, (1, 6, 11, 16, 21), 200_000, 1.5e5),  # assumed: as wide as the target
    _mxfp4, mix="MXFP4",
)  # fmt: skip
FAMILIES = {model.name: model for model in (SMOLLM2_135M, LLAMA_8B, GEMMA_31B, GEMMA_26B, GPT_OSS_20B)}
MODELS = QWEN | FAMILIES
"""Every model that files can be made of, by name."""
