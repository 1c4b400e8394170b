"""LM Studio. Source: lmstudio-ai/docs, 1_developer/2_rest/endpoints.mdx (API v0, whose `stats` have times), and its
changelog of 0.3.10 (draft counts). Newer releases put the draft counts into `usage`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from dflash_tui.application.attach.engine import Engine, RemoteModel, count, fields, number, objects, part, text
from dflash_tui.application.attach.figures import Figures
from dflash_tui.application.attach.server import AttachedServer, AttachError

MODELS = "/api/v0/models"


class LMStudio(Engine):
    name = "LM Studio"
    port = 1234
    path = "/api/v0/chat/completions"
    dialect = fields("top_k", repetition_penalty="repeat_penalty")
    remedy = "LM Studio tells drafts where a draft model is loaded, and neither steps nor depths"

    def recognises(self, server: AttachedServer, owner: str) -> bool:
        with suppress(AttachError):
            return any("compatibility_type" in one for one in objects(server.json(MODELS), "data"))
        return False

    def models(self, server: AttachedServer, listed: Sequence[Mapping[str, Any]]) -> tuple[RemoteModel, ...]:
        return tuple(
            RemoteModel(
                text(one, "id"),
                count(one, "loaded_context_length") or 0,
                text(one, "state") == "loaded",
            )
            for one in objects(server.json(MODELS), "data")
            if text(one, "type") in ("llm", "vlm")
        )

    def drafts(self, found: Mapping[str, Any]) -> Figures:
        stats, usage = part(found, "stats"), part(found, "usage")
        first, spent = number(stats, "time_to_first_token"), number(stats, "generation_time")
        names = "total_draft_tokens_count", "accepted_draft_tokens_count"
        drafted, accepted = (count(stats, name) or count(usage, name) for name in names)
        return Figures(
            first_token_ms=first * 1e3 if first is not None else None,
            decode_s=spent,
            tokens_per_second=number(stats, "tokens_per_second"),
            drafted=drafted,
            accepted=accepted if drafted else None,
        )
