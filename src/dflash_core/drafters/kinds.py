"""The table of drafters. A new kind is a file of its own and a row here. It is data: it imports none of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

CPU, CARD = "cpu", "cuda"


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of drafter. Functions are given as "module:function" and imported on first use.

    `title`: what users call it; `summary`: what it does, in a line. `opener`: reads config and header, see
    `drafters.draft.DraftOpener`. `loaders`: by machine, what makes a drafter of its weights, see `Loader` in
    `backends.cpu.target` and `backends.cuda.drafters.base`; none for a drafter without weights, which proposes on the
    host of any machine. `recognises`: whether a file (Path) is of this kind. `inside`: whether a target's own file
    (GGUFFile, ModelSpec) has such a drafter. `by_name`: its name may be given in place of a file. `depth_knob`: the
    knob that limits its drafted tokens, for a drafter that runs a pass for each, else "".
    """

    name: str
    title: str
    summary: str
    opener: str
    loaders: Mapping[str, str] = field(default_factory=dict)
    recognises: str = ""
    inside: str = ""
    by_name: bool = False
    depth_knob: str = ""


_OPEN_BLOCK = "dflash_core.drafters.dflash:open_dflash"
_LOAD_BLOCK = {
    CPU: "dflash_core.backends.cpu.dflash:load",
    CARD: "dflash_core.backends.cuda.drafters.dflash:DFlashOnDevice",
}
# Block drafters come last: their opener names what it expects of a file that no kind recognises. The three have the
# same files and code; the heads in a file tell which one it is.
_KINDS = (
    Kind(
        "mtp", "an MTP head", "the MTP head in the target's own file", "dflash_core.drafters.mtp:open_mtp",
        {CPU: "dflash_core.backends.cpu.chain:load_mtp", CARD: "dflash_core.backends.cuda.drafters.mtp:DeviceMtp"},
        recognises="dflash_core.drafters.mtp:holds_mtp", inside="dflash_core.drafters.mtp:has_head", by_name=True,
        depth_knob="mtp_depth",
    ),
    Kind(
        "ngram", "n-grams", "copies what followed the last tokens the last time",
        "dflash_core.drafters.ngram:open_ngram", by_name=True,
    ),
    Kind(
        "assistant", "a Gemma assistant", "a small model that reads the target's keys and values",
        "dflash_core.drafters.assistant:open_assistant",
        {CPU: "dflash_core.backends.cpu.chain:load_assistant",
         CARD: "dflash_core.backends.cuda.drafters.assistant:DeviceAssistant"},
        recognises="dflash_core.drafters.assistant:holds_assistant", depth_knob="mtp_depth",
    ),
    Kind("dflash", "DFlash", "denoises a block of masks after the context", _OPEN_BLOCK, _LOAD_BLOCK),
    Kind("dflash2", "DFlash 2", "DFlash, with a selector that scores tokens by their parent", _OPEN_BLOCK, _LOAD_BLOCK),
    Kind("dspark", "DSpark", "DFlash, with a Markov head that scores tokens by their parent", _OPEN_BLOCK, _LOAD_BLOCK),
)  # fmt: skip
KINDS: dict[str, Kind] = {kind.name: kind for kind in _KINDS}
"""By the name that `Capabilities.kind` and a config's `kind` give."""
FORMER: Mapping[str, str] = {"text": "ngram"}
"""Names of kinds in files and settings of earlier versions. They are read, never written."""


def needs_no_file(name: str) -> bool:
    """Whether `name` is that of a kind that needs no file; a file of that name is reached by its whole path."""
    return name in KINDS and KINDS[name].by_name
