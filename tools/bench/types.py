"""Matrix products of every tensor type on this card, at 1 and at 24 rows: `python -m tools.bench.types [TYPE ..]`.

Weights are random bytes in as many copies as fit into a few gigabytes, so that none is in the L2 when it is read. A
figure is the median over replays of a graph, of one launch; the share is that of a kernel which does nothing but read.
"""

from __future__ import annotations

import argparse

from dflash_core.backends.cuda.repack import TILE_TYPES
from dflash_core.backends.cuda.target import open_device
from dflash_tui.terminal.output import write_out
from tools.bench.kernels import ARENA, Bench, Product
from tools.bench.tool import run_tool

SHAPES = ((17_408, 5_120), (5_120, 17_408), (4_096, 4_096))
WIDTHS = (1, 24)


def main() -> None:
    """Measure and print. Raises DFlashError."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", metavar="TYPE", nargs="*", help="only these")
    names = parser.parse_args().names or list(TILE_TYPES)
    if unknown := [name for name in names if name not in TILE_TYPES]:
        parser.error(f"{unknown[0]}: no such type, expected some of {', '.join(TILE_TYPES)}")
    device = open_device(0)
    products = [Product("ffn_up", ((name, rows),), columns) for name in names for rows, columns in SHAPES]
    bench = Bench(device, ARENA, products)
    device.bind([one for p in products for w in WIDTHS for one in bench.launches([bench.place(p, 0)[0]], w)], None)
    reads = bench.bandwidth()
    write_out(f"{device.runtime.card.name} reads {reads / 1e12:.2f} TB/s\n")
    write_out(f"{'type':8} {'matrix':>14} {'1 row, us':>10} {'share':>6} {'24 rows, us':>12} {'ratio':>6}\n")
    for product in products:
        copies = bench.copies(product)
        one, many = (bench.seconds(bench.record(bench.launches(copies, w))) / len(copies) for w in WIDTHS)
        shape = f"{product.matrices[0][1]}x{product.columns}"
        share = product.nbytes / one / reads
        write_out(
            f"{product.types:8} {shape:>14} {one * 1e6:10.1f} {share:6.0%} {many * 1e6:12.1f} {many / one:6.2f}\n"
        )


if __name__ == "__main__":
    run_tool(main)
