"""Builds the training corpus.

`python -m tools.train_demo.prepare --school-math gsm8k_train.jsonl.gz --out FOLDER` writes `tokenizer.json`,
`facts.json` with the counts, and `corpus.npz`. The latter has four sets of documents: made and held are generated,
known and held_read come from existing texts, and held and held_read are never trained on. Each set is two arrays, NAME
int32 (bit 24 set on the tokens of the answer) and NAME_starts int64, which `data.load` reads. Needs no GPU; the same
arguments give the same bytes.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
from collections.abc import Iterable, Sequence
from itertools import chain, islice
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from . import tokenizer as tok
from .bench_prompts import FILES, HELD_DOCUMENTS
from .corpus import build, splits
from .corpus.build import Document
from .data import ANSWER, Documents, Tokens


def encode(tokenizer: Tokenizer, documents: Iterable[Document], context: int) -> Documents:
    """Tokenise the documents; those longer than `context` tokens are left out."""
    parts: list[Tokens] = []
    documents = iter(documents)
    while batch := list(islice(documents, 4096)):
        prompts = tokenizer.encode_batch_fast([d.prompt() for d in batch], add_special_tokens=False)
        answers = tokenizer.encode_batch_fast([d.answer() for d in batch], add_special_tokens=False)
        for p, a in zip(prompts, answers, strict=True):
            if len(p.ids) + len(a.ids) <= context:
                parts.append(np.array([*p.ids, *(i | ANSWER for i in a.ids)], np.int32))
    return Documents.of(parts)


def fresh_shard(task: tuple[Path, int, int, int, int]) -> Documents:
    """Make one shard of new training documents: (tokenizer file, first, count, seed, context)."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the shards already share the cores
    path, first, count, seed, context = task
    return encode(tok.load(path), build.generated(count, "train", seed, first), context)


def bench_texts(folder: Path) -> list[str]:
    """The prompts of the benchmark files that lie in `folder`, for the near-copy count."""
    out = []
    for name, key in FILES.values():
        if (folder / name).exists():
            with gzip.open(folder / name, "rt", encoding="utf-8") as lines:
                out += [json.loads(line)[key] for line in lines]
    if (folder / "mt_bench.jsonl").exists():
        rows = (folder / "mt_bench.jsonl").read_text(encoding="utf-8").splitlines()
        out += [turn for row in rows for turn in json.loads(row)["turns"]]
    return out


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--school-math", type=Path, help="gsm8k_train.jsonl.gz; left out of the mixture if not given")
    parser.add_argument("--bench", type=Path, help="folder of benchmark prompts, to count near-copies in the corpus")
    parser.add_argument("--documents", type=int, default=450_000)
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    a = parser.parse_args(argv)
    a.out.mkdir(parents=True, exist_ok=True)

    read = build.sources(a.school_math)
    made_texts = (d.prompt() + d.answer() for d in build.generated(40_000, "train", a.seed + 1))
    read_texts = (d.prompt() + d.answer() for d in build.read_documents(read, "train"))
    tokenizer = tok.train(chain(read_texts, made_texts))
    tokenizer.save(str(a.out / "tokenizer.json"))

    made = encode(tokenizer, build.generated(a.documents, "train", a.seed), a.context)
    known = encode(tokenizer, build.read_documents(read, "train"), a.context)
    held = encode(tokenizer, build.generated(HELD_DOCUMENTS, "held", a.seed), a.context)
    held_read = encode(tokenizer, build.read_documents(read, "held"), a.context)
    np.savez_compressed(
        a.out / "corpus.npz", made=made.tokens, made_starts=made.starts, known=known.tokens, known_starts=known.starts,
        held=held.tokens, held_starts=held.starts, held_read=held_read.tokens, held_read_starts=held_read.starts,
    )  # fmt: skip

    facts = {"documents": len(made), "tokens": len(made.tokens), "read documents": len(known),
             "read tokens": len(known.tokens), "held-out documents": len(held) + len(held_read)}  # fmt: skip
    if a.bench:
        rows = [np.array(e.ids, np.int32) for e in tokenizer.encode_batch_fast(bench_texts(a.bench))]
        copies = splits.near_copies(rows, np.concatenate([made.tokens, known.tokens]) & np.int32(ANSWER - 1))
        facts |= {"bench prompts": len(rows), "bench near-copies": sum(copies)}
    (a.out / "facts.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(facts))  # noqa: T201


if __name__ == "__main__":
    main()
