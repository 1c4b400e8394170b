"""The glossary's parameters: text beyond the one line in `dflash_core.knobs`, and where each one is used."""

from __future__ import annotations

MORE: dict[str, tuple[str, str]] = {
    "drafting": (
        "auto chooses before every step by what drafts brought and cost so far. The answer is the same with every "
        "value. A larger tree brings more tokens per step and takes longer: 16 to 40 is common on a card, less on a "
        "CPU. F8 finds the best one on your prompts. Setting p_min or chain_seed under auto means a tree.",
        "dflash_core.policy.learned:LearnedPolicy.next",
    ),
    "p_min": (
        "Unlikely drafts cost time and are seldom right. 0 takes all that fit into the tree; .05 to .15 makes "
        "trees small where the drafter is unsure.",
        "dflash_core.tree:build",
    ),
    "tree_temperature": (
        "Above 1 the tree gets wider, below 1 longer. It changes which drafts are verified, never the answer.",
        "dflash_core.tree:candidates",
    ),
    "tree_width": (
        "How many alternatives a position has at most. The size in drafting limits the whole tree.",
        "dflash_core.tree:candidates",
    ),
    "by_parent": (
        "DFlash 2 and DSpark drafters know how likely a token is after another. Off treats each position separately.",
        "dflash_core.pair_scores:PairScores.log_probs",
    ),
    "chain_seed": (
        "The likeliest chain is always in the tree; the rest of its size goes to branches.",
        "dflash_core.tree:build",
    ),
    "from_text": (
        "Pays where an answer repeats what it was given, such as edited code.",
        "dflash_core.policy.learned:LearnedPolicy.plan",
    ),
    "learn": (
        "What was learned is kept for this pair. /policy reset forgets it.",
        "dflash_core.policy.learned:LearnedPolicy.observe",
    ),
    "draft_window": (
        "A drafter that looks back less is faster in long conversations, and may be right less often.",
        "dflash_core.backends.cpu.dflash:CpuDFlashDrafter.propose",
    ),
    "draft": (
        "Only where several drafters are loaded. /ab draft=mtp | draft=dflash compares two.",
        "dflash_core.policy.several:SeveralPolicy.next",
    ),
    "mtp_depth": (
        "Each token takes one more pass of the head. Under auto, unless it is set here, as many as pay.",
        "dflash_core.drafters.capabilities:Capabilities.drafted",
    ),
    "draft_vocabulary": (
        "Rare tokens are seldom drafted right; leaving them out makes a drafter's head cheaper. The target may still "
        "write any token.",
        "dflash_core.backends.cuda.step:CudaDecoder",
    ),
    "attention_window": (
        "A bounded context: what is older is no longer read, so a long conversation does not get slower.",
        "dflash_core.attention_window:AttentionWindow.of",
    ),
    "thinking": (
        "The reasoning stands folded above the answer; Alt+T opens it. Ctrl+T switches it from the prompt.",
        "dflash_core.text.reasoning:Reasoning.variables",
    ),
    "reasoning_effort": (
        "The levels are those of the model's own template.",
        "dflash_core.text.reasoning:Reasoning.variables",
    ),
    "preserve_thinking": (
        "Kept reasoning takes room in the context, and may help where a later question goes back to it.",
        "dflash_core.text.reasoning:Reasoning.variables",
    ),
    "thinking_budget": (
        "After its last token the program inserts the model's own closing tag.",
        "dflash_core.guards.turn:TurnGuard.limit",
    ),
    "loop_guard": (
        "Checked after every 32 tokens: a repeating period, or the same runs of words again and again.",
        "dflash_core.guards.loops:find_loop",
    ),
    "answer_loop_guard": (
        "As for reasoning, but runs of words that come again, as in a list or a table, do not count. Many think tags "
        "in a short piece of text are a loop too.",
        "dflash_core.guards.turn:TurnGuard",
    ),
    "end_in_thinking": (
        "The program inserts the model's own closing tag in place of the end of the message, once in an answer; a note "
        "under the answer says so.",
        "dflash_core.guards.turn:TurnGuard.ended",
    ),
    "temperature": (
        "At 0 the same question gives the same answer. Drafts are accepted less often the higher it is.",
        "dflash_core.sampling:Sampler.scores",
    ),
    "top_k": ("Counts only where the temperature is above 0.", "dflash_core.sampling:Sampler.scores"),
    "top_p": ("Counts only where the temperature is above 0.", "dflash_core.sampling:Sampler.scores"),
    "min_p": ("Counts only where the temperature is above 0.", "dflash_core.sampling:Sampler.scores"),
    "repetition_penalty": ("1 leaves them as they are.", "dflash_core.sampling:Sampler.scores"),
    "frequency_penalty": ("0 leaves them as they are.", "dflash_core.sampling:Sampler.scores"),
    "presence_penalty": ("0 leaves them as they are.", "dflash_core.sampling:Sampler.scores"),
    "seed": (
        "Counts where the temperature is above 0. A random seed is drawn for every answer, which names it; a fixed one "
        "gives the same answer again.",
        "dflash_core.sampling:gumbel",
    ),
    "max_tokens": (
        "Reasoning counts. An answer that reaches the limit says so.",
        "dflash_core.backends.decoder:stop_at",
    ),
    "ignore_eos": ("What comes after the end is seldom worth reading.", "dflash_core.backends.decoder:stop_at"),
    "context": (
        "Keys and values take memory per position. A longer context may have to keep them in fewer bits, or does not "
        "fit; the list of models says what fits.",
        "dflash_core.fits:asked",
    ),
}
"""By name of the parameter: a longer text, and the function that follows it."""
