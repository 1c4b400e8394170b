"""Models on this machine, as they are found: first the kind of each file, then the drafters that match it.

Headers show which drafters are compatible, names which of those is intended.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

from dflash_core.arch.folders.opening import open_model
from dflash_core.arch.spec import ModelSpec
from dflash_core.clean import one_line
from dflash_core.config import generation, target_config
from dflash_core.drafters.draft import TargetHeader
from dflash_core.drafters.kinds import KINDS
from dflash_core.drafters.registry import open_draft, own_kind
from dflash_core.errors import DFlashError
from dflash_core.formats.gguf import GGUFFile
from dflash_tui.application.hub.found import DrafterFile, Found, PassedOver
from dflash_tui.application.hub.header import HeaderCache, key_and_size, read_header
from dflash_tui.application.hub.walk import Candidate, Place, walk


def look(
    where: Sequence[Place], cache: HeaderCache, stopping: Callable[[], bool] = lambda: False
) -> Iterator[Found | PassedOver]:
    """Every file once, under the first place that contains it; then each model again with its drafters."""
    seen, targets, drafts = set[Path](), list[Found](), list[Found]()
    for place in where:
        for one in walk(place, stopping):
            if one is None:
                yield PassedOver(place.folder, f"{place.folder}: too many files; not all were checked", broken=True)
                continue
            real = one.path.resolve()
            if real in seen:
                continue
            seen.add(real)
            read = _read(one, cache)
            if stopping():
                return
            if isinstance(read, PassedOver):
                yield read
            elif read is not None and read.header.kind == "draft":
                drafts.append(read)
            elif read is not None:
                targets.append(read)
                yield read
    for found in targets:
        if stopping():
            return
        yield replace(found, drafters=drafters_of(found, drafts, cache))
    cache.save()


def _read(one: Candidate, cache: HeaderCache) -> Found | PassedOver | None:
    """What a file or folder is, from the cache if it has not changed; None for a folder of something else."""
    try:
        key, size = key_and_size(one.path, folder=one.folder)
    except OSError as error:  # a broken link, or deleted since
        return PassedOver(one.path, one_line(f"{one.path} cannot be read: {error.strerror}"), broken=True)
    header = cache.headers.get(key) or read_header(one.path, folder=one.folder)
    if header is None:
        return None
    cache.headers[key] = header
    if header.kind in ("target", "draft"):
        return Found(one.path, one_line(one.name), one.place.name, header, size, key=key)
    return PassedOver(one.path, one_line(header.why), header.kind == "broken")


MAX_CHECKED = 24  # files and folders beside a target that are checked
_LIKELY = re.compile(r"draft|dflash|dspark|mtp|nextn|assistant", re.IGNORECASE)
# Words in names that do not identify the model: kinds of files, drafters and weights.
_COMMON = re.compile(
    r"d?flash\d*|dspark|draft(er)?|mtp|nextn|head|gguf|instruct|it|ud|model|i?q\d\w*|b?f\d+|b\d+|k|m|s|xl"
)


def drafters_of(target: Found, drafts: Iterable[Found], cache: HeaderCache) -> tuple[DrafterFile, ...]:
    """Compatible drafters, the one that belongs to the target first. The target is opened only for new pairs."""
    found, opened = list[tuple[tuple[bool, float, bool, str], DrafterFile]](), list[GGUFFile]()
    for draft in drafts:
        if draft.header.hidden and target.header.hidden and draft.header.hidden != target.header.hidden:
            continue
        both = f"{target.key}\n{draft.key}"
        if both not in cache.pairs:
            try:
                opened = opened or [open_model(target.path)]
                open_draft(draft.path, TargetHeader(opened[0], target_config(opened[0])))
                cache.pairs[both] = ""
            except (DFlashError, OSError) as error:
                cache.pairs[both] = one_line(str(error)) or type(error).__name__
        if not cache.pairs[both]:
            made_for, here = (generation(f"{one.name} {one.header.title}") for one in (draft, target))
            sizes, own = (_sizes(f"{one.name} {one.header.title}") for one in (draft, target))
            foreign = bool((made_for and here and made_for != here) or (sizes and own and sizes.isdisjoint(own)))
            alike = likeness(draft.name, f"{target.name} {target.header.title}")
            near = draft.path.absolute().parent == target.path.absolute().parent
            drafter = DrafterFile(draft.path, draft.name, not foreign and (near or alike > 0))
            found.append(((foreign, -alike, not near, draft.name), drafter))
    return tuple(drafter for _, drafter in sorted(found, key=lambda one: one[0]))


def likeness(draft: str, target: str) -> float:
    """The share of a drafter's identifying words (of Qwen3-8B-DFlash-b16: qwen3 and 8b) in the target's name."""
    words, others = _words(draft), _words(target)
    return len(words & others) / len(words) if words else 0.0


def _words(name: str) -> set[str]:
    parts = re.split(r"[^a-z0-9.]+", name.lower().removesuffix(".gguf"))
    return {part for part in parts if part and not _COMMON.fullmatch(part)}


def _sizes(name: str) -> set[str]:
    """The number of parameters in a name: 27b, 35b."""
    return set(re.findall(r"(?<![a-z0-9.])\d+(?:\.\d+)?b(?![a-z0-9])", name.lower()))


def drafters(gguf: GGUFFile, target: ModelSpec) -> list[str]:
    """A line for each; drafters next to the file are listed if their headers show that they match."""
    own = own_kind(gguf, target)
    found = [f"{own}: {KINDS[own].summary}"] if own else []
    found += _beside(gguf, target)
    hidden, layers, vocabulary = target.embedding_length, target.block_count, target.vocab_size
    found.append(f"a DFlash drafter made for hidden size {hidden:,}, {layers} layers, a vocabulary of {vocabulary:,}")
    return [*found, *(f"{kind.name}: {kind.summary}" for kind in KINDS.values() if kind.by_name and not kind.inside)]


def _beside(gguf: GGUFFile, target: ModelSpec) -> Iterator[str]:
    for path in islice(_likely(gguf), MAX_CHECKED):
        try:
            draft = open_draft(path, TargetHeader(gguf, target))
            yield f"{path.name}, beside it: {KINDS[draft.capabilities.kind].title}"
        except DFlashError:
            continue  # for another model, or not a drafter


def _likely(gguf: GGUFFile) -> Iterator[Path]:
    try:
        entries = sorted(gguf.path.absolute().parent.iterdir())
    except OSError:
        return
    own = {gguf.path.name, *(shard.name for shard in gguf.shards)}
    for path in entries:
        weights = path.suffix == ".gguf" or (path / "config.json").exists()
        if path.name not in own and _LIKELY.search(path.name) and weights:
            yield path
