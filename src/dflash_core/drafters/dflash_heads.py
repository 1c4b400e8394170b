"""Heads and tables that a drafter's file may have in addition to a plain DFlash network: read from its settings and
checked against its tensors."""

from __future__ import annotations

import re
from collections.abc import Mapping

from dflash_core.arch.draft_heads import Convolution, Heads, Markov, Selector
from dflash_core.drafters.dflash_names import CONVOLUTIONS, SELECTOR, canonical
from dflash_core.errors import FormatError, UnsupportedError
from dflash_core.formats.metadata import Settings
from dflash_core.formats.weights import TensorInfo

MAX_TAPS = 64
MAX_RANK = 1 << 16
MAX_TOP_K = 1 << 12
_TWO = ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")


def table_vocabulary(tensors: Mapping[str, TensorInfo]) -> int | None:
    """The target's tokens in the drafter's own vocabulary tables, if there are any."""
    have = {canonical(name): info.shape for name, info in tensors.items()}
    for name in ("selector_predecessor.weight", "markov_w1.weight", "token_embd.weight", "output.weight"):
        if name in have and not (name == "output.weight" and "d2t" in have):
            return have[name][0] if have[name] else None
    return None


def gguf_heads(keys: Settings, tensors: Mapping[str, TensorInfo], hidden: int) -> Heads:
    """From a GGUF file; both naming schemes have the same keys."""
    return _heads(
        keys, tensors, hidden, "embedding_length", two=False, anchor_first=True,
        embedding_scale=_scale(keys, "embedding_scale", "dflash.embedding_scale"),
        logit_scale=_scale(keys, "logit_scale", "dflash.logit_scale"),
        softcap=_scale(keys, "final_logit_softcapping", "dflash.final_logit_softcapping", none=0.0),
    )  # fmt: skip


def zlab_heads(keys: Settings, tensors: Mapping[str, TensorInfo], hidden: int) -> Heads:
    """From a folder with a config.json. `keys`: those of dflash_config take precedence over those outside it."""
    # By default the speculators format has a row for the anchor in addition to the proposals.
    return _heads(
        keys, tensors, hidden, "hidden_size", two=keys.get("architectures") == ["DFlash2DraftModel"],
        anchor_first=not keys.find("speculators_model_type", "speculators_config"),
        embedding_scale=_scale(keys, "input_embedding_scale"),
        logit_scale=_scale(keys, "output_multiplier"),
        softcap=_scale(keys, "final_logit_softcapping", none=0.0),
    )  # fmt: skip


def _heads(
    keys: Settings, tensors: Mapping[str, TensorInfo], hidden: int, width: str, *, two: bool, anchor_first: bool,
    embedding_scale: float, logit_scale: float, softcap: float,
) -> Heads:  # fmt: skip
    """`two`: the file says that it is DFlash 2. anchor_first: whether the anchor's row predicts where it is silent."""
    have = {canonical(name): info.shape for name, info in tensors.items()}
    two = two or any(name in have for name in SELECTOR) or any(keys.get(name) for name in _TWO[2:])
    folded = two or any(re.fullmatch(CONVOLUTIONS, name) for name in have)
    markov = _markov(keys, have)
    conv = selector = None
    if folded:
        conv = Convolution(keys.integer(_TWO[0], high=MAX_TAPS), keys.integer(_TWO[1], high=hidden))
        keys.check_divides(_TWO[1], conv.group, width, hidden)
    if two:
        selector = Selector(keys.integer(_TWO[2], high=MAX_RANK), keys.integer(_TWO[3], high=MAX_TOP_K))
    anchor = keys.flag("sample_from_anchor", "dflash.sample_from_anchor")
    if anchor and not markov:
        raise UnsupportedError(
            f"{keys.source}: sample_from_anchor is true without a Markov head, expected false; use another drafter"
        )
    if selector and markov:
        raise UnsupportedError(f"{keys.source} has both a candidate selector and a Markov head, expected one of them")
    vocab = table_vocabulary(tensors)
    if selector and vocab and selector.top_k > vocab:
        raise FormatError(
            f"{keys.source}: {_TWO[3]} is {selector.top_k}, expected {vocab} at most, its vocabulary; convert it again"
        )
    return Heads(
        conv, selector, markov, bool(markov) and (anchor_first if anchor is None else anchor),
        have["d2t"][0] if "d2t" in have else None,
        "token_embd.weight" in have,
        # A list of tokens without a head of its own would be a head that is missing.
        "output.weight" in have or "d2t" in have,
        embedding_scale, logit_scale, softcap,
        gated="blk.0.attn_gate.weight" in have,
        taps_normed=any(name.startswith("enc.aux_norm.") for name in have),
    )  # fmt: skip


def _markov(keys: Settings, have: Mapping[str, tuple[int, ...]]) -> Markov | None:
    rank = keys.find("markov_rank", "dspark_markov_rank", "dflash.markov_rank")
    rank = rank if rank and keys.values[rank] != 0 else None
    dspark = keys.get("architectures") in (["Qwen3DSparkModel"], ["DSparkDraftModel"]) or keys.prefix == "dspark."
    if "markov_w1.weight" not in have and "markov_w2.weight" not in have and not rank and not dspark:
        return None
    kind = keys.get("markov_head_type", "dspark_markov_head_type", "dflash.markov_head_type")
    if kind not in (None, "vanilla"):
        name = str(kind)[:40] if str(kind)[:40].isprintable() else "strange"
        raise UnsupportedError(
            f"{keys.source} has a Markov head of type {name}, expected vanilla; use a drafter with such a head"
        )
    shape = have.get("markov_w1.weight", (0, 0))
    known = keys.integer(rank, high=MAX_RANK) if rank else shape[-1] or 1
    head = have.get("conf_proj.weight")
    confidence = head[-1] if head else 0
    joined = keys.flag("confidence_head_with_markov")
    if keys.flag("enable_confidence_head") and head is None:
        raise FormatError(
            f"{keys.source}: enable_confidence_head is true and there is no confidence head, expected its tensors;"
            " the file is incomplete"
        )
    hidden = keys.integer("embedding_length", "hidden_size")
    allowed = (hidden, hidden + known) if joined is None else (hidden + known * joined,)
    if confidence and confidence not in allowed:
        raise FormatError(
            f"{keys.source}: the confidence head has {confidence} inputs, expected {' or '.join(map(str, allowed))};"
            " convert the model again"
        )
    return Markov(known, "markov_w2.scale" in have, confidence, "conf_proj.bias" in have)


def _scale(keys: Settings, *names: str, none: float = 1.0) -> float:
    """A factor, `none` where the file has none; 0 says that there is none."""
    return none if keys.get(*names) in (None, 0) else keys.number(*names)
