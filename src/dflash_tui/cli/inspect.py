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

from dflash_core import config as configs
from dflash_core.arch.assistant import AssistantConfig
from dflash_core.arch.facts import has_experts, sizes
from dflash_core.arch.folders.opening import is_target, open_model
from dflash_core.arch.recommended import Recommended, recommended
from dflash_core.arch.spec import EMBEDDING, ModelSpec
from dflash_core.clean import one_line
from dflash_core.drafters.assistant import KIND as ASSISTANT
from dflash_core.drafters.assistant import holds_assistant, open_assistant
from dflash_core.drafters.dflash import open_drafter
from dflash_core.drafters.draft import TargetHeader
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
from dflash_tui.application.hub.find import drafters
from dflash_tui.cli.options import Invocation

Facts = dict[str, Any]
Rows = list[tuple[str, str]]
"""A label and a text; "" continues the label above."""


def run(call: Invocation) -> int:
    """Describe the files of the command line. Raises DFlashError, also for a drafter that does not fit."""
    named, request = call.args.model, call.request
    if named is not None and call.args.target is not None:
        call.refuse("MODEL and --target name the same thing; give one of them")
    # A configured drafter belongs to the configured target, not to a file named here.
    meant = dataclasses.replace(request, target=named, draft=call.args.draft) if named else request
    model, draft = meant.files  # the model may be a drafter if there is no draft
    gguf = open_model(model) if is_target(model) else None
    misfit = None
    if gguf is None or gguf.metadata.get("general.architecture") in configs.DRAFT_ARCHITECTURES:
        if draft is not None or holds_assistant(model):
            raise UnsupportedError(f"{model} is a drafter itself; name its target first: inspect TARGET --draft DRAFT")
        facts, rows = _draft(*open_drafter(model))
        described, sections = {"draft": facts}, [(model, rows)]
    else:
        gguf, target = configs.read_target(gguf)
        facts, rows = _target(target, gguf)
        described, sections = {"model": facts}, [(model, rows)]
        if draft is not None:
            facts, rows, misfit = _pair(draft, TargetHeader(gguf, target))
            described["draft"] = facts
            sections.append((draft, rows))
    text = ""
    for path, rows in sections:
        text += f"{one_line(str(path))}\n" + "".join(f"  {label:<13} {one_line(value)}\n" for label, value in rows)
    call.result(described, text)
    if misfit is not None:
        sys.stdout.flush()
        raise misfit
    return 0


def _pair(draft: Path, header: TargetHeader) -> tuple[Facts, Rows, MismatchError | None]:
    """A drafter of a target, and whether it fits: the last of the three is why not."""
    notes: Sequence[str] = ()
    misfit, fits = None, "yes"
    if len(parts(draft)) > 1:
        raise UnsupportedError(f"{draft} names several drafters; inspect one at a time")
    if str(draft) == MTP or holds_mtp(draft):
        facts, rows = _head(*find_head(draft, header.file, header.config))
    elif holds_assistant(draft):
        assistant = open_assistant(draft, header)
        facts, rows = _assistant(draft, assistant.config, assistant.file)
        notes = assistant.notes
    elif is_named(draft):
        summary = KINDS[str(draft)].summary
        facts, rows = {"kind": str(draft), "summary": summary}, [("drafter", f"{draft}: {summary}; no file")]
        fits = "yes, any target"
    else:
        config, file = open_drafter(draft)
        facts, rows = _draft(config, file)
        try:
            notes = configs.check_pair(header.config, config, configs.mask_token(header.file))
        except MismatchError as error:
            misfit, fits = error, "no"
    facts |= {"fits": misfit is None, "reason": str(misfit or ""), "notes": list(notes)}
    return facts, [*rows, ("fits", fits), *_listed("note", notes)], misfit


def _file(file: WeightFile, names: Sequence[str] | None = None) -> tuple[Facts, str, Rows, Rows]:
    """The tensors of a file: as facts, their size in a line, their types, and what is suspect among some numbers of
    those in `names`, by default of all."""
    infos = file.tensors.values()
    parameters, size = sum(info.n_elements for info in infos), sum(info.n_bytes for info in infos)
    line = f"{gib(size)}, {_parameters(parameters)} parameters, {8 * size / max(parameters, 1):.2f} bits each"
    types: Facts = {}
    lines, suspect = list[str](), Rows()
    for group, kinds in types_by_group(file).items():
        types[group] = {kind: {"tensors": count, "bytes": size} for kind, (count, size) in kinds.items()}
        lines.append(f"{group}: {', '.join(f'{kind} x{count} ({gib(size)})' for kind, (count, size) in kinds.items())}")
    facts: Facts = {"tensors": len(infos), "parameters": parameters, "bytes": size, "types": types}
    if names is None or names:
        found = suspects(file, names)
        facts |= {"looked_at": found.looked_at, "warnings": list(found.warnings)}
        suspect = [("looked at", found.looked_at), *_listed("warning", found.warnings)]
    return facts, line, _listed("types", lines), suspect


