"""How the app checks the keys of a settings file. Textual is imported only where a file names keys."""

from __future__ import annotations

from collections.abc import Mapping

from dflash_tui.application.settings.config import KeyRules


def _checked(id: str, keys: str) -> str:
    from dflash_tui.settings.keys import checked

    return checked(id, keys)


def _clashing(keys: Mapping[str, str]) -> Mapping[str, str]:
    from dflash_tui.settings.keys import clashing

    return clashing(keys)


KEY_RULES = KeyRules(_checked, _clashing)
