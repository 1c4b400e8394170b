"""`inspect`: what a model file contains, what is unusual in it, and whether a drafter fits. No torch.

Of a target the header is read, of a drafter some numbers too.
"""

from __future__ import annotations

import dataclasses
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dflash_core.arch.assistant import AssistantConfig
from dflash_core.arch.facts import has_experts, sizes
from dflash_core.arch.folders.opening import is_target, open_model
from dflash_core.arch.recommended import Recommended, recommended
from dflash_core.arch.spec import EMBEDDING, ModelSpec
from dflash_core.clean import one_line
from dflash_core.config import (
    DRAFT_ARCHITECTURES,
    DraftConfig,
    MtpConfig,
    check_pair,
    generation,
    mask_token,
    read_target,
    unusual,
)
from dflash_core.drafters.assistant import KIND as ASSISTANT
from dflash_core.drafters.assistant import holds_assistant, open_assistant
from dflash_core.drafters.base import TargetHeader
from dflash_core.drafters.dflash import open_drafter
from dflash_core.drafters.kinds import KINDS
from dflash_core.drafters.mtp import KIND as MTP
from dflash_core.drafters.mtp import find_head, has_head, holds_mtp
from dflash_core.drafters.registry import is_named, parts
from dflash_core.errors import MismatchError, UnsupportedError
from dflash_core.formats.gguf import GGUFFile
from dflash_core.formats.groups import types_by_group
from dflash_core.formats.suspects import suspects
from dflash_core.formats.weights import WeightFile
from dflash_core.memory import gib
from dflash_tui.application.hub.pairing import drafters
from dflash_tui.cli.options import Invocation
from dflash_tui.terminal.output import write_json, write_out

Rows = list[tuple[str, str]]


def run(call: Invocation) -> int:
    """Describe the files of the command line. Raises DFlashError, also for a drafter that does not fit."""
    named, request = call.args.model, call.request
    if named is not None and call.args.target is not None:
        call.refuse("MODEL and --target name the same thing; give one of them")
    # A configured drafter belongs to the configured target, not to a file named here.
    meant = dataclasses.replace(request, target=named, draft=call.args.draft) if named else request
    return describe(*meant.files, as_json=call.args.json)


def describe(model: Path, draft: Path | None, *, as_json: bool = False) -> int:
    """Describe `model` and, if given, how `draft` fits it. `model` may be a drafter if there is no `draft`.

    Raises DFlashError, also for a drafter that does not fit.
    """
    described: dict[str, Any] = {}
    text, misfit = "", None
    gguf = open_model(model) if is_target(model) else None
    if gguf is None or gguf.metadata.get("general.architecture") in DRAFT_ARCHITECTURES:
        if draft is not None or holds_assistant(model):
            raise UnsupportedError(f"{model} is a drafter itself; name its target first: inspect TARGET --draft DRAFT")
        config, file = open_drafter(model)
        described["draft"] = _draft_facts(config, file)
        text = _section(model, _draft_rows(config, file))
    else:
        gguf, target = read_target(gguf)
        described["model"] = _target_facts(target, gguf)
        text = _section(model, _target_rows(target, gguf))
        if draft is not None and len(parts(draft)) > 1:
            raise UnsupportedError(f"{draft} names several drafters; inspect one at a time")
        if draft is not None and (str(draft) == MTP or holds_mtp(draft)):
            head, file = find_head(draft, gguf, target)
            fits = {"fits": True, "reason": "", "notes": []}
            described["draft"] = {"kind": MTP, "path": str(file.path), "config": dataclasses.asdict(head)} | fits
            described["draft"] |= _sizes(file) | {"types": _types(file)} | _suspect_facts(file)
            text += _section(draft, [*_head_rows(head, file), ("fits", "yes")])
        elif draft is not None and holds_assistant(draft):
            assistant = open_assistant(draft, TargetHeader(gguf, target))
            fits = {"fits": True, "reason": "", "notes": list(assistant.notes)}
            described["draft"] = {"kind": ASSISTANT, "path": str(draft), "config": dataclasses.asdict(assistant.config)}
            described["draft"] |= fits | _sizes(assistant.file) | {"types": _types(assistant.file)}
            text += _section(draft, [*_assistant_rows(assistant.config, assistant.file), *_fit_rows(fits)])
        elif draft is not None and is_named(draft):
            name, summary = str(draft), KINDS[str(draft)].summary
            described["draft"] = {"kind": name, "summary": summary, "fits": True, "reason": "", "notes": []}
            text += _section(draft, [("drafter", f"{name}: {summary}; no file"), ("fits", "yes, any target")])
        elif draft is not None:
            config, file = open_drafter(draft)
            fit, misfit = _fit(target, config, gguf)
            described["draft"] = _draft_facts(config, file) | fit
            text += _section(draft, _draft_rows(config, file) + _fit_rows(fit))
    if as_json:
        write_json(described)
    else:
        write_out(text)
    if misfit is not None:
        sys.stdout.flush()
        raise misfit
    return 0


