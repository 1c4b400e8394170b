"""Files of the 27B model that people load on small cards: their published sizes, and mixes of types of that size.

Sizes are those of unsloth's repositories of Qwen3.6-27B, to a hundredth of a gigabyte, and of Qwen3.8-27B, whose
tensors are alike, for the files that include an MTP head. Such files mix types tensor by tensor; the mixes here have
their size, not their choice for each tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from dflash_core.bench.synthetic_models import SIZE_27B, Model

FEED_FORWARD = ("ffn_gate.weight", "ffn_up.weight")


@dataclass(frozen=True, slots=True)
class Mix:
    """Types by part: gate and up, down, the delta net's inputs, other matrices of layers, embedding, head."""

    wide: str
    down: str
    inputs: str
    layers: str
    embedding: str
    head: str

    def storage(self, part: str, generous: bool, generous_attention: bool) -> str:
        """See `Model.storage`."""
        if part in FEED_FORWARD:
            return self.wide
        if part in ("ssm_alpha.weight", "ssm_beta.weight"):
            return "Q8_0"
        named: Mapping[str, str] = {
            "ffn_down.weight": self.down, "attn_qkv.weight": self.inputs, "token_embd.weight": self.embedding,
            "output.weight": self.head,
        }  # fmt: skip
        return named.get(part, self.layers)


@dataclass(frozen=True, slots=True)
class PublishedFile:
    """A file's name and bytes as published, with an MTP head or without, and what stands in for it: None for Q4_K_M."""

    name: str
    nbytes: int
    mix: Mix | None
    includes_mtp: bool = False

    @property
    def model(self) -> Model:
        storage: Callable[[str, bool, bool], str] = self.mix.storage if self.mix else SIZE_27B.storage
        return replace(SIZE_27B, storage=storage, mix=self.name)


FILES_27B = (
    PublishedFile("UD-IQ2_XXS", 9_390_000_000, Mix("IQ2_XXS", "IQ2_S", "IQ3_XXS", "IQ3_XXS", "Q4_K", "Q6_K")),
    PublishedFile("UD-Q2_K_XL", 11_840_000_000, Mix("Q2_K", "Q3_K", "IQ4_XS", "IQ4_XS", "Q4_K", "Q6_K")),
    PublishedFile("UD-IQ3_XXS", 11_990_000_000, Mix("IQ3_XXS", "IQ3_S", "Q4_K", "IQ3_S", "Q4_K", "Q6_K")),
    PublishedFile("UD-IQ3_S", 12_000_000_000, Mix("IQ3_XXS", "IQ3_S", "IQ4_XS", "IQ3_S", "Q4_K", "Q6_K"), True),
    PublishedFile("UD-IQ4_XS", 14_252_845_984, Mix("IQ4_XS", "IQ4_XS", "IQ4_XS", "IQ3_S", "IQ4_XS", "Q5_K"), True),
    PublishedFile("Q4_K_M", 16_730_000_000, None),
)
