"""The file names of a split model. Separate from the reader, which loads numpy: the app needs names earlier."""

from __future__ import annotations

import re

SPLIT_NAME = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf", re.DOTALL)
