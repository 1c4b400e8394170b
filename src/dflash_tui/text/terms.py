"""The glossary's figures: plain data. The parameters are in `knob_terms.py`.

`units` are how a figure looks in a sentence, with {n} for the number: `told` of `glossary.py` finds it by them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Part = Literal["speed", "drafts", "time", "memory", "conversation", "experiments", "parameters"]

READING: dict[Part, tuple[str, str]] = {
    "speed": ("docs/tuning.md", "Tuning"),
    "drafts": ("docs/drafters.md", "How many drafts: `auto`"),
    "time": ("docs/tuning.md", "Looking inside"),
    "memory": ("docs/fits.md", "How it is computed"),
    "conversation": ("docs/conversations.md", "Conversations"),
    "experiments": ("docs/tuning.md", "The lab"),
    "parameters": ("docs/knobs.md", "Parameters"),
}
"""What to read about the terms of a part: a document and its heading."""


@dataclass(frozen=True, slots=True)
class Term:
    """One word of the app. `source` is the function or property that computes the figure, as `module:name`."""

    key: str
    name: str
    sentence: str
    more: str
    source: str
    part: Part
    units: tuple[str, ...] = ()


_EVENTS = "dflash_core.events"
_LAB = "dflash_core.lab"

TERMS: tuple[Term, ...] = (
    Term(
        "speed", "tok/s", "tokens of the answer per second, reading the prompt not counted",
        "The tokens of all steps over the wall time of these steps. A token is about three quarters of an English "
        "word. It is the product of two things: how many tokens a step brings, and how many steps a second has.",
        f"{_EVENTS}:so_far", "speed", ("{n} tok/s",),
    ),
    Term(
        "times", "x plain", "how many times as fast as decoding without drafts",
        "The speed of this turn over the last measured speed of plain decoding, on this machine and for this pair. "
        "Above 1x drafts pay off. It is measured automatically after the first turns, and by /plain. "
        "Shown after 32 steps and 64 tokens.",
        "dflash_tui.application.figures.speeds:times", "speed", ("{n}x",),
    ),
    Term(
        "judged", "compared from", "when a turn says anything about drafts against plain decoding",
        "Few steps say little, a running answer changes, and the first answer after a load compiles and warms up.",
        "dflash_tui.application.figures.speeds:verdict", "speed",
    ),
    Term(
        "plain", "plain decoding", "the speed without any drafts: one token per step",
        "Steps without drafts, timed after a prompt of this conversation and thrown away. The number of "
        "steps, their context length and the time stand beside the speed: a long context makes every step slower.",
        f"{_LAB}.plain:plain_speed", "speed",
    ),
    Term(
        "acceptance", "tok/step", "tokens that a step brings on average: the acceptance length",
        "A step ends with as many draft tokens as the target agrees with, and one of its own: 1.00 means that no draft "
        "was ever right. More is better as long as the step does not get slower for it.",
        f"{_EVENTS}:StepTotals.acceptance_length", "speed", ("{n} tok/step", "accept {n}", "acceptance length {n}"),
    ),
    Term(
        "steps", "steps", "how often the target was run for the answer",
        "Each step drafts tokens, builds a tree of them, has the target verify all of it in one pass, and keeps the "
        "longest path that the target would have written itself.",
        f"{_EVENTS}:StepTotals.add", "speed", ("{n} steps", "{n} step"),
    ),
    Term(
        "steps_s", "steps/s", "steps per second",
        "The steps of the turn over the time that they took together.",
        "dflash_tui.widgets.stats:steps_per_second", "speed", ("{n} steps/s",),
    ),
    Term(
        "tokens", "tok", "tokens of the answer, reasoning included",
        "All that was generated, the first token and a stop token included. A token is a piece of a word.",
        f"{_EVENTS}:so_far", "speed", ("{n} tok", "{n} tokens", "{n} token"),
    ),
    Term(
        "first_token", "first token", "the wait from Enter to the first token of the answer",
        "Nearly all of it is the reading of the prompt. What the conversation has read before is not read again.",
        "dflash_core.runner:Runner.generate", "time", ("first token {n} s", "first token {n} ms"),
    ),
    Term(
        "prompt", "prompt", "tokens of the prompt that had to be read for this answer",
        "The conversation as the model's template writes it, less what was reused.",
        "dflash_core.messages:build_prompt", "speed", ("prompt {n} tok",),
    ),
    Term(
        "prompt_speed", "prompt tok/s", "tokens of the prompt read per second",
        "Tokens that were not reused, over the wait for the first token. A prompt is read in large chunks, so this is "
        "far above the speed of the answer.",
        f"{_EVENTS}:TurnStats.prefill_tokens_per_second", "speed",
    ),
    Term(
        "reused", "reused", "tokens of the prompt that the model still knew from before",
        "The longest beginning that this prompt shares with what was read last; its keys, values and states are kept.",
        "dflash_core.runner:Runner.generate", "speed", ("{n} tokens reused",),
    ),
    Term(
        "read_again", "read again", "tokens that were known from the turn before, and had to be read again",
        "A change of the system message, of thinking or of an earlier message changes the text before them, and their "
        "keys, values and states with it.",
        "dflash_core.conversation:Conversation.reading", "speed", ("{n} tokens read again", "{n} tokens again"),
    ),
    Term(
        "ran", "mode", "what decoded the answer: plain decoding, a chain or a tree of drafts, and why",
        "Under mode auto the program decides before every step, by what drafts brought and cost so far. The figures in "
        "the reason are those that it decided by: draft tokens, and the tokens per second that it expects of them.",
        "dflash_core.policy.learned:LearnedPolicy.next", "drafts",
    ),
    Term(
        "depth", "position", "how far after the last token a draft stands, from 1",
        "The drafter proposes tokens for several positions ahead. The further ahead, the less often it is right.",
        f"{_EVENTS}:StepTotals.add", "drafts", ("depth {n}", "{n} positions drafted"),
    ),
    Term(
        "accept_rate", "accepted by depth", "of the steps that drafted a position, the share that accepted it",
        "Position 1 is reached most often; each further one needs all before it to be right as well. Where the bars "
        "get short, drafting further ahead brings little.",
        f"{_EVENTS}:StepTotals.accept_rates", "drafts",
    ),
    Term(
        "count", "n", "how many cases a row rests on",
        "A share of few cases says little.",
        f"{_EVENTS}:StepTotals.add", "drafts",
    ),
    Term(
        "step_ms", "ms/step", "milliseconds of one step, on average",
        "All stages together. A larger tree makes a step slower; whether it pays is the question that F8 answers.",
        f"{_EVENTS}:StepTotals.stage_ms", "time", ("{n} ms/step", "{n} ms"),
    ),
    Term(
        "stages", "time by stage", "where a step's time goes, in milliseconds",
        "draft: the drafter proposes. tree: candidates become a tree. verify: the target runs over all of it. accept: "
        "the walk along what the target agrees with. commit: caches and states take it over. host: the rest.",
        f"{_EVENTS}:StepTotals.stage_ms", "time",
    ),
    Term(
        "committed", "tokens committed", "how many steps brought so many tokens",
        "The average of it is tok/step. Many steps of one token and a few long ones come from text that is predictable "
        "only in places, such as code that repeats itself.",
        f"{_EVENTS}:StepTotals.add", "drafts",
    ),
    Term(
        "nodes", "nodes", "draft tokens in a tree that the target verified, the root not counted",
        "The nodes of a tree are alternatives: most of them cannot be accepted, however good the drafter is.",
        f"{_EVENTS}:StepTotals.add", "drafts", ("{n} nodes", "{n} draft tokens", "{n} nodes verified"),
    ),
    Term(
        "drafted", "drafted", "positions that the drafter proposed tokens for, in all and per step",
        "Each position has several candidates; which of them are verified is the tree's choice.",
        f"{_EVENTS}:StepTotals.add", "drafts",
    ),
    Term(
        "verified", "verified", "nodes of all trees that the target ran, in all and per step",
        "The target spent its work on drafts on these.",
        f"{_EVENTS}:StepTotals.add", "drafts",
    ),
    Term(
        "accepted", "accepted", "nodes that the target agreed with, in all, per step, and as a share of the verified",
        "These are the tokens that needed no separate step.",
        f"{_EVENTS}:TurnStats.accepted_per_verified", "drafts", ("{n} accepted",),
    ),
    Term(
        "copied", "from the text", "nodes copied from earlier text instead of drafted, and how many were taken",
        "What followed the same words earlier in the conversation is offered beside the drafter's tokens. That pays "
        "where an answer repeats what it was given.",
        f"{_EVENTS}:StepTotals.add", "drafts",
    ),
    Term(
        "drafters", "drafters", "steps, tokens, nodes and speed by drafter, where several take turns",
        "Each row counts the steps that this drafter proposed for. auto gives steps to the one that brings the most "
        "tokens per second.",
        f"{_EVENTS}:StepTotals.drafters", "drafts",
    ),
    Term(
        "learned", "candidates", "how likely candidates of a kind are: stated by the drafter, learned, and found",
        "tried: how often the target's answer was seen. stated: the chance that the drafter gave. learned: the chance "
        "that the program had learned by then, which it decides by. found: how often the target agreed.",
        "dflash_core.policy.pair:PairPolicy.found", "drafts",
    ),
    Term(
        "own", "own", "the probability that the drafter gave a token, regardless of its path",
        "Given that all before it in the tree is right.",
        "dflash_core.tree:build", "drafts", ("p {n}",),
    ),
    Term(
        "path", "path", "the probability of a token and of all above it in the tree",
        "The product along the path; the tree takes the likeliest paths first. Under auto it is the chance that was "
        "learned instead of the drafter's own.",
        "dflash_core.tree:build", "drafts",
    ),
    Term(
        "rank", "rank", "which of the drafter's candidates a token was; 1 is the best",
        "Where the target wanted a token of a low rank, a wider tree would have had it.",
        "dflash_core.rejected:first_rejection", "drafts", ("rank {n}", "{n} candidates there"),
    ),
    Term(
        "said", "said", "the probability that the drafter gave its best token, on average",
        "A drafter is calibrated where said and hit are the same: then its probabilities can be trusted.",
        "dflash_core.calibration:by_position", "drafts",
    ),
    Term(
        "hit", "hit", "how often the target agreed with the drafter's best token",
        "Counted only where the walk reached the position: elsewhere the target's own token is not known.",
        "dflash_core.calibration:by_position", "drafts",
    ),
    Term(
        "hit_any", "any", "how often the target's token was among the drafter's candidates",
        "What the widest tree could reach.",
        "dflash_core.calibration:by_position", "drafts",
    ),
    Term(
        "bin", "p", "candidates by the probability that the drafter gave them",
        "Each row takes those from the first to the second value.",
        "dflash_core.calibration:by_probability", "drafts",
    ),
    Term(
        "ctx", "ctx", "tokens that the conversation takes, what is being typed, and how many there is room for",
        "All that was said counts, reasoning only where the model's template keeps it. From 80 % on /full offers ways "
        "on: a longer context, a summary, leaving out old turns.",
        "dflash_tui.chat.gauges:Gauges.used", "memory", ("{n} positions", "context {n}", "context length {n}"),
    ),
    Term(
        "memory", "mem", "memory that the program uses, of what the device has",
        "F5 shows it by component.",
        "dflash_core.engine:Engine.memory", "memory",
    ),
    Term(
        "component", "component", "what a part of the loaded pair takes: weights, drafter, caches, workspace",
        "Computed before the load from the file's headers. A measurement that is more than 2 % off is "
        "marked.",
        "dflash_core.engine:Engine.memory", "memory", ("{n} GiB", "{n} MiB", "{n} KiB", "{n} B"),
    ),
    Term(
        "predicted", "predicted", "the sum of all components, as computed before the load",
        "A load that would not fit is refused by this, before anything is read.",
        "dflash_core.memory:MemoryBreakdown.predicted", "memory",
    ),
    Term(
        "measured", "measured", "what the device says is used",
        "Includes other programs if the device cannot report them separately.",
        "dflash_core.engine:Engine.memory", "memory",
    ),
    Term(
        "free", "free", "memory of the device that is not in use",
        "What a longer context or a larger tree could take.",
        "dflash_core.engine:Engine.memory", "memory",
    ),
    Term(
        "plan", "plan", "what a pair would take with a context and a type of keys and values",
        "Computed from the headers alone. Components, their sum, and the longest context that fits.",
        "dflash_core.fits:plan", "memory",
    ),
    Term(
        "turn", "turn", "a message and its answers, counted from the first",
        "A retry is another answer to the same message, not another turn.", "dflash_core.turns:Turns.__len__",
        "conversation", ("turn {n}", "{n} turns", "{n} turn", "{n} earlier turns", "{n} earlier turn"),
    ),
    Term(
        "step", "step", "a step of the turn, counted from 1, of so many",
        "The first token comes with the prompt and is no step.",
        f"{_EVENTS}:StepTotals.add", "conversation", ("step {n}",),
    ),
    Term(
        "version", "‹1/2›", "which version of a message or answer is shown, of how many",
        "A retry (Ctrl+R) and an edited message (Alt+E) begin a branch; nothing is replaced. Alt+Left and Alt+Right "
        "go from one to the other.",
        "dflash_tui.widgets.transcript:TurnBlock.place", "conversation", ("answer {n}", "‹{n}/{n}›"),
    ),
    Term(
        "thinking_time", "thought for", "how long the model reasoned before its answer, and in how many tokens",
        "Alt+T opens the text. /think and the parameter thinking_budget limit it.",
        "dflash_tui.application.figures.meter:Meter.thinking_s",
        "conversation", ("thought for {n} s", "thought for {n} ms"),
    ),
    Term(
        "delta", "against", "what another setting brought on the same prompt, over the tokens that both answers share",
        "Both answers are cut into parts; each part is a pair. A difference that the parts do not agree on is called "
        "noise, by the test that A/B uses. Nothing is shown if too little text is the same.",
        "dflash_tui.application.figures.deltas:against_earlier",
        "conversation", ("same {n} tokens", "{n} of {n} parts"),
    ),
    Term(
        "changed", "• changed", "parameters that differ from those of the last turn",
        "They count from the next turn; with Alt+A the answer that is being written takes over those that it can.",
        "dflash_tui.widgets.params:ParamsPanel.show", "parameters", ("{n} changed", "•{n} more", "•{n}"),
    ),
    Term(
        "folded", "more parameters", "parameters that are folded away, and those of them that are not at their default",
        "m opens and closes them.",
        "dflash_tui.widgets.params:ParamsPanel.show", "parameters", ("{n} more parameters", "{n} set"),
    ),
    Term(
        "loading", "loading", "how far the load is, and how long it has taken",
        "By the bytes read, stage by stage.",
        "dflash_tui.chat.loading:Loading", "time",
    ),
    Term(
        "found", "found", "places that contain the searched words",
        "n and N go along them.", "dflash_tui.widgets.find_bar:FindBar.found", "conversation", ("{n} found",),
    ),
    Term(
        "messages", "messages", "messages and answers of a conversation, of the branch that is shown",
        "", "dflash_tui.application.conversations.store:Store.list",
        "conversation", ("{n} messages", "{n} message"),
    ),
    Term(
        "conversations", "conversations", "how many conversations are kept",
        "", "dflash_tui.application.conversations.store:Store.list",
        "conversation", ("{n} conversations", "{n} conversation"),
    ),
    Term(
        "date", "date", "when it was last changed, begun or measured",
        "", "dflash_tui.screens.chats:ago", "conversation",
        ("{n} min ago", "{n} h ago", "yesterday {n}", "today {n}"),
    ),
    Term(
        "models", "models", "models that were found in the usual places, and what the search is doing",
        "Folders of llama.cpp, LM Studio, Hugging Face and ollama, and those of the setting model_folders.",
        "dflash_tui.application.hub.find:look", "memory", ("{n} models", "{n} model"),
    ),
    Term(
        "fetch", "get", "how much of a download is here, its size, and whether it fits this machine",
        "Size and fit are said before a byte is fetched. In the title row it is the share of all that is to be fetched "
        "now; Ctrl+G opens one. An interrupted download is resumed, and checked against the hub's sum.",
        "dflash_tui.application.fetching:Fetching.percent", "memory",
    ),
    Term(
        "size", "size", "how large a file is, or a text",
        "", "dflash_core.memory:gib", "conversation", ("{n} bytes", "{n} characters", "{n} lines", "{n} line"),
    ),
    Term(
        "difference", "difference", "how much faster or slower, in per cent of the reference or of the best",
        "The median of the prompts' own differences, and the interval that holds it with 95 % confidence. Noise means "
        "that the interval holds 0: the prompts do not agree.",
        "dflash_core.bench.statistics:compare", "experiments", ("{n} %", "{n}%", "{n} to {n} %"),
    ),
    Term(
        "marks", "★ · now", "the star is the fastest setting, a dot one that was dropped, now the present one",
        "Bars are speeds by the paired difference, all on one scale: the longest is the fastest. A tuning drops the "
        "slower half after each round. Each round has every prompt, so what is dropped was measured on all of them.",
        "dflash_core.lab.table:rows", "experiments",
    ),
    Term(
        "pairs", "pairs", "prompts that were run with both settings, and how many of them agree",
        "With fewer than six no difference can be called real.",
        "dflash_core.bench.statistics:compare", "experiments", ("{n} of {n} pairs", "only {n} pairs, {n} needed",
        "only {n} pair, {n} needed", "{n} pairs", "{n} pair", "{n} of {n}"),
    ),
    Term(
        "quartiles", "quartiles", "half of all runs lie between these two values",
        "The median lies between them.",
        "dflash_core.bench.statistics:summary", "experiments",
    ),
    Term(
        "median", "median", "the value in the middle of all runs of a setting",
        "Unlike the mean it does not follow a single slow run.",
        "dflash_core.bench.statistics:summary", "experiments",
    ),
    Term(
        "runs", "runs", "answers that were generated for the figures, the warm-up not counted",
        "Settings take turns, so that a machine that slows down does so for all of them.",
        "dflash_core.lab.table:rows", "experiments",
        ("{n} runs", "{n} run", "{n} prompts", "{n} prompt", "{n} repeats", "{n} repeat", "{n} examples",
         "answers right: {n} of {n}"),
    ),
    Term(
        "progress", "progress", "runs done, of how many, and the time left",
        "From the runs so far. Esc stops and keeps what is done.",
        "dflash_core.lab.progress:ExperimentProgress", "experiments", ("{n} s left", "{n} m {n} s left", "{n} ms left"),
    ),
    Term(
        "estimate", "estimate", "tok/step that another budget would have brought, from the trees of the last turn",
        "A first guess: after a step that ends elsewhere, the next one would have begun elsewhere. e runs the drafter "
        "again, which is exact, and tells how far the estimate was off.",
        f"{_LAB}.whatif:estimate", "experiments",
    ),
    Term(
        "saved", "saved", "what auto's choices saved or lost in this turn, against the fixed budget",
        "The time that the turn took, and the time that the budget would have taken by the same step times.",
        f"{_LAB}.whatif:AutoTurn.saved", "experiments", (
            "saved {n} s of the {n} s", "saved {n} ms of the {n} s", "saved {n} ms of the {n} ms",
            "lost {n} s against the {n} s", "lost {n} ms against the {n} s", "lost {n} ms against the {n} ms",
            "lost {n} s against the {n} ms",
        ),
    ),
)  # fmt: skip
