"""Plans memory: what a pair needs, the longest context per cache type, and changes that would help.

Nothing is loaded for this. A `MemoryEstimator` predicts the memory of a setup on one machine.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from dflash_core.cache_types import AUTO, AUTO_PAIRS, DIVERGENCE, EXACT, divergence
from dflash_core.errors import Code, ContextError, OutOfMemoryError
from dflash_core.memory import Component, MemoryBreakdown, gib

CONTEXT_STEP = 512  # positions: the steps in which the longest context is searched
MAX_REMEDIES = 3
# That a plan compares, in the order of what they cost.
KV_TYPES = tuple(sorted((*map(str, AUTO_PAIRS), "bf16", "tq3_0"), key=DIVERGENCE.__getitem__))
# What a change costs the user, for sorting: accuracy, acceptance, speed, or missing positions.
# Keys and values: as f16, as q8_0, and what ten times the divergence adds.
HALVES_COST, Q8_COST, TENFOLD_COST = 0.5, 2, 2.3
DRAFT_COST: Mapping[str, float] = {"": 0, "q8_0": 2.5, "q4_0": 4.5}
UNKNOWN_COST, NO_DRAFTER_COST = 6, 20
MTP_COST = 3  # of the MTP head in the target's file where another drafter was asked for
SHORTER_COST = 12  # the cost of a context of length 0; half of it for half of the positions

TARGET = "target"  # the component of the target's weights
SMALLEST_SHARE = 0.4  # of the bytes of a file with 4 to 5 bits per weight: 2 bits and less
ON_CARD, ON_HOST = "card", "host"
EMBEDDING_COST = 1.5  # a row is copied over the bus for every token
EXPERTS_COST, LAYER_COST = 4, 0.25  # of experts in main memory, and of each layer: decoding is slower, prompts much

DESKTOP = 1 << 30  # bytes that a desktop and its programs use on a card: an assumption
CEILING = 32_768  # positions where no context is given
SHORT = 8_192  # for fewer, a context takes memory that would be left free
SMALLEST_CONTEXT = 512  # that memory is reserved for
MIN_CONTEXT = 2  # that can be requested
PREFILL_ROWS = 2048  # of a prompt that a card reads at once
# Nodes of trees on a card: of the default settings, of one pass, and the most that there can be.
MIN_NODES, ONE_PASS, MAX_TREE_NODES = 24, 64, 256
MIN_PREFILL_ROWS = 256  # where memory is short; with fewer, most of the time would go into converting weights to f16


@dataclass(frozen=True, slots=True)
class CardOptions:
    """How weights are stored and multiplied on a card. `activations`: how inputs of products are rounded, "int8",
    "mixed" or "f16"; `draft_type`: "q8_0" or "q4_0" converts a drafter's matrices when loaded; `tune`: time several
    methods of computing at the first load on a card; `vram_limit`: bytes of a smaller card to simulate, 0 for none;
    `embedding`: where the target's token embedding is stored, on the "card" or on the "host"; `experts`: where routed
    experts are, "card", "host", "auto", or of how many layers they are on the host; `reading`: "passes" reads prompts
    with the kernels of decoding, "auto" by the faster of both."""

    activations: str = "int8"
    draft_type: str = ""
    tune: bool = True
    vram_limit: int = 0
    embedding: str = ON_CARD
    experts: str = ON_CARD
    reading: str = "auto"


DEFAULT_CARD = CardOptions()


@dataclass(frozen=True, slots=True)
class Setup:
    """The choices in loading a pair that memory depends on.

    `context`: positions; `kv`: type of keys and values; `nodes`: of the largest tree that memory is reserved for;
    `draft_type`: the type that a drafter's matrices are converted to, "" for none; `drafted`: with the drafter;
    `mtp`: with the MTP head in the target's file in place of that; `embedding`: where the target's token embedding is
    stored; `experts`: of how many layers the routed experts are in main memory; `cached`: how many of each of these
    the card caches; `rows`: prompt rows processed at once.
    """

    context: int
    kv: str = "f16"
    nodes: int = MIN_NODES
    draft_type: str = ""
    drafted: bool = True
    mtp: bool = False
    embedding: str = ON_CARD
    experts: int = 0
    cached: int = 0
    rows: int = PREFILL_ROWS


class MemoryEstimator(ABC):
    """Predicts the memory of a pair on one machine from headers. What is not abstract is of a machine with one memory.

    `available`: bytes that all components together may take. `base`: the default setup, except for the context.
    Possible numbers: `chunk_rows` of prompt rows processed at once and `tree_nodes` of the largest tree, the largest
    first; `expert_layers` of layers whose experts are in main memory, the fewest first. `auto`: cache types; where none
    is named, the first that fits is used. `kv_types`: those that a plan compares. `longest_context`: positions that the
    model was trained for.
    """

    machine: str
    available: int
    longest_context: int
    auto: Sequence[str]
    chunk_rows: Sequence[int] = (PREFILL_ROWS,)
    tree_nodes: Sequence[int] = (0,)
    expert_layers: Sequence[int] = (0,)

    @property
    @abstractmethod
    def base(self) -> Setup: ...
    @property
    @abstractmethod
    def kv_types(self) -> Sequence[str]: ...

    @abstractmethod
    def spare(self, available: int) -> int:
        """Bytes of `available` to leave free when a context or a cache type is chosen automatically."""

    def min_spare(self, available: int) -> int:
        """Bytes to leave free where `spare` would leave only a short context."""
        return self.spare(available)  # a machine that is out of main memory stops answering

    def layers_on_host(self, few: int) -> int:
        """How many layers have their experts in main memory where `few` must: all that it has memory for; 0 for 0."""
        return few

    def with_cache(self, setup: Setup, free: int) -> Setup:
        """`setup` with as many experts cached on the card as `free` bytes hold, where others are in main memory."""
        return setup

    @abstractmethod
    def choices(self, setup: Setup) -> Sequence[Setup]:
        """Other setups that may take less at the same context."""

    @abstractmethod
    def components(self, setup: Setup) -> tuple[Component, ...]:
        """Memory by component, including the share of driver and runtime."""

    @abstractmethod
    def sequence(self, setup: Setup) -> tuple[Component, ...]:
        """The part of `components` that a sequence of full length needs."""


@dataclass(frozen=True, slots=True)
class Remedy:
    """A change that helps: `setup` after the change, `total` bytes that it needs, and the bytes that it `saves`."""

    setup: Setup
    total: int
    saves: int


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The memory of a pair loaded as `setup`. `context_that_fits`: positions by cache type, 0 where none fit.

    `smaller`: bytes of the target's weights with which `setup` would fit, where it does not; 0 where none would do.
    """

    machine: str
    setup: Setup
    components: tuple[Component, ...]
    available: int
    context_that_fits: Mapping[str, int]
    remedies: tuple[Remedy, ...]
    smaller: int = 0

    @property
    def total(self) -> int:
        return sum(one.bytes for one in self.components)

    @property
    def fits(self) -> bool:
        return self.total <= self.available


