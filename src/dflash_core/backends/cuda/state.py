"""The structs that kernels and host share, read from the kernels' headers, their only source: what the host writes to
them, and what it makes of a finished step."""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from dflash_core import resources
from dflash_core.backends.decoder import step_drafts
from dflash_core.drafters.draw_noise import noise_share
from dflash_core.events import NO_DRAFTS, Choice, EffectiveMode, StageTimes, StepEvent, StepTree, Stop, brings
from dflash_core.fits import ONE_PASS
from dflash_core.knobs import Knobs
from dflash_core.log_probs import Drawn
from dflash_core.tree import Candidates

_SCALARS: Mapping[str, type] = {"u64": np.uint64, "int": np.int32, "float": np.float32, "double": np.float64}
_CONSTANTS = re.compile(r"constexpr int ([^;()]+);")
_ENUM = re.compile(r"enum \w+ \{([^}]+)\}")
_NUMBER = re.compile(r"(\w+) = (\d+)")
_STRUCT = re.compile(r"struct(?: alignas\(\d+\))? (\w+) \{(.*?)\n\};", re.DOTALL)
_FIELD = re.compile(r"(u64|int|float|double) ([^;()]+);")


class Headers:
    """The `constants` and `structs` of header files, by name. Structs are aligned records of numbers and arrays.

    Raises DFlashError where an installation lacks the headers.
    """

    def __init__(self, *names: str) -> None:
        folder = resources.kernels_dir()
        text = re.sub(r"//.*", "", "".join((folder / name).read_text(encoding="utf-8") for name in names))
        numbers = (*_CONSTANTS.findall(text), *_ENUM.findall(text))
        self.constants = {name: int(value) for part in numbers for name, value in _NUMBER.findall(part)}
        self.structs = {
            name: np.dtype([self._field(kind, one) for kind, many in _FIELD.findall(body) for one in many.split(",")],
                           align=True)
            for name, body in _STRUCT.findall(text)
        }  # fmt: skip

    def _field(self, kind: str, declared: str) -> tuple[str, type, tuple[int, ...]]:
        """A field of a struct, such as `candidate[MAX_DEPTH][MAX_WIDTH]`."""
        sizes = re.findall(r"\[(\w+)\]", declared)
        shape = tuple(int(size) if size.isdigit() else self.constants[size] for size in sizes)
        return declared.partition("[")[0].strip(), _SCALARS[kind], shape


HEADERS = Headers("state.cuh", "ring.cuh", "head.cuh", "draw.cuh", "pairs.cuh", "log_probs.cuh")
MAX_NODES, MAX_DEPTH, MAX_WIDTH = (HEADERS.constants[name] for name in ("MAX_NODES", "MAX_DEPTH", "MAX_WIDTH"))
MAX_STOP_IDS, HISTORY, STAMPS = (HEADERS.constants[name] for name in ("MAX_STOP_IDS", "HISTORY", "STAMPS"))
PAIR_CANDIDATES = HEADERS.constants["PAIR_CANDIDATES"]  # per draft position, if candidates are scored by their parent
PASS_ROWS = ONE_PASS  # nodes of the widest pass
STEP_SLOTS = 8  # slots of the ring to which steps write their results
# Rows of the compiled passes: a tree uses the smallest that holds it.
WIDTHS = (1, 4, 8, 16, 24, 32, 40, 48, 64)


def width_for(rows: int, widths: Sequence[int] = WIDTHS) -> int:
    """The smallest of `widths` that holds `rows`."""
    return next(width for width in widths if width >= rows)


class StopCode(enum.IntEnum):
    """Why a turn ended: codes of the accept kernel."""

    RUNNING = 0
    STOP_TOKEN = 1
    MAX_TOKENS = 2
    CONTEXT_FULL = 3
    CANCELLED = 4
    BROKEN = 5
    HALTED = 6


# The reasons as given in events; none while the turn runs, for BROKEN, which becomes an error, and for HALTED, after
# which a guard goes on.
REASONS: dict[int, Stop] = {
    StopCode.STOP_TOKEN: "stop token",
    StopCode.MAX_TOKENS: "max tokens",
    StopCode.CONTEXT_FULL: "context full",
    StopCode.CANCELLED: "cancelled",
}


