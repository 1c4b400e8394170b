"""The demo pair on the first card, in both forms of its activations, beside the float32 reference."""

from __future__ import annotations

from functools import cache

from tools.train_demo.bench_prompts import held_questions

from dflash_core import Engine, load_draft, load_target
from dflash_core.backends.cuda.target import CudaTarget
from dflash_core.backends.opened import Target
from dflash_core.demo import demo_draft_path, demo_target_path
from dflash_core.drafters.draft import Draft
from dflash_core.fits import CardOptions
from dflash_core.messages import Message
from dflash_core.progress import silent
from dflash_core.prompting import build_prompt
from dflash_core.text.prompt import Prompting

CONTEXT = 1024


@cache
def reference() -> Target:
    """The target on the CPU."""
    return load_target(demo_target_path())


@cache
def reference_draft() -> Draft:
    return load_draft(demo_draft_path(), reference())


@cache
def target(half: bool) -> CudaTarget:
    """The target on the card, its activations f16 or int8."""
    found = CudaTarget(demo_target_path(), CardOptions("f16" if half else "mixed"))
    found.load(progress=silent)
    return found


@cache
def draft(half: bool) -> Draft:
    return load_draft(demo_draft_path(), target(half))


def fresh(half: bool, context: int = CONTEXT) -> Engine:
    """A new engine with a sequence of its own."""
    return Engine(target(half), draft(half), context_length=context)


@cache
def engine(half: bool) -> Engine:
    """The engine that tests share."""
    return fresh(half)


@cache
def prompts(count: int) -> tuple[tuple[int, ...], ...]:
    """Questions that the pair was not trained on, as its template writes them."""
    model = reference()
    asked = held_questions()[:: max(1, len(held_questions()) // count)][:count]
    built = [
        build_prompt(Prompting(model.tokenizer, model.template, False), [Message("user", one.text)]) for one in asked
    ]
    return tuple(tuple(one.ids) for one in built)
