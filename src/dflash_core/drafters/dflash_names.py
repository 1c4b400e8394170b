"""Translates the tensor names of every drafter format into those of the upstream `dflash` GGUF."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from dflash_core.arch.folders.form import ATTENTION, DENSE
from dflash_core.errors import FormatError, UnsupportedError
from dflash_core.formats.weights import listed

# The names that files use in place of each canonical one.
_OTHERS = {
    "fc.weight": ("dflash_fc.weight", "dflash.fc.weight"),
    "enc.output_norm.weight": ("hidden_norm.weight", "dflash_hidden_norm.weight", "dflash.hidden_norm.weight"),
    "enc.aux_norm.weight": (),
    "output_norm.weight": ("norm.weight",),
    "token_embd.weight": ("embed_tokens.weight",),
    "output.weight": ("lm_head.weight",),
    "d2t": (),
    "markov_w1.weight": ("markov_head.markov_w1.weight",),
    "markov_w2.weight": ("markov_head.markov_w2.weight",),
    "markov_w2.scale": (),
    "conf_proj.weight": ("confidence_head.proj.weight",),
    "conf_proj.bias": ("confidence_head.proj.bias",),
}
OUTSIDE = {name: to for to, others in _OTHERS.items() for name in (to, *others)}
# The same inside a block: the part of the name after `blk.N.` or `layers.N.`, without `.weight`.
_MORE = {"self_attn.g_proj": "attn_gate", "self_attn.qkv_proj": "attn_qkv", "post_attention_norm": "ffn_norm"}
INSIDE = ATTENTION | DENSE | _MORE
# What DFlash 2 adds, in each family of names: upstream's, the forks' and z-lab's own. No file has two of them.
SELECTOR = ("selector_hidden.weight", "selector_predecessor.weight", "selector_successor.weight")
_ADDED = (*SELECTOR, "attn_conv_base", "attn_conv_proj.weight", "ffn_conv_base", "ffn_conv_proj.weight")
_FORKS = (
    "selector.hidden_proj.weight", "selector.pred_codebook", "selector.succ_codebook",
    "attn_conv.base", "attn_conv.proj.weight", "ffn_conv.base", "ffn_conv.proj.weight",
)  # fmt: skip
_ZLAB = (
    "candidate_selector.hidden_projection.weight", "candidate_selector.predecessor_codebook",
    "candidate_selector.successor_codebook", "attention_conv.base_kernel", "attention_conv.kernel_projection.weight",
    "mlp_conv.base_kernel", "mlp_conv.kernel_projection.weight",
)  # fmt: skip
FAMILIES: dict[str, dict[str, str]] = {
    "upstream": dict(zip(_ADDED, _ADDED)),
    "fork": dict(zip(_FORKS, _ADDED)),
    "z-lab": dict(zip((*_ZLAB, *(f"{name}.weight" for name in _ZLAB[1:3])), (*_ADDED, *SELECTOR[1:]))),
}
CONVOLUTIONS = r"blk\.\d+\.(attn|ffn)_conv_(base|proj\.weight)"
UNUSED = ("t2d",)
"""Redundant tensors, which are not read."""
# Heads that do not run here, recognised by their tensors so that they can be refused by name.
OTHER_HEADS = (
    (r"domino", "a Domino head"),
    (r"markov.*(rnn|gru|lstm|_hh|_ih)", "an rnn Markov head"),
    (r"markov.*gate", "a gated Markov head"),
    (r"dspark|markov", "a DSpark head of another kind"),
    (r"aux_hidden_norm", "per-layer feature norms"),
    (r"context_kv_layer_norm", "a norm over the context keys"),
)
EXPECTED_HEADS = "expected a drafter of DFlash, DFlash 2, or DSpark with a vanilla Markov head; use one of those"
_TAP = re.compile(r"(?:aux_hidden_norms|enc\.aux_norm)\.(\d{1,3})\.weight")
_BLOCK = re.compile(r"(?:blk|layers)\.(\d{1,4})\.(.+)")
_INSIDE = frozenset(INSIDE.values())


def _inside(name: str) -> tuple[str, str] | None:
    """A block's tensor name, split into its canonical prefix and the name inside the block."""
    found = _BLOCK.fullmatch(name)
    return (f"blk.{found[1]}.", found[2]) if found else None


def family(name: str) -> str | None:
    """The family that a tensor of DFlash 2 is named in; None for other tensors."""
    block = _inside(name)
    short = block[1] if block else name
    return next((title for title, names in FAMILIES.items() if short in names), None)


def canonical(name: str) -> str:
    """The upstream GGUF name of a tensor; a name that is not known is not translated."""
    name = name.removeprefix("model.")
    block = _inside(name)
    prefix, short = block or ("", name)
    of = family(name)
    if of is not None:
        return prefix + FAMILIES[of][short]
    if block is None:
        tap = _TAP.fullmatch(name)
        return f"enc.aux_norm.{tap[1]}.weight" if tap else OUTSIDE.get(name, name)
    inside = short.removesuffix(".weight")
    return f"{prefix}{INSIDE.get(inside, inside)}.weight" if short.endswith(".weight") else name


def is_known(name: str) -> bool:
    """Whether a supported drafter may have a tensor of this name."""
    to = canonical(name)
    block = _inside(to)
    if block is None:
        known = to in OUTSIDE.values() or to in FAMILIES["upstream"] or to in UNUSED
        return known or _TAP.fullmatch(to) is not None
    return block[1].removesuffix(".weight") in _INSIDE or block[1] in FAMILIES["upstream"]


def check_heads(source: str, names: Iterable[str]) -> None:
    """Raises UnsupportedError for a drafter with a head that is not supported."""
    unknown = [name for name in names if not is_known(name)]
    for pattern, what in OTHER_HEADS:
        found = [name for name in unknown if re.search(pattern, name)]
        if found:
            raise UnsupportedError(f"{source} has {what} ({listed(found, 2)}), {EXPECTED_HEADS}")


def check_families(source: str, names: Iterable[str]) -> None:
    """Raises FormatError for a file with tensor names of two families."""
    first: dict[str, str] = {}
    for name in names:
        of = family(name)
        if of is not None:
            first.setdefault(of, name)
    if len(first) > 1:
        (one, a), (other, b) = list(first.items())[:2]
        found = f"{source} mixes two families of tensor names, {one} ({a}) and {other} ({b})"
        raise FormatError(f"{found}, expected one; convert the drafter again")


def renamed(source: str, names: Iterable[str]) -> Mapping[str, str]:
    """Canonical name -> name in the file, without unused tensors. Raises FormatError for two names of one tensor."""
    found: dict[str, str] = {}
    for name in names:
        to = canonical(name)
        if to in UNUSED:
            continue
        if to in found:
            raise FormatError(f"{source}: {found[to]} and {name} are the same tensor ({to}); convert the drafter again")
        found[to] = name
    return found
