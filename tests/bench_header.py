"""Time to open a GGUF header of the real size: 248,320 tokens, 247,587 merges, token types, 851 tensors.

python tests/bench_header.py [--oracle]        # --oracle times gguf's own reader as well
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from gguf import GGUFReader, GGUFWriter

from dflash_core.formats.gguf import open_gguf

TOKENS, MERGES, TENSORS = 248_320, 247_587, 851


def write_header(path: Path, tokens: int = TOKENS, merges: int = MERGES, tensors: int = TENSORS) -> None:
    """A file with a vocabulary of that size, its strings as long as real ones, and tensors of one block."""
    writer = GGUFWriter(path, "qwen35")
    writer.add_token_list([f"Ġtok{index}" for index in range(tokens)])
    writer.add_token_types([1] * tokens)
    writer.add_token_merges([f"Ġt {index}" for index in range(merges)])
    for index in range(tensors):
        writer.add_tensor(f"blk.{index}.weight", np.zeros(32, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--oracle", action="store_true", help="time gguf's GGUFReader as well")
    oracle = parser.parse_args().oracle
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "header.gguf"
        write_header(path)
        times = []
        for _ in range(5):
            start = time.perf_counter()
            open_gguf(path)
            times.append(time.perf_counter() - start)
        sys.stdout.write(f"open_gguf  best {min(times):.3f} s, worst {max(times):.3f} s of {len(times)}\n")
        if oracle:
            start = time.perf_counter()
            GGUFReader(path)
            sys.stdout.write(f"GGUFReader {time.perf_counter() - start:.3f} s\n")


if __name__ == "__main__":
    main()
