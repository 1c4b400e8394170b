"""Predicts a step of the synthetic 27B pair on a card, from the bytes that it reads and the card's bandwidth.

Weights are read once per pass, at the bandwidth of a kernel that does nothing else. Around the products of a layer
are about ten small kernels that depend on each other: they add a time per layer, more where the card cannot launch a
kernel while the one before runs, and more with more rows. The amounts are those of the cards that were measured
(docs/benchmarks.md); if a step takes much longer, the plans do not suit the card.

python -m tools.bench.predict FILE    what is predicted for the card of a `tools.bench.steps --share FILE`
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

from dflash_core.arch.kinds import DeltaNet
from dflash_core.backends.cuda.plan import Card, Product, plan
from dflash_core.backends.cuda.repack import packed_bytes
from dflash_core.bench.synthetic_models import DRAFT_27B, TARGET_27B, draft_types
from tools.bench.kernels import products_27b
from tools.bench.tool import run_tool

ROWS = 24  # of the tree that is predicted
FLOAT_BYTES = 4
# Microseconds of a target layer apart from its weights at one row, and of each further row.
LAYER_US, SERIAL_LAYER_US, ROW_US = 30.0, 43.0, 1.2
DRAFT_US, SERIAL_DRAFT_US = 310.0, 390.0  # of a draft apart from its weights


@dataclass(frozen=True, slots=True)
class Prediction:
    """Milliseconds: a plain step, a verify pass of ROWS rows, and a draft. `bandwidth`: bytes read per second."""

    bandwidth: float
    plain_ms: float
    verify_ms: float
    draft_ms: float

    @property
    def tree_ms(self) -> float:
        """A whole step with a tree of ROWS nodes, the root included."""
        return self.verify_ms + self.draft_ms


def counted_products() -> Counter[Product]:
    """The products of a pass of the synthetic 27B target, by how often they come."""
    return Counter(product.planned for product in products_27b())


def predict(card: Card, bandwidth: float) -> Prediction:
    """`bandwidth`: bytes per second that the card was found to read."""
    layers, layer_us = TARGET_27B.block_count, LAYER_US if card.overlaps else SERIAL_LAYER_US
    states = sum(layer.mixer.state_numbers for layer in TARGET_27B.layers if isinstance(layer.mixer, DeltaNet))
    moved = 2 * states * FLOAT_BYTES
    head = products_27b()[-1].planned
    types = draft_types(DRAFT_27B)
    drafter = sum(packed_bytes(types[name], *shape) for name, shape in DRAFT_27B.tensors().items() if len(shape) == 2)
    # A block of a drafter is a pass of 16 rows.
    drafted = drafter + head.nbytes * _passes(head, card, DRAFT_27B.block_size)
    return Prediction(
        bandwidth,
        (_read(card, 1) + moved) / bandwidth * 1e3 + layers * layer_us / 1e3,
        (_read(card, ROWS) + moved) / bandwidth * 1e3 + layers * (layer_us + (ROWS - 1) * ROW_US) / 1e3,
        drafted / bandwidth * 1e3 + (DRAFT_US if card.overlaps else SERIAL_DRAFT_US) / 1e3,
    )


def _read(card: Card, rows: int) -> int:
    """Bytes of weights that a pass reads."""
    products = counted_products()
    return sum(count * product.nbytes * _passes(product, card, rows) for product, count in products.items())


def _passes(product: Product, card: Card, rows: int) -> int:
    deal = plan(product.shapes, product.columns, card, rounding=product.rounding, split_k=product.split_k)
    return len(deal.passes(rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    file = parser.parse_args().file
    found = json.loads(file.read_text()).get("card")
    if found is None:
        parser.error(f"{file} describes no card, expected what tools.bench.steps --share has written; name that file")
    card = Card(found["multiprocessors"], found["shared_bytes"], overlaps=found["overlaps"])
    sys.stdout.write(json.dumps(asdict(predict(card, found["read_bandwidth"]))) + "\n")


if __name__ == "__main__":
    run_tool(main)
