"""`states`: show or delete the states of conversations on disk."""

from __future__ import annotations

from dflash_core.memory import gib
from dflash_core.snapshots.folder import StateFolder
from dflash_core.user_folders import user_folder
from dflash_tui.cli.options import Invocation
from dflash_tui.terminal.output import write_json, write_out


def run(call: Invocation) -> int:
    """Show how many there are and their total size, or delete them. Raises OSError."""
    clear = call.args.what == "clear"
    folder = StateFolder(user_folder("cache") / "states", 0)
    count, nbytes = folder.clear() if clear else folder.size()
    if call.args.json:
        write_json({"folder": str(folder.folder), "conversations": count, "bytes": nbytes, "deleted": clear})
    else:
        what = f"{count} conversation{'s' * (count != 1)}, {gib(nbytes)}"
        write_out(f"{'deleted ' * clear}{what if count else 'none'}{'' if clear else f' in {folder.folder}'}\n")
    return 0
