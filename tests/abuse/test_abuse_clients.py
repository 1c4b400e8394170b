"""A slice of the server's soak, and that a wrong answer is noticed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from abuse import clients

REQUESTS = 12


def test_a_slice(tmp_path: Path) -> None:
    report = clients.run(1, tmp_path, requests=REQUESTS)
    assert report.faults == []
    assert report.counts["requests"] == REQUESTS


def test_a_wrong_status_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def rubbish(client: Any) -> str:
        wrong: str = client._post("/v1/chat/completions", "{")[0]
        return wrong

    monkeypatch.setattr(clients, "KINDS", {"rubbish": rubbish})
    [found] = clients.run(1, tmp_path, requests=1).crashes
    assert found.kind == "rubbish"
    assert found.detail.startswith("400 for /v1/chat/completions")