class RanOutError(OutOfMemoryError):
    """Memory ran out in mid-turn; `plan` has changes that would help, for the memory available now."""

    def __init__(self, message: str, plan: MemoryPlan) -> None:
        super().__init__(message, code=Code.DEVICE_FULL)
        self.plan = plan


def ran_out(plan: MemoryPlan, breakdown: MemoryBreakdown) -> RanOutError:
    """The error of such a turn: memory by component, and whether the same setup would fit now."""
    sizes = {one.name: one.bytes if one.measured is None else one.measured for one in breakdown.components}
    largest = sorted((item for item in sizes.items() if item[1]), key=lambda item: item[1], reverse=True)
    parts = ", ".join(f"{name} {gib(size)}" for name, size in largest[:5])
    then = "ask again" if plan.fits else f"{gib(plan.total - plan.available)} have to be freed, or take less"
    return RanOutError(
        f"{breakdown.device} is full, {gib(breakdown.free)} of {gib(breakdown.total)} free: {parts}; {then}", plan
    )


def total(estimator: MemoryEstimator, setup: Setup) -> int:
    return sum(one.bytes for one in estimator.components(setup))


def sequence_bytes(estimator: MemoryEstimator, setup: Setup) -> int:
    return sum(one.bytes for one in estimator.sequence(setup))


def memory_after_load(estimator: MemoryEstimator, free: int) -> int:
    """Bytes for all components, where the pair is loaded and `free` bytes are left for a sequence."""
    return free + total(estimator, estimator.base) - sequence_bytes(estimator, estimator.base)


def settled(estimator: MemoryEstimator, setup: Setup, available: int) -> Setup:
    """`setup` with as many prompt rows at once, and then as large trees, as fit in `available` bytes; the
    smallest where none fit. Trees of more than one pass are rare, and must leave `spare` bytes free."""
    options = [replace(setup, rows=rows, nodes=estimator.tree_nodes[-1]) for rows in estimator.chunk_rows]
    option = next((option for option in options if total(estimator, option) <= available), options[-1])
    trees = [replace(option, nodes=nodes) for nodes in estimator.tree_nodes]
    spare = estimator.spare(available)
    fitting = (tree for tree in trees if total(estimator, tree) <= available - spare * (tree.nodes > ONE_PASS))
    return next(fitting, option)


