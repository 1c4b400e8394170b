"""What all tests share: the long grids run only where they are asked for, with `pytest -m full`."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("-m"):
        return
    config.hook.pytest_deselected(items=[item for item in items if "full" in item.keywords])
    items[:] = [item for item in items if "full" not in item.keywords]