class Stamp(enum.IntEnum):
    """Points in a step at which a kernel stores the time."""

    STEP_BEGIN = 0
    TREE_BEGIN = 1
    VERIFY_BEGIN = 2
    ACCEPT_BEGIN = 3
    ACCEPT_END = 4
    COMMIT_END = 5


STEP_STATE, RING_SLOT = HEADERS.structs["StepState"], HEADERS.structs["RingSlot"]
# The bytes of a RING_SLOT as the host reads them: adjacent fields are joined, so that one access reads them all.
RING_READ = np.dtype(
    [
        ("stamp", np.uint64, STAMPS),
        ("numbers", np.int32, 12),
        ("ids", np.int32, (5, MAX_NODES)),
        ("floats", np.float32, (3, MAX_NODES)),
        ("candidate", np.int32, (MAX_DEPTH, MAX_WIDTH)),
        ("candidate_log_prob", np.float32, (MAX_DEPTH, MAX_WIDTH)),
    ],
    align=True,
)
PAIRING, BEST_PART = HEADERS.structs["Pairing"], HEADERS.structs["BestPart"]
ROW_TOKENS, ROW_FRONT, PART_BEFORE = (HEADERS.structs[name] for name in ("RowTokens", "RowFront", "PartBefore"))
ROW_TOTAL, NODE_LOG_PROBS = HEADERS.structs["RowTotal"], HEADERS.structs["NodeLogProbs"]

# The fields of StepState that `write_knobs` sets are adjacent: from the first of them up to the field after them.
FIRST_KNOB, AFTER_KNOBS = "budget", "max_tokens"
PENALTIES = "repetition_penalty", "frequency_penalty", "presence_penalty"
SAMPLING = "temperature", "top_k", "top_p", "min_p", *PENALTIES  # fields that have the names of knobs


def write_knobs(
    state: npt.NDArray[np.void],
    knobs: Knobs,
    mode: EffectiveMode,
    draft_block: int,
    budget: int | None = None,
    weights: npt.NDArray[np.float64] | None = None,
    rows: int = 0,
) -> None:
    """Write the settings that a step reads to `state`, a STEP_STATE of shape (). The seed and the limits stay.

    `draft_block`: the drafter's block with its anchor; 0 without a drafter. `budget`: nodes to build, None for the
    setting. `weights` (classes, features): if given, the tree is built by learned value, and passes run its first
    `rows` nodes.
    """
    state["by_value"], state["rows"] = weights is not None, rows
    if weights is not None:
        state["weights"] = weights
    state["budget"] = min(knobs.budget if budget is None else budget, MAX_NODES - 1)
    state["draft_depth"] = 0 if mode == "plain" else max(draft_block - 1, 0)
    state["width"] = 1 if mode == "chain" else min(knobs.tree_width, MAX_WIDTH)
    state["chain_seed"] = knobs.chain_seed
    state["by_parent"] = knobs.by_parent
    state["draft_window"] = knobs.draft_window
    state["log_p_min"] = math.log(knobs.p_min) if knobs.p_min > 0 else -math.inf
    state["inv_tree_temperature"] = 1 / knobs.tree_temperature
    state["draft_noise"] = noise_share(knobs)
    for name in SAMPLING:
        state[name] = getattr(knobs, name)


def begin_turn(
    state: npt.NDArray[np.void],
    knobs: Knobs,
    *,
    answer: Sequence[int],
    prompt_length: int,
    context_length: int,
    stop_ids: Sequence[int],
) -> None:
    """Write what is fixed during a turn after a prompt of `prompt_length` tokens, and the tokens of `answer` that are
    already drawn: the last one is the root, those before it are committed.

    `stop_ids`: at most MAX_STOP_IDS.
    """
    ids = np.full(MAX_STOP_IDS, -1, np.int32)
    ids[: len(stop_ids)] = sorted(stop_ids)
    state["seed"] = knobs.fixed().seed
    state["root"], state["answered"] = answer[-1], len(answer)
    for place in range(max(0, len(answer) - HISTORY), len(answer)):
        state["history"][place % HISTORY] = answer[place]
    state["steps"] = state["stop"] = state["accepted"] = 0
    state["max_tokens"] = knobs.max_tokens
    state["prompt_length"], state["context_length"] = prompt_length, context_length
    state["stop_ids"] = -1 if knobs.ignore_eos else ids


