"""`python -m dflash_tui` is `dflash-tui`."""

import sys

from dflash_tui.cli import main

sys.exit(main())
