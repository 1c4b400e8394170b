"""Cases of a grid that run with `-m full` only. They keep their places, on which names and seeds of others depend."""

from __future__ import annotations

from typing import Any

import pytest
from _pytest.mark import ParameterSet


def full(*values: Any, id: str | None = None) -> ParameterSet:
    """One case, of one value or of several."""
    return pytest.param(*values, marks=pytest.mark.full, id=id)
