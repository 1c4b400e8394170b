"""`states`: show or delete the states of conversations on disk."""

from __future__ import annotations

from dflash_core.memory import gib
from dflash_core.snapshots.folder import StateFolder
from dflash_core.user_folders import user_folder
from dflash_tui.application.amounts import counted
from dflash_tui.cli.options import Invocation


def run(call: Invocation) -> int:
    """Show how many there are and their total size, or delete them. Raises OSError."""
    clear = call.args.what == "clear"
    folder = StateFolder(user_folder("cache") / "states", 0)
    count, nbytes = folder.clear() if clear else folder.size()
    what = f"{counted(count, 'conversation')}, {gib(nbytes)}" if count else "none"
    facts = {"folder": str(folder.folder), "conversations": count, "bytes": nbytes, "deleted": clear}
    call.result(facts, f"{'deleted ' * clear}{what}{'' if clear else f' in {folder.folder}'}\n")
    return 0
