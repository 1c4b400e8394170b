"""Whether this installation can use tools of MCP servers."""

from __future__ import annotations

from importlib.util import find_spec

from dflash_core.errors import DFlashError

PACKAGES = ("mcp", "mcp_types", "jsonschema")
INSTALL = 'pip install "dflash-tui[tools]"'


class ToolsError(DFlashError):
    """Tools cannot be used, or a server of tools cannot."""


def needs() -> None:
    """Raises ToolsError where packages are missing."""
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise ToolsError(f"tools need the package {missing[0]}, which is not installed: {INSTALL}")
