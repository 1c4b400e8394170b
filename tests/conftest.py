"""What all tests share: the long grids run only where they are asked for, with `pytest -m full`."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("-m"):
        return
    config.hook.pytest_deselected(items=[item for item in items if "full" in item.keywords])
    items[:] = [item for item in items if "full" not in item.keywords]


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The settings and the log of whoever runs the tests stay out of them."""
    folder = tmp_path_factory.mktemp("home")
    for kind in ("CONFIG", "STATE"):
        monkeypatch.setenv(f"XDG_{kind}_HOME", str(folder / kind.lower()))
    return folder