def _fit(target: ModelSpec, draft: DraftConfig, gguf: GGUFFile) -> tuple[dict[str, Any], MismatchError | None]:
    try:
        notes = check_pair(target, draft, mask_token(gguf))
    except MismatchError as error:
        return {"fits": False, "reason": str(error), "notes": []}, error
    return {"fits": True, "reason": "", "notes": list(notes)}, None


def _sizes(file: WeightFile) -> dict[str, int]:
    infos = file.tensors.values()
    parameters, size = sum(info.n_elements for info in infos), sum(info.n_bytes for info in infos)
    return {"tensors": len(infos), "parameters": parameters, "bytes": size}


def _types(file: WeightFile) -> dict[str, dict[str, dict[str, int]]]:
    return {
        group: {kind: {"tensors": count, "bytes": size} for kind, (count, size) in kinds.items()}
        for group, kinds in types_by_group(file).items()
    }


def _target_facts(config: ModelSpec, gguf: GGUFFile) -> dict[str, Any]:
    facts: dict[str, Any] = {"path": str(gguf.path), "format": gguf.container}
    facts["config"] = sizes(config)
    return (
        facts
        | _sizes(gguf)
        | {"types": _types(gguf), "unusual": list(unusual(gguf, config))}
        | {"drafters": drafters(gguf, config), "sampling": dataclasses.asdict(recommended(gguf.metadata))}
        | (_suspect_facts(gguf, _mtp_names(gguf, config)) if has_head(gguf, config) else {})
    )


def _mtp_names(gguf: GGUFFile, config: ModelSpec) -> list[str]:
    """The tensors of the MTP head in a target's own file."""
    return [name for name in gguf.tensors if name.startswith(f"blk.{config.block_count}.")]


def _suspect_facts(file: WeightFile, names: Sequence[str] | None = None) -> dict[str, Any]:
    found = suspects(file, names)
    return {"looked_at": found.looked_at, "warnings": list(found.warnings)}


def _suspect_rows(file: WeightFile, names: Sequence[str] | None = None) -> Rows:
    found = suspects(file, names)
    return [("looked at", found.looked_at), *_listed("warning", found.warnings)]


def _draft_facts(config: DraftConfig, file: WeightFile) -> dict[str, Any]:
    facts: dict[str, Any] = {"kind": config.kind, "path": str(file.path), "format": config.flavour}
    facts["config"] = dataclasses.asdict(config)
    return facts | _sizes(file) | {"types": _types(file)} | _suspect_facts(file)


def _target_rows(config: ModelSpec, gguf: GGUFFile) -> Rows:
    counts = Counter(layer.mixer.title for layer in config.layers)
    feed_forward = dict.fromkeys(layer.ffn.describe() for layer in config.layers)
    return [
        ("name", config.name),
        (
            "architecture",
            f"{config.architecture}: {' and '.join(f'{n} {title}' for title, n in counts.items())} layers",
        ),
        ("size", f"{_size_line(gguf)}; {gguf.container}{', ' if config.file_type else ''}{config.file_type}"),
        ("width", f"hidden {config.embedding_length:,}, {', '.join(feed_forward)}"),
        *_active_rows(config),
        *((mixer.label, mixer.describe()) for mixer in sorted(config.mixers, key=lambda mixer: mixer.label)),
        ("vocabulary", f"{config.vocab_size:,} rows; context {config.context_length:,}"),
        *_type_rows(gguf),
        *_listed("sampling", _sampling(recommended(gguf.metadata))),
        *_listed("unusual", unusual(gguf, config) or ("nothing",)),
        *_listed("drafters", drafters(gguf, config)),
        *(_suspect_rows(gguf, _mtp_names(gguf, config)) if has_head(gguf, config) else ()),
    ]


def _sampling(found: Recommended) -> list[str]:
    """The defaults of sampling, and what of the file is left out."""
    plain, thinking = found.words(thinking=False), found.words(thinking=True)
    if not found.source:
        return ["none recommended: temperature 0", *found.problems]
    both = plain if plain == thinking else f"{plain}; with reasoning {thinking}"
    return [f"{both} ({found.by})", *found.problems]


def _active_rows(config: ModelSpec) -> Rows:
    """Of a model with experts: the parameters that are active for a token."""
    if not has_experts(config):
        return []
    active, of = _parameters(config.active_parameters), _parameters(config.parameters)
    return [("active", f"{active} parameters a token, of {of}")]


