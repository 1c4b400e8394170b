"""`models`: the models on this machine, and those that can be fetched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dflash_core.arch.folders.opening import FORMS
from dflash_core.arch.registry import ARCHITECTURES
from dflash_core.memory import gib
from dflash_tui.application.hub.catalogue import Pair, load_catalogue
from dflash_tui.application.hub.files import begun, begun_words
from dflash_tui.application.hub.find import look
from dflash_tui.application.hub.fitting import FitCheck, fit_check
from dflash_tui.application.hub.found import Found, PassedOver, counted_others
from dflash_tui.application.hub.header import HeaderCache
from dflash_tui.application.hub.walk import downloads, places
from dflash_tui.application.session import LoadRequest
from dflash_tui.application.settings.presets import Presets
from dflash_tui.cli.options import Invocation
from dflash_tui.terminal.output import Notes


def run(call: Invocation) -> int:
    """List profiles, targets with their drafters and whether they fit, and the catalogue. Returns the exit code."""
    settings = call.config.settings
    found, others = dict[Path, Found](), list[PassedOver]()
    for one in look(places(settings.model_folders), HeaderCache()):
        if isinstance(one, Found):
            found[one.path] = one
        else:
            others.append(one)
    presets, catalogue = Presets(), load_catalogue()
    profiles = presets.profiles.values()
    fits = {
        path: fit_check(LoadRequest(path, one.draft, settings.device, settings.knobs, kv=settings.kv))
        for path, one in found.items()
    }
    problems = [*presets.problems, *catalogue.problems]
    facts = {
        "profiles": [{"name": one.name, "what": one.words, "gone": _text(one.gone())} for one in profiles],
        "models": [_facts(one, fits[path]) for path, one in found.items()],
        "passed_over": [{"path": str(one.path), "why": one.why, "broken": one.broken} for one in others],
        "architectures": {known.name: known.models for known in ARCHITECTURES.values()},
        "catalogue": [_pair_facts(one) for one in catalogue.pairs.values()],
        "problems": problems,
    }
    for line in problems if not call.args.json else ():
        Notes().line(f"note: {line}")
    lines: list[str] = []
    for profile in profiles:
        gone = profile.gone()
        lines += ["profiles, for --profile NAME"] * (not lines)
        lines.append(f"    {profile.name:<16}{profile.words}" + (f"; {gone} is not there" if gone else ""))
    lines += [""] * bool(lines) + ([] if found else ["no model was found on this machine"])
    for path, one in found.items():
        header = one.header
        lines.append(f"{one.name}  ({one.where})\n    {path}")
        lines.append(f"    {header.architecture}, {gib(one.size)}, {header.types}, {fits[path].words}")
        lines += [f"    drafter: {drafter.path}" for drafter in one.drafters or () if drafter.belongs]
        if one.draft is None:
            own = "its own MTP head drafts" if header.own_head else "--draft ngram copies from the conversation"
            lines.append(f"    no drafter with a matching name; {own}")
    counted_text, broken = counted_others(others)
    passed = [f"not offered: {counted_text}"] * bool(counted_text) + [f"not read: {one.why}" for one in broken]
    lines += ["", *passed] if passed else []
    lines += ["", "to fetch with: dflash-tui get NAME"]
    for pair in catalogue.pairs.values():
        words = (pair.about, pair.licence or "licence not stated", begun_words(pair, downloads()))
        lines.append(f"    {pair.name:<18}{'; '.join(filter(None, words))}")
    lines += ["", "what runs, by the architecture that a GGUF file names"]
    lines += [f"    {known.name:<18}{known.models}" for known in ARCHITECTURES.values()]
    lines += ["", "and folders of safetensors, by the model_type of their config.json", f"    {', '.join(FORMS)}"]
    call.result(facts, "\n".join(lines) + "\n")
    return 0


def _facts(one: Found, fit: FitCheck) -> dict[str, Any]:
    return {
        "path": str(one.path), "name": one.name, "where": one.where, "architecture": one.header.architecture,
        "bytes": one.size, "types": one.header.types, "parameters": one.header.parameters,
        "drafters": [str(drafter.path) for drafter in one.drafters or ()], "draft": _text(one.draft),
        "fits": not fit.short and not fit.why, "context": fit.context, "why": fit.why,
    }  # fmt: skip


def _pair_facts(pair: Pair) -> dict[str, Any]:
    size, whole = begun(pair, downloads())
    return {"name": pair.name, "about": pair.about, "licence": pair.licence, "here": size, "complete": whole}


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)
