"""Writes `weights/demo.json`: sizes and checksums of the shipped files, the training log, and the near-copies.

`python -m tools.train_demo.facts --run FOLDER --corpus FOLDER [--bench FOLDER]` after a training run.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from dflash_core.demo import WEIGHTS

from . import bench_prompts, data
from . import tokenizer as tok
from .corpus import splits


def near_copies(corpus: Path, bench: Path | None) -> dict[str, list[int]]:
    """Numbers of the held-out questions that share a run of 13 tokens with the trained text, by set."""
    documents = data.load(corpus)
    trained = np.concatenate([documents["made"].tokens, documents["known"].tokens]) & np.int32(data.ANSWER - 1)
    reader = tok.load(corpus / "tokenizer.json")
    sets = {"held": bench_prompts.held_questions()}
    if bench:
        sets |= {name: bench_prompts.file_questions(bench, name) for name in bench_prompts.FILES}
    out: dict[str, list[int]] = {}
    for name, questions in sets.items():
        rows = [np.array(reader.encode(q.text).ids, np.int32) for q in questions]
        copies = splits.near_copies(rows, trained)
        out[name] = [q.number for q, copied in zip(questions, copies, strict=True) if copied]
    return out


def log_rows(path: Path) -> list[dict[str, object]]:
    """The rows of a training log without the sample answers."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [row for row in rows if "prompt" not in row]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, required=True, help="the --out folder of tools.train_demo.train")
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--bench", type=Path)
    a = parser.parse_args(argv)
    files = {p.name: {"bytes": p.stat().st_size, "sha256": hashlib.sha256(p.read_bytes()).hexdigest()}
             for p in sorted(WEIGHTS.glob("*.gguf"))}  # fmt: skip
    facts = {
        "files": files,
        "corpus": json.loads((a.corpus / "facts.json").read_text(encoding="utf-8")),
        "near_copies": near_copies(a.corpus, a.bench),
        "target_log": log_rows(a.run / "target-log.jsonl"),
        "draft_log": log_rows(a.run / "draft-log.jsonl"),
    }
    lines = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in facts.items()]
    (WEIGHTS / "demo.json").write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