def min_bytes(estimator: MemoryEstimator, setup: Setup) -> int:
    """Bytes that `setup` needs with the smallest prompt chunks and the smallest trees."""
    return total(estimator, replace(setup, rows=estimator.chunk_rows[-1], nodes=estimator.tree_nodes[-1]))


def longest(limit: int, fits: Callable[[int], bool], guess: int = 0) -> int:
    """The most positions, in steps of CONTEXT_STEP up to `limit`, for which `fits` is true; 0 where there are none. The
    search starts near `guess`, if given."""
    low, high = 0, -(-limit // CONTEXT_STEP)
    at, reach = guess // CONTEXT_STEP, 1
    while low < at <= high:
        if fits(min(at * CONTEXT_STEP, limit)):
            low, at = at, at + reach
        else:
            high, at = at - 1, at - reach
        reach *= 2
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(min(middle * CONTEXT_STEP, limit)) else (low, middle - 1)
    return min(low * CONTEXT_STEP, limit)


def longest_context(estimator: MemoryEstimator, setup: Setup, available: int | None = None) -> int:
    """The most positions that fit with everything else as in `setup`."""
    available = estimator.available if available is None else available
    trained = estimator.longest_context

    def taken(context: int) -> int:
        return min_bytes(estimator, replace(setup, context=context))

    few = min(CONTEXT_STEP, trained)
    if taken(trained) <= available:
        return trained
    if taken(few) > available:
        return 0
    # Memory grows almost linearly with the positions.
    guess = few + (available - taken(few)) * (trained - few) // max(taken(trained) - taken(few), 1)
    return longest(trained, lambda context: taken(context) <= available, guess)


def check_context(context: int | None) -> None:
    """Raises ContextError for a context too short for a prompt and an answer."""
    if context is not None and context < MIN_CONTEXT:
        raise ContextError(f"a context of {context} positions, expected at least {MIN_CONTEXT}")


def requested_setup(estimator: MemoryEstimator, context: int | None, kv: str, available: int | None = None) -> Setup:
    """The setup for a requested context (None: what fits) and cache type (or AUTO), in `available` bytes (default: the
    estimator's). Raises ContextError as a load does."""
    check_context(context)
    available = estimator.available if available is None else available
    kinds = estimator.auto if kv == AUTO else (kv,)
    most = estimator.expert_layers[-1]
    requested = context or default_context(estimator, kinds[-1], available)
    setup = replace(estimator.base, context=min(requested, estimator.longest_context), experts=most)
    options = [replace(setup, kv=kind) for kind in kinds]
    limits = (available - estimator.spare(available), available)
    chosen = (option for limit in limits for option in options if min_bytes(estimator, option) <= limit)
    option = next(chosen, options[0])
    # With some experts in main memory, the card caches those that are used most: best of all layers.
    layers = estimator.layers_on_host(fewest_layers(estimator, option, limits))
    return as_loaded(estimator, replace(option, experts=layers), available)


def as_loaded(estimator: MemoryEstimator, setup: Setup, available: int) -> Setup:
    """`setup` as a load chooses rows and trees, and the experts that the card caches, in `available` bytes."""
    found = settled(estimator, setup, available)
    free = available - estimator.spare(available) - total(estimator, found)
    return estimator.with_cache(found, free) if free > 0 else found


def fewest_layers(estimator: MemoryEstimator, setup: Setup, limits: Sequence[int]) -> int:
    """As few layers with experts in main memory as fit in the first of `limits` that any number fits in. If there must
    be some, prompts are read in large chunks: each chunk reads nearly all of these experts over the bus."""
    few, *more = estimator.expert_layers
    whole = replace(setup, rows=estimator.chunk_rows[0], nodes=estimator.tree_nodes[-1])
    for limit in limits:
        if min_bytes(estimator, replace(setup, experts=few)) <= limit:
            return few
        for layers in more:
            if total(estimator, replace(whole, experts=layers)) <= limit:
                return layers
    return estimator.expert_layers[-1]


def default_context(estimator: MemoryEstimator, kv: str, available: int) -> int:
    """The default context: the largest of CEILING, CEILING / 2 and so on that leaves `spare` of `available` bytes free
    with keys and values of type `kv`. Where that is less than SHORT, as many positions up to SHORT as leave
    `min_spare`, with the smallest chunks of prompts and trees."""
    base = replace(estimator.base, kv=kv, experts=estimator.expert_layers[-1])
    context, limit = min(CEILING, estimator.longest_context), available - estimator.spare(available)
    while context > SMALLEST_CONTEXT and total(estimator, replace(base, context=context)) > limit:
        context //= 2
    if context >= SHORT:
        return context
    fitting = longest_context(estimator, base, available - estimator.min_spare(available))
    return max(context, min(fitting, SHORT))


def plan(estimator: MemoryEstimator, setup: Setup, available: int | None = None) -> MemoryPlan:
    """What `setup` needs, with rows and trees as they fit, and what would fit instead, in `available` bytes (default:
    the estimator's)."""
    available = estimator.available if available is None else available
    setup = settled(estimator, setup, available)
    components = estimator.components(setup)
    kinds = dict.fromkeys((*estimator.kv_types, setup.kv))
    bare = replace(setup, cached=estimator.base.cached)
    fitting = {kv: longest_context(estimator, replace(bare, kv=kv), available) for kv in kinds}
    found = MemoryPlan(estimator.machine, setup, components, available, fitting, ())
    if found.fits:
        return found
    return replace(found, remedies=tuple(remedies(estimator, found)), smaller=smaller_target(found))


def smaller_target(short: MemoryPlan) -> int:
    """Bytes of the target's weights with which a plan that does not fit would; 0 where none would do: no quantisation
    takes less than SMALLEST_SHARE of these."""
    weights = next((one.bytes for one in short.components if one.name == TARGET), 0)
    fitting = weights - (short.total - short.available)
    return fitting if fitting >= SMALLEST_SHARE * weights else 0


def with_desktop(estimator: MemoryEstimator, found: MemoryPlan) -> dict[str, int]:
    """The longest contexts by cache type where a desktop and other programs use DESKTOP bytes."""
    available = found.available - DESKTOP
    return {kv: longest_context(estimator, replace(found.setup, kv=kv), available) for kv in found.context_that_fits}


def remedies(estimator: MemoryEstimator, short: MemoryPlan) -> list[Remedy]:
    """The cheapest changes that make it fit, without any that includes a smaller sufficient one.

    Where only a shorter context helps, the cheapest change that allows one.
    """
    setup, available, found = short.setup, short.available, list[Setup]()
    options = [*estimator.choices(setup)]
    if shorter := short.context_that_fits[setup.kv]:
        options.append(replace(setup, context=shorter))
    options.sort(key=lambda option: cost(option, setup))

    def remedy(option: Setup) -> Remedy:
        loaded = as_loaded(estimator, option, available)
        taken = total(estimator, loaded)
        return Remedy(loaded, taken, short.total - taken)

    for option in options:
        if len(found) < MAX_REMEDIES and not any(_includes(option, one, setup) for one in found):
            found += [option] if total(estimator, option) <= available else []
    for option in options if not found else []:
        if total(estimator, replace(option, context=CONTEXT_STEP)) <= available:
            return [remedy(replace(option, context=longest_context(estimator, option, available)))]
    return [remedy(one) for one in found]


def cost(option: Setup, setup: Setup) -> float:
    """What a user loses with `option` instead of `setup`, as a number for sorting."""
    found = _cache_cost(option.kv) - _cache_cost(setup.kv)
    found += DRAFT_COST.get(option.draft_type, UNKNOWN_COST) - DRAFT_COST.get(setup.draft_type, UNKNOWN_COST)
    found += EMBEDDING_COST * (option.embedding != setup.embedding)
    found += EXPERTS_COST * (option.experts != setup.experts) + LAYER_COST * (option.experts - setup.experts)
    found += NO_DRAFTER_COST * (setup.drafted - option.drafted) + MTP_COST * (option.mtp - setup.mtp)
    return found + SHORTER_COST * (1 - option.context / max(setup.context, 1))


def _cache_cost(kv: str) -> float:
    found = divergence(kv)
    if not found:
        return HALVES_COST if kv != str(EXACT) else 0
    return max(2 * HALVES_COST, Q8_COST + TENFOLD_COST * math.log10(found / DIVERGENCE["q8_0"]))


def _includes(option: Setup, smaller: Setup, before: Setup) -> bool:
    """Whether `option` makes every change from `before` that `smaller` makes, or moves more experts."""
    names = [name for name in Setup.__dataclass_fields__ if getattr(smaller, name) != getattr(before, name)]
    alike = all(getattr(option, name) == getattr(smaller, name) for name in names if name != "experts")
    return alike and option.experts >= smaller.experts
