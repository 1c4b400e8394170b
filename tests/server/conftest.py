"""One server for the tests of a file that need nothing special."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support import demo_pair
from support.serving import Running, running


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    """The demo pair, served with the default settings."""
    with running(demo_pair.new_engine()) as found:
        yield found
