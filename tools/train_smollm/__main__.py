"""The recipe of SmolLM2's drafter: `python -m tools.train_smollm PART`.

prepare  reads the prompts and writes them as token ids; needs no GPU
train    lets the target write, trains the drafter, checks it on held-out prompts; needs one GPU
export   writes the drafter as GGUF
measure  tokens a step in the decoder
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from . import measure, prompts, train


def prepare(a: argparse.Namespace) -> None:
    """Write scripts.npz and held.json."""
    a.out.mkdir(parents=True, exist_ok=True)
    encode = prompts.Encoder(a.target)
    prompts.training(encode, a.bench).save(a.out / "scripts.npz")
    held = prompts.held_out(encode, a.bench, a.checks)
    (a.out / "held.json").write_text(json.dumps(held), encoding="utf-8")


def export_draft(a: argparse.Namespace) -> None:
    """Write the drafter of a state as GGUF."""
    from tools.train_demo import export

    from . import state
    from .llama import LlamaConfig
    from .sizes import STORED, draft_config

    c = LlamaConfig.of(a.target)
    export.write_draft(
        a.out,
        draft_config(c),
        state.load(a.state),
        None,
        c.context,
        STORED,
        name="SmolLM2-135M-Instruct DFlash 2 drafter",
    )


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tools.train_smollm", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parts = parser.add_subparsers(dest="part", required=True)
    one = parts.add_parser("prepare")
    one.add_argument("--target", type=Path, required=True, help="SmolLM2's GGUF file")
    one.add_argument("--bench", type=Path, required=True, help="folder with the files of the benchmarks")
    one.add_argument("--checks", type=int, default=64, help="held-out prompts of each set")
    one.add_argument("--out", type=Path, required=True)
    train.options(parts.add_parser("train"))
    two = parts.add_parser("export")
    two.add_argument("--target", type=Path, required=True, help="SmolLM2's GGUF file")
    two.add_argument("--state", type=Path, required=True, help="folder with the state that training wrote")
    two.add_argument("--out", type=Path, required=True, help="the file to write")
    measure.options(parts.add_parser("measure"))
    a = parser.parse_args(argv)
    {"prepare": prepare, "train": train.main, "export": export_draft, "measure": measure.main}[a.part](a)


if __name__ == "__main__":
    main()
