"""The steps of an answer that a guard watches: where it halts, where its message ends, and what the user requests."""

from __future__ import annotations

import dataclasses
from typing import TypeVar

from dflash_core.backends.decoder import AnswerDecoder
from dflash_core.events import GuardEvent, PrefillEvent, StepEvent, Stop
from dflash_core.guards.turn import Intervention, TurnGuard

E = TypeVar("E", PrefillEvent, StepEvent)


def guarded_step(decoder: AnswerDecoder, guard: TurnGuard) -> list[StepEvent]:
    """The next step, or the guard's step in its place where the answer has halted or the user requested it."""
    events: list[StepEvent] = []
    if (action := guard.requested) is not None:
        for event in decoder.finish():  # steps under way count; after them nothing is
            stop = None if event.stop == "cancelled" else event.stop
            events += watched(decoder, guard, dataclasses.replace(event, stop=stop))
        if events and events[-1].stop is not None:
            return events
        action = guard.requested  # the reasoning may have ended meanwhile
        if action is not None:
            return [*events, _inject(decoder, guard, action)]
        if not decoder.halted:
            decoder.go_on()
    if decoder.halted:
        action = guard.intervention
        if action is not None:
            return [*events, _inject(decoder, guard, action)]
        decoder.go_on()
    decoder.halt_at(guard.limit)
    events += watched(decoder, guard, decoder.step())
    action = guard.intervention if decoder.halted and events[-1].stop is None else None
    if action is not None and not action.tokens:
        events[-1] = dataclasses.replace(events[-1], stop="loop", guard=action.event)
    return events


def _inject(decoder: AnswerDecoder, guard: TurnGuard, action: Intervention) -> StepEvent:
    event = decoder.inject(action.tokens, action.event)
    guard.see(event.tokens, injected=True)
    return event


def watched(decoder: AnswerDecoder, guard: TurnGuard | None, event: E) -> tuple[E, *tuple[StepEvent, ...]]:
    """The event after the guard has seen it, with the guard's tokens in place of a stop token where it goes on."""
    if guard is None:
        return (event,)
    ended = event.stop == "stop token"
    guard.see(event.tokens[:-1] if ended else event.tokens)
    action = guard.ended() if ended else None
    if action is None:
        guard.see(event.tokens[-1:] if ended else ())
        return (event,)
    token, *rest = action.tokens
    stop = decoder.put(token)
    guard.see((token,), injected=True)
    goes_on = bool(rest) and stop is None
    event = _replaced(event, token, stop, None if goes_on else action.event)
    if not goes_on:
        return (event,)
    return event, _inject(decoder, guard, dataclasses.replace(action, tokens=tuple(rest)))


def _replaced(event: E, token: int, stop: Stop | None, guard: GuardEvent | None) -> E:
    """The event with `token` in place of its last one; a walk ends before that."""
    tokens = (*event.tokens[:-1], token)
    if isinstance(event, PrefillEvent):
        return dataclasses.replace(event, tokens=tokens, stop=stop, guard=guard)
    tree = dataclasses.replace(event.tree, accepted=event.tree.accepted[: len(tokens)])
    depth = len(tree.accepted) - 1
    return dataclasses.replace(
        event, tokens=tokens, tree=tree, accepted_depth=depth, bonus=token, stop=stop, guard=guard
    )
