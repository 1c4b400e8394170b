"""The additional parts of newer block drafters, as plain data: sizes and tensors.

DFlash 2 has convolutions around attention and feed-forward, and a selector that scores a candidate by the token before
it. DSpark has a Markov head for the same purpose and a confidence head.
"""

from __future__ import annotations

from dataclasses import dataclass

from dflash_core.arch.kinds import Shapes

LAGUNA = "DFlashLagunaForCausalLM"
ZLAB_ARCHITECTURES = ("DFlashDraftModel", "DFlash2DraftModel", "Qwen3DSparkModel", "DSparkDraftModel", LAGUNA)
"""What a config.json of a drafter in safetensors names."""
SIDES = ("attn", "ffn")
"""The sub-layers of a block that have convolutions."""


@dataclass(frozen=True, slots=True)
class Convolution:
    """Grouped dynamic convolutions over the rows of a block: `kernel` taps, coefficients shared by `group` channels.

    Each sub-layer has two, over its input and over its output; both take their coefficients from its normed input.
    """

    kernel: int
    group: int

    def tensors(self, hidden: int, side: str) -> Shapes:
        """Tensors around one sub-layer, by their names inside a block."""
        return {
            f"{side}_conv_base": (2, self.kernel, hidden),
            f"{side}_conv_proj.weight": (2 * self.kernel * (hidden // self.group), hidden),
        }


@dataclass(frozen=True, slots=True)
class Selector:
    """Chooses among the `top_k` best tokens of a position by a product of rank `rank` with the token before it."""

    rank: int
    top_k: int

    def tensors(self, hidden: int, vocab: int) -> Shapes:
        return {
            "selector_hidden.weight": (self.rank, hidden),
            "selector_predecessor.weight": (vocab, self.rank),
            "selector_successor.weight": (vocab, self.rank),
        }


@dataclass(frozen=True, slots=True)
class Markov:
    """A bias over the draft vocabulary by the token before, of rank `rank`.

    `scaled`: the file multiplies the bias by a number of its own. `confidence`: inputs of the confidence head, 0 where
    there is none; with `confidence_bias` it has a bias.
    """

    rank: int
    scaled: bool = False
    confidence: int = 0
    confidence_bias: bool = False

    def tensors(self, vocab: int, draft_vocab: int) -> Shapes:
        shapes: Shapes = {"markov_w1.weight": (vocab, self.rank), "markov_w2.weight": (draft_vocab, self.rank)}
        if self.scaled:
            shapes["markov_w2.scale"] = (1,)
        if self.confidence:
            shapes["conf_proj.weight"] = (1, self.confidence)
            if self.confidence_bias:
                shapes["conf_proj.bias"] = (1,)
        return shapes


@dataclass(frozen=True, slots=True)
class Heads:
    """All additional parts. A plain DFlash drafter has none, and uses its target's embedding and head.

    `draft_vocab`: rows of its own head, where that has fewer tokens than the target (d2t says which). `anchor_first`:
    the anchor's own row predicts too, so that a block proposes for as many positions as it has. `softcap`: 0 for none.

    poolside's drafters: `gated`: the output of every head of attention is multiplied by the softplus of a number.
    `taps_normed`: every captured layer has a norm of its own before they are joined, and every layer norms the context
    as it does its own rows.
    """

    conv: Convolution | None = None
    selector: Selector | None = None
    markov: Markov | None = None
    anchor_first: bool = False
    draft_vocab: int | None = None
    own_embedding: bool = False
    own_head: bool = False
    embedding_scale: float = 1.0
    logit_scale: float = 1.0
    softcap: float = 0.0
    gated: bool = False
    taps_normed: bool = False

    @property
    def kind(self) -> str:
        """The kind of the drafter: dflash, dflash2 or dspark."""
        return "dspark" if self.markov else "dflash2" if self.selector or self.conv else "dflash"

    @property
    def shaped(self) -> bool:
        """Whether other parts than the head contribute to its logits."""
        return self.logit_scale != 1 or bool(self.softcap)

    @property
    def conditional(self) -> bool:
        """Whether it can score a token given its parent."""
        return self.selector is not None or self.markov is not None

    def tensors(self, hidden: int, vocab: int) -> Shapes:
        """Tensors after the layers."""
        head = self.draft_vocab or vocab
        shapes: Shapes = {"output.weight": (head, hidden)} if self.own_head else {}
        if self.draft_vocab:
            shapes["d2t"] = (self.draft_vocab,)
        if self.selector:
            shapes |= self.selector.tensors(hidden, vocab)
        if self.markov:
            shapes |= self.markov.tensors(vocab, head)
        return shapes