def from_text(copied: int, n: int) -> tuple[int, ...]:
    """Those of n nodes that came from the text, from a bit for each."""
    return tuple(node for node in range(n) if copied >> node & 1) if copied else ()


def stages(slot: npt.NDArray[np.void], previous: npt.NDArray[np.void] | None) -> StageTimes:
    """Milliseconds of a step's parts. `previous`: the previous step's slot, or None for the first step of a turn.

    A slot is written before its own commit ends, so `commit` belongs to the previous step, and `host` is the gap after
    it.
    """
    begun, tree, verify, accept, accepted, committed = slot["stamp"].tolist()[: len(Stamp)]
    commit = host = 0.0
    if previous is not None:
        commit = (committed - int(previous["stamp"][Stamp.ACCEPT_END])) / 1e6
        host = (begun - committed) / 1e6
    laps = (tree - begun) / 1e6, (verify - tree) / 1e6, (accept - verify) / 1e6, (accepted - accept) / 1e6
    return StageTimes(*laps, commit, host)


def drafts_finite(slot: npt.NDArray[np.void], knobs: Knobs) -> bool:
    """Whether every probability of the drafter in a finished RING_SLOT of shape () is a number."""
    read = slot.view(RING_READ)
    offered = read["candidate_log_prob"][: int(slot["draft_depth"]), : knobs.tree_width]
    return not (np.isnan(offered).any() or np.isnan(read["floats"][:2, : int(slot["n"])]).any())


def drawn(nodes: npt.NDArray[np.void], tokens: Sequence[int], top: int) -> Iterator[Drawn]:
    """What a step reported of `tokens`, with the `top` likeliest ones. `nodes` (n,): NODE_LOG_PROBS of its walk."""
    fields = (nodes[name].tolist() for name in ("log_prob", "count", "id", "value"))
    for token, log_prob, count, ids, values in zip(tokens, *fields):
        yield Drawn(token, log_prob, tuple(zip(ids, values))[: min(top, count)])


def step_event(
    slot: npt.NDArray[np.void],
    previous: npt.NDArray[np.void] | None,
    mode: EffectiveMode,
    reason: str,
    knobs: Knobs,
    copied: int = 0,
) -> StepEvent:
    """The event described by a finished RING_SLOT of shape (). `knobs`: the settings of its step; `copied`: a bit for
    each node that was copied from the text. A probability of the drafter that is not a number is given as 0."""
    read, width = slot.view(RING_READ), knobs.tree_width  # all candidates, also for a chain
    _, stop, length, _, committed, walked, bonus, n, by_value, built, depth, _ = read["numbers"].tolist()
    token, path, tokens, parents, depths = map(tuple, read["ids"][:, :n].tolist())
    # fmax takes the other number where one is not a number. nan_to_num would take a fifth of a short step.
    probs, path_probs = map(tuple, np.fmax(np.exp(read["floats"][:2, :n].astype(np.float64)), 0.0).tolist())
    values = tuple(np.fmax(read["floats"][2, :built], 0.0).tolist()) if by_value else ()
    drafts = NO_DRAFTS
    if depth:
        offered, log_probs = (read[name][:depth, :width] for name in ("candidate", "candidate_log_prob"))
        log_probs = np.fmax(log_probs.astype(np.float64), -np.inf)
        drafts = step_drafts(Candidates(offered.astype(np.int64), log_probs))
    return StepEvent(
        tokens=token[:committed],
        tree=StepTree(tokens, parents, depths, probs, path_probs, path[:walked], values[:n], from_text(copied, n)),
        drafted_depth=max(depths),
        accepted_depth=walked - 1,
        length=length,
        stages=stages(slot, previous),
        mode=mode,
        reason=reason,
        stop=REASONS.get(stop),
        drafts=drafts,
        bonus=bonus,
        knobs=knobs,
        choice=Choice(brings(values), n) if values else None,
    )
