"""NInfer. Source: docs/serving.md of Neroued/ninfer: `timings` as llama.cpp's, no metrics; unknown variables of the
template are refused, and so are penalties of repetition."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from dflash_tui.application.attach.engine import Engine, fields


class NInfer(Engine):
    name = "NInfer"
    port = 8080
    owner = "ninfer"
    dialect = fields("top_k", "min_p")
    thinks = True
    counts_drafts = True
    extra: ClassVar[Mapping[str, Any]] = {**Engine.extra, "return_progress": True, "timings_per_token": True}
    remedy = "NInfer writes acceptance by depth into its log of requests only"
