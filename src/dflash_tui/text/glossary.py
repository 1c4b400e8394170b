"""What the figures mean: one sentence for each, and which of them a panel or a page shows.

The explanations of `?`, the help of F1, the tour and docs/glossary.md are made from it.
"""

from __future__ import annotations

from collections.abc import Mapping

GLOSSARY: Mapping[str, str] = {
    "tok/s": "tokens of the answer per second, from its first token to its last: reading the prompt is not counted",
    "x plain": "how many times as fast as decoding without drafts",
    "compared after": "how long a turn has to be before it is compared with plain decoding",
    "plain decoding": "the speed without any drafts, one token per step, timed after a prompt of this conversation",
    "tok/step": "tokens that a step brings on average: the acceptance length",
    "steps": "how often the target was run: each brings one token of the target and the drafts that it agrees with",
    "tok": "tokens of the answer, reasoning included; a token is a piece of a word",
    "first token": "the wait from Enter to the first token of the answer, nearly all of it for reading the prompt",
    "prompt": "tokens of the prompt that had to be read for this answer, and how many per second",
    "reused": "tokens of the prompt that were not read again, as their state was stored",
    "read again": "tokens known from the turn before that had to be read again, because text before them changed",
    "mode": "what decoded the answer: plain decoding, a chain or a tree of drafts, and why; auto decides before every "
    "step by what drafts brought and cost so far",
    "position": "how far after the last token a draft stands, from 1",
    "accepted by depth": "of the steps that drafted a position, the share that accepted it",
    "tokens by step": "tokens that each step brought, in the order of the steps",
    "ms/step": "milliseconds from one step to the next, on average: the same time that tok/s counts",
    "time by stage": "where the time from one step to the next goes, in milliseconds; tok/s counts all of it",
    "stages": "draft: the drafter proposes; tree: candidates become a tree; verify: the target runs over all of it; "
    "accept: the walk along what the target agrees with; commit: caches and states take it over; host: the rest",
    "tokens committed": "steps by the number of tokens that they brought",
    "nodes": "draft tokens in a tree that the target verified, the root not counted; they are alternatives, so most "
    "cannot be accepted",
    "drafted": "positions that the drafter proposed tokens for, in all and per step",
    "verified": "nodes of all trees that the target ran, in all and per step",
    "accepted": "nodes that the target agreed with, in all, per step, and as a share of the verified",
    "text": "nodes copied from earlier text instead of drafted, and how many were taken",
    "drafters": "steps, tokens, nodes and speed by drafter, where several drafted",
    "candidates": "how likely candidates of a kind are, over all turns of the pair. stated: by the drafter; "
    "learned: what the program decides by; found: how often the target agreed; tried: how often its answer was seen",
    "own": "the probability that the drafter gave a token, regardless of its path",
    "path": "the probability of a token and of all above it in the tree",
    "auto": "in place of path: the chance of a token and of all above it as auto has learned it",
    "rank": "which of the drafter's candidates a token was; 1 is the best",
    "pred": "the probability that the drafter gave its best token, on average; it is calibrated where hit is the same",
    "hit": "how often the target agreed with the drafter's best token, where the walk reached the position",
    "any": "how often the target's token was among the drafter's candidates",
    "p": "candidates by the probability that the drafter gave them",
    "n": "how many cases a row is computed from; a share of few cases is not reliable",
    "ctx": "tokens that the conversation takes, what is being typed, and how many tokens fit",
    "mem": "memory that the program uses, of what the device has",
    "component": "what a part of the loaded pair takes: weights, drafter, caches, workspace; a measurement more than "
    "2 % off is marked",
    "predicted": "the sum of all components, as computed before the load; a load that would not fit is refused by it",
    "measured": "what the device reports as used, with other programs if it cannot report them separately",
    "free": "memory of the device that is not in use",
    "plan": "what a pair would take with a context and a type of keys and values, computed from only the headers",
    "turn": "a message and its answers, counted from the first; a retry adds an answer to the same turn",
    "step": "a step of the turn, counted from 1; the first token comes with the prompt, before step 1",
    "‹1/2›": "which version of a message or answer is shown, of how many",
    "thought for": "how long the model reasoned before its answer, and in how many tokens",
    "against": "what another setting brought on the same prompt, over the tokens that both answers share; noise where "
    "the parts of the answers do not agree",
    "• changed": "parameters that differ from those of the last turn, and count from the next",
    "more parameters": "parameters that are folded away, and those of them that are not at their default",
    "loading": "how far the load is, by the bytes read, and how long it has taken",
    "messages": "messages and answers of a conversation, of the branch that is shown",
    "models": "models that were found in the usual places and in those of the setting model_folders",
    "get": "how much of a download is here, its size, and whether it fits this machine",
    "difference": "how much faster or slower, in per cent of the reference or of the best: the median of the prompts' "
    "own differences, and its 95 % confidence interval; noise where the interval contains 0",
    "★ · now": "the star is the fastest setting, a dot one that was dropped, now the present one; the longest bar "
    "is the fastest",
    "pairs": "prompts that were run with both settings, and how many of them agree; fewer than six show no difference",
    "quartiles": "half of all runs lie between these two values",
    "median": "the value in the middle of all runs of a setting: a single slow run does not change it",
    "runs": "answers that were generated for the figures, the warm-up not counted; settings take turns",
    "progress": "runs done, of how many, and the time left",
    "estimate": "tok/step that another budget would have brought, from the trees of the last turn; e runs the drafter "
    "again, which is exact",
    "saved": "what auto's choices saved or lost in this turn, against the fixed budget",
}  # fmt: skip

_LAB = ("★ · now", "median", "quartiles", "tok/step", "ms/step", "difference", "pairs", "runs", "progress")
PAGES: Mapping[str, tuple[str, ...]] = {
    "chat": (
        "tok/s", "x plain", "tok/step", "mode", "• changed", "ctx", "mem", "get", "loading", "thought for", "tok",
        "turn", "‹1/2›", "against",
    ),
    "params": ("• changed", "more parameters"),
    "stats": (
        "tok/s", "tok/step", "first token", "steps", "tok", "x plain", "compared after", "plain decoding", "prompt",
        "reused", "read again", "mode", "accepted by depth", "position", "tokens by step", "time by stage", "stages",
        "tokens committed", "nodes", "drafted", "verified", "accepted", "text", "drafters", "candidates",
    ),
    "tree": ("step", "nodes", "accepted", "own", "path", "auto"),
    "memory": ("component", "predicted", "measured", "free"),
    "steps": (
        "turn", "step", "mode", "position", "nodes", "accepted", "stages", "own", "path", "auto", "rank", "pred",
        "hit", "any", "p", "n",
    ),
    "chats": ("messages",),
    "models": ("models", "plan", "get"),
    "plan": ("plan", "component"),
    "get": ("get", "plan"),
    "experiment": ("tok/s", *_LAB, "accepted by depth"),
    "whatif": ("estimate", "saved", "tok/step", "ms/step", "tok/s", "★ · now"),
    "past": ("tok/s", *_LAB[:-1]),
    "tools": (),
    "requests": ("reused", "tok", "tok/s", "tok/step"),
}  # fmt: skip
"""By name of an inspector panel or `SCOPE` of a page: its figures, in the order in which it shows them."""
