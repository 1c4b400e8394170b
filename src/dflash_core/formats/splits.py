"""The file names of split models. Separate from the reader, which loads numpy: the app needs names earlier."""

from __future__ import annotations

import re

SPLIT_NAME = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf", re.DOTALL)
INDEX = "model.safetensors.index.json"
"""Which file has which tensor, where a folder has several."""