def _target(config: ModelSpec, gguf: GGUFFile) -> tuple[Facts, Rows]:
    own = f"blk.{config.block_count}."  # the MTP head in a target's own file
    head = [name for name in gguf.tensors if name.startswith(own)] if has_head(gguf, config) else []
    facts, size, types, suspect = _file(gguf, head)
    sampling, odd, drafts = recommended(gguf.metadata), configs.unusual(gguf, config), drafters(gguf, config)
    facts |= {"path": str(gguf.path), "format": gguf.container, "unusual": list(odd), "drafters": drafts}
    facts |= {"config": sizes(config), "sampling": dataclasses.asdict(sampling)}
    counts = Counter(layer.mixer.title for layer in config.layers)
    layers = " and ".join(f"{count} {title}" for title, count in counts.items())
    feed_forward = ", ".join(dict.fromkeys(layer.ffn.describe() for layer in config.layers))
    active = f"{_parameters(config.active_parameters)} parameters a token, of {_parameters(config.parameters)}"
    return facts, [
        ("name", config.name),
        ("architecture", f"{config.architecture}: {layers} layers"),
        ("size", f"{size}; {gguf.container}{', ' if config.file_type else ''}{config.file_type}"),
        ("width", f"hidden {config.embedding_length:,}, {feed_forward}"),
        *([("active", active)] if has_experts(config) else []),
        *((mixer.label, mixer.describe()) for mixer in sorted(config.mixers, key=lambda mixer: mixer.label)),
        ("vocabulary", f"{config.vocab_size:,} rows; context {config.context_length:,}"),
        *types,
        *_listed("sampling", _sampling(sampling)),
        *_listed("unusual", odd or ("nothing",)),
        *_listed("drafters", drafts),
        *suspect,
    ]


def _sampling(found: Recommended) -> list[str]:
    """The defaults of sampling, and what of the file is left out."""
    plain, thinking = found.words(thinking=False), found.words(thinking=True)
    if not found.source:
        return ["none recommended: temperature 0", *found.problems]
    both = plain if plain == thinking else f"{plain}; with reasoning {thinking}"
    return [f"{both} ({found.by})", *found.problems]


def _draft(config: configs.DraftConfig, file: WeightFile) -> tuple[Facts, Rows]:
    facts, size, types, suspect = _file(file)
    facts |= {"kind": config.kind, "path": str(file.path), "format": config.flavour}
    facts["config"] = dataclasses.asdict(config)
    mask = "not named" if config.mask_token_id is None else str(config.mask_token_id)
    sliding = sum(config.sliding)
    window = f", {sliding} of them over a window of {config.sliding_window:,}" if sliding else ""
    layers = ", ".join(str(layer) for layer in config.target_layers if layer != EMBEDDING)
    read = ["embedding"] * (EMBEDDING in config.target_layers) + [f"layers {layers}"] * bool(layers)
    made_for = configs.generation(config.name)
    vocabulary = f", vocabulary of {config.vocab_size:,}" if config.vocab_size else ""
    of_layers = f", {config.target_block_count} layers" if config.target_block_count else ""
    target = f"{f'Qwen{made_for}' if made_for else 'a target'} of hidden size {config.embedding_length:,}"
    return facts, [
        ("name", config.name),
        ("drafter", f"{KINDS[config.kind].title}, {config.flavour} layout: {config.block_count} layers{window}"),
        ("size", size),
        ("block", f"{config.block_size} positions for {config.depths} drafts, mask token {mask}"),
        *_listed("heads", _draft_heads(config)),
        ("made for", f"{target}{of_layers}{vocabulary}"),
        ("width", f"hidden {config.embedding_length:,}, feed-forward {config.feed_forward_length:,}"),
        ("reads", f"the target's {' and '.join(read)}"),
        *types,
        *suspect,
    ]


def _draft_heads(config: configs.DraftConfig) -> list[str]:
    """What it has in addition to a plain DFlash network."""
    heads, lines = config.heads, list[str]()
    if heads.conv:
        lines.append(f"convolutions of {heads.conv.kernel} taps over groups of {heads.conv.group} channels")
    if heads.selector:
        lines.append(f"candidate selector of rank {heads.selector.rank} over the best {heads.selector.top_k} tokens")
    if heads.markov:
        lines.append(f"Markov head of rank {heads.markov.rank}{', confidence head' if heads.markov.confidence else ''}")
    own = [what for what, has in (("embedding", heads.own_embedding), ("head", heads.own_head)) if has]
    if own:
        fewer = f" of {heads.draft_vocab:,} tokens" if heads.draft_vocab else ""
        lines.append(f"its own {' and '.join(own)}{fewer}")
    return lines


def _head(config: configs.MtpConfig, file: WeightFile) -> tuple[Facts, Rows]:
    facts, size, types, suspect = _file(file)
    facts |= {"kind": MTP, "path": str(file.path), "config": dataclasses.asdict(config)}
    own = (("embedding", config.nextn.own_embedding), ("head", config.nextn.own_head))
    shared = " and ".join(what for what, has in own if not has)
    return facts, [
        ("drafter", f"MTP head after layer {config.index}: {config.layer.mixer.describe()}"),
        ("size", size),
        ("shares", f"the target's {shared}" if shared else "nothing of the target"),
        *types,
        *suspect,
    ]


def _assistant(path: Path, config: AssistantConfig, file: WeightFile) -> tuple[Facts, Rows]:
    facts, size, types, suspect = _file(file)
    facts |= {"kind": ASSISTANT, "path": str(path), "config": dataclasses.asdict(config)}
    used = min(config.cells_used, config.cells)
    cells = f"of the best {used} of {config.cells:,} cells of tokens" if config.cells else "of all tokens"
    return facts, [
        ("name", config.name),
        ("drafter", f"{KINDS[config.kind].title}: {config.block_count} layers, logits {cells}"),
        ("size", size),
        ("width", f"hidden {config.embedding_length:,}, of a target of {config.target_width:,}"),
        ("reads", f"keys and values of the target's layers {', '.join(map(str, sorted({*config.sources})))}"),
        *types,
        *suspect,
    ]


def _parameters(count: int) -> str:
    return f"{count / 1e9:.2f} billion" if count >= 1e9 else f"{count / 1e6:.2f} million"


def _listed(label: str, lines: Sequence[str]) -> Rows:
    return [(label if index == 0 else "", line) for index, line in enumerate(lines)]
