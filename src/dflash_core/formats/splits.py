"""How files of a model in parts are named. The reader of files loads numpy; the app names files before that."""

from __future__ import annotations

import re

SPLIT_NAME = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf", re.DOTALL)