def _draft_rows(config: DraftConfig, file: WeightFile) -> Rows:
    mask = "not named" if config.mask_token_id is None else str(config.mask_token_id)
    sliding = (
        f", {sum(config.sliding)} of them over a window of {config.sliding_window:,}" if any(config.sliding) else ""
    )
    return [
        ("name", config.name),
        ("drafter", f"{KINDS[config.kind].title}, {config.flavour} layout: {config.block_count} layers{sliding}"),
        ("size", _size_line(file)),
        ("block", f"{config.block_size} positions for {config.depths} drafts, mask token {mask}"),
        *_listed("heads", _draft_heads(config)),
        ("made for", _made_for(config)),
        ("width", f"hidden {config.embedding_length:,}, feed-forward {config.feed_forward_length:,}"),
        ("reads", _read_layers(config)),
        *_type_rows(file),
        *_suspect_rows(file),
    ]


def _read_layers(config: DraftConfig) -> str:
    layers = ", ".join(str(layer) for layer in config.target_layers if layer != EMBEDDING)
    read = ["embedding"] * (EMBEDDING in config.target_layers) + [f"layers {layers}"] * bool(layers)
    return f"the target's {' and '.join(read)}"


def _draft_heads(config: DraftConfig) -> list[str]:
    """What it has in addition to a plain DFlash network."""
    conv, selector, markov = config.heads.conv, config.heads.selector, config.heads.markov
    lines = []
    if conv:
        lines.append(f"convolutions of {conv.kernel} taps over groups of {conv.group} channels")
    if selector:
        lines.append(f"candidate selector of rank {selector.rank} over the best {selector.top_k} tokens")
    if markov:
        confidence = ", confidence head" if markov.confidence else ""
        lines.append(f"Markov head of rank {markov.rank}{confidence}")
    own = [what for what, has in (("embedding", config.heads.own_embedding), ("head", config.heads.own_head)) if has]
    if own:
        fewer = f" of {config.heads.draft_vocab:,} tokens" if config.heads.draft_vocab else ""
        lines.append(f"its own {' and '.join(own)}{fewer}")
    return lines


def _made_for(config: DraftConfig) -> str:
    made_for = generation(config.name)
    vocabulary = f", vocabulary of {config.vocab_size:,}" if config.vocab_size else ""
    layers = f", {config.target_block_count} layers" if config.target_block_count else ""
    name = f"Qwen{made_for}" if made_for else "a target"
    return f"{name} of hidden size {config.embedding_length:,}{layers}{vocabulary}"


def _head_rows(config: MtpConfig, file: WeightFile) -> Rows:
    nextn = config.nextn
    shares = [what for what, own in (("embedding", nextn.own_embedding), ("head", nextn.own_head)) if not own]
    return [
        ("drafter", f"MTP head after layer {config.index}: {config.layer.mixer.describe()}"),
        ("size", _size_line(file)),
        ("shares", f"the target's {' and '.join(shares)}" if shares else "nothing of the target"),
        *_type_rows(file),
        *_suspect_rows(file),
    ]


def _assistant_rows(config: AssistantConfig, file: WeightFile) -> Rows:
    read = ", ".join(map(str, sorted({*config.sources})))
    used = min(config.cells_used, config.cells)
    cells = f"of the best {used} of {config.cells:,} cells of tokens" if config.cells else "of all tokens"
    return [
        ("name", config.name),
        ("drafter", f"{KINDS[config.kind].title}: {config.block_count} layers, logits {cells}"),
        ("size", _size_line(file)),
        ("width", f"hidden {config.embedding_length:,}, of a target of {config.target_width:,}"),
        ("reads", f"keys and values of the target's layers {read}"),
        *_type_rows(file),
        *_suspect_rows(file),
    ]


def _fit_rows(fit: dict[str, Any]) -> Rows:
    return [("fits", "yes" if fit["fits"] else "no"), *_listed("note", fit["notes"])]


def _size_line(file: WeightFile) -> str:
    sizes = _sizes(file)
    bits = 8 * sizes["bytes"] / max(sizes["parameters"], 1)
    return f"{gib(sizes['bytes'])}, {_parameters(sizes['parameters'])} parameters, {bits:.2f} bits each"


def _parameters(count: int) -> str:
    return f"{count / 1e9:.2f} billion" if count >= 1e9 else f"{count / 1e6:.2f} million"


def _type_rows(file: WeightFile) -> Rows:
    lines = []
    for group, kinds in types_by_group(file).items():
        parts = (f"{kind} x{count} ({gib(size)})" for kind, (count, size) in kinds.items())
        lines.append(f"{group}: {', '.join(parts)}")
    return _listed("types", lines)


def _listed(label: str, lines: list[str] | tuple[str, ...]) -> Rows:
    return [(label if index == 0 else "", line) for index, line in enumerate(lines)]


def _section(path: Path, rows: Rows) -> str:
    return "".join([f"{one_line(str(path))}\n", *(f"  {label:<13} {one_line(text)}\n" for label, text in rows)])
