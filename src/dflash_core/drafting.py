"""What decodes the steps of a turn, as one setting: `auto`, `auto up to N`, `tree N`, `chain N` or `plain`.

N counts drafted tokens. Earlier versions had three parameters for it, `mode`, `policy` and `budget`: these are read
from settings and files, and never written.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Literal, get_args

Mode = Literal["auto", "tree", "chain", "plain"]
MODES: tuple[Mode, ...] = get_args(Mode)
POLICIES = ("auto", "capped", "fixed")
DEFAULT_NODES = 22
MAX_NODES = 256
SHAPES = frozenset({"p_min", "chain_seed"})
"""Parameters that shape a tree. Setting one under `auto` means a tree of that shape."""
CAPPED = "auto up to"
ALLOWED = f"auto, {CAPPED} N, tree N, chain N, plain"

_SETTING = re.compile(rf"plain|auto(?![ =])|(?P<kind>{CAPPED}|auto(?=[ =])|tree|chain)(?:[ =](?P<nodes>[0-9]+))?")
_FORMER = re.compile(
    rb'"mode"\s*:\s*"(?P<mode>\w+)"\s*,\s*(?:"policy"\s*:\s*"(?P<policy>\w+)"\s*,\s*)?"budget"\s*:\s*(?P<budget>[0-9]+)'
)
_FORMER_PLAIN = re.compile(rb'"mode"(\s*:\s*)"ar"')


def canonical(text: str) -> str | None:
    """A setting as it is stored, from what a user types; None if it is not one. The default size may be left out."""
    found = _SETTING.fullmatch(" ".join(text.split()))
    if found is None or found["kind"] is None:
        return found and found[0]
    nodes = int(found["nodes"] or DEFAULT_NODES) if len(found["nodes"] or "") <= 9 else MAX_NODES + 1
    kind = CAPPED if found["kind"] == "auto" else found["kind"]
    return f"{kind} {nodes}" if 1 <= nodes <= MAX_NODES else None


def kind_of(drafting: str) -> str:
    """The setting without its size: auto, auto up to, tree, chain or plain."""
    return drafting.rstrip("0123456789 ")


@lru_cache(64)  # every step asks
def nodes_of(drafting: str) -> int | None:
    """The size of a setting; None where it has none."""
    nodes = drafting.rpartition(" ")[2]
    return int(nodes) if nodes.isdigit() else None


def changed_by(before: str, changes: Mapping[str, object]) -> str:
    """The setting after a change of former parameters (`mode`, `policy`, `budget`) or of a tree's shape.

    A bare size changes that of `before`; where `before` has none, it means a tree.
    """
    mode, policy, size = changes.get("mode"), changes.get("policy"), changes.get("budget")
    nodes = size or nodes_of(before) or DEFAULT_NODES
    if mode == "plain":
        return "plain"
    if mode in ("tree", "chain"):
        return f"{mode} {nodes}"
    # All three at their defaults are a complete set of an earlier version, where that size was no limit.
    complete = mode == "auto" and size == DEFAULT_NODES
    if policy == "capped" or (policy == "auto" and size and not complete):
        return f"{CAPPED} {nodes}"
    if policy == "auto":
        return "auto"
    start = "auto" if mode == "auto" else before
    if size and nodes_of(start) is not None:
        return f"{kind_of(start)} {size}"
    return f"tree {nodes}" if size or policy == "fixed" or (SHAPES & changes.keys() and "auto" in start) else start


def upgraded(data: bytes) -> bytes:
    """JSON of any version, with this setting as it is stored now."""
    if b'"budget"' in data:
        data = _FORMER.sub(_one_setting, data)
    return _FORMER_PLAIN.sub(rb'"mode"\1"plain"', data) if b'"ar"' in data else data


def _one_setting(found: re.Match[bytes]) -> bytes:
    mode, budget = found["mode"].decode(), int(found["budget"])
    mode = "plain" if mode == "ar" else mode
    policy = (found["policy"] or b"auto").decode()
    if mode not in MODES or policy not in POLICIES:
        return f'"drafting":"{mode} {policy}"'.encode()  # which its reader refuses
    drafting = changed_by("auto", {"mode": mode, "policy": policy, "budget": budget})
    return f'"drafting":"{drafting}"'.encode()
