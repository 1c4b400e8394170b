"""The text of the model card around the measured tables."""

from __future__ import annotations

from typing import Any

from .report import depth_line, sweep_table, table

CARD = """# The demo pair

A target of 21.5 million parameters and a drafter of 4.3 million, so that `make chat` has something real to open with
and a laptop can show what budget, p_min and thinking do to acceptance. This page is written by
`python -m dflash_core.demo.report --docs docs`, from the shipped files, on a CPU.

**Its numbers say nothing about a 27B.** The text it was trained on is mostly made from templates, so a drafter finds
it far easier to foresee than real text; compare the rows of benchmark prompts below. Use the pair to see the decoder
at work, not to predict the speed of another model.

## What it is

| file | bytes | |
|---|---|---|
{files}

- **Target**: qwen35, 8 layers of width 384, gated delta net with 2 K heads and 6 V heads of 128, gated attention in
  layers 4 and 8 (2 query heads, 1 KV head of 256, 64 dims rotated), SwiGLU of 768, untied head, 8,192 tokens of
  byte-level BPE, context 2,048. Q4_0, with Q5_0 for attention and the head; the last half of the training saw the
  weights as the file rounds them, so what ships is what was trained.
- **Drafter** `demo-draft.gguf`: 3 layers, block 16, reads layers 2 to 6 of the target (ids 1 to 5), Q8_0.
- **Drafter** `demo-draft-swa.gguf`: the variant with a causal sliding-window layer (256) below a full one; 2 layers,
  Q4_0.

## What it was trained on

{documents:,} generated conversations per pass ({tokens:,} tokens; each pass makes new ones) and {read:,} conversations
from texts that were read: the training split of GSM8K (MIT) and documented functions of Python's standard library. The
generated part is arithmetic, lists, dates, units, small facts, word problems, small Python functions, small talk, and
questions about this program and about speculative decoding, with and without a short thinking part, one to seven turns.
The drafters learned from the target's own answers without thinking; thinking text was left out on purpose.

A fifth of all question templates, operand pairs and function combinations was held out by hash; every row below asks
held-out questions. Of the {held} numbered held-out questions, {copies} share a run of 13 tokens with the training
corpus and were left out. HumanEval, gsm8k_test and MT-bench prompts were never trained on; {bench} of {bench_all}
share such a run with it and were left out of the rows too. The check ran against the text of the first pass.

## What it can and cannot do

It adds and subtracts small numbers, writes small Python functions of the kinds it has seen, explains this program, and
makes small talk in whole sentences. It knows next to nothing of the world, cannot solve GSM8K or HumanEval, reads a
reworded question wrongly now and then ("Subtract 15 from 16" may come out the wrong way round), and copies or sorts
lists of more than a few numbers with mistakes. English only.

## Measured

{count} held-out prompts per row, 128 tokens each unless said, greedy.

{table}

Accept rate by draft position, tree of 22: {depths}.

### Budget

Acceptance length by tree budget. Greedy decoding is lossless, so these are walked over the known answers with the
drafts for every position; the row of the decoder above and the column beside it here are the same steps.

{sweep}

## Training

![Loss curves of both stages](demo-loss.svg)

One H200: {target_seconds:.0f} s for the target ({target_tokens:,} tokens), {draft_seconds:.0f} s for the answers
and both drafters.
{notes}

```
python -m dflash_core.demo.prepare --school-math gsm8k_train.jsonl.gz --bench FOLDER --out corpus
python -m dflash_core.demo.train --corpus corpus --out run --target-time 420 --time-limit 380
cp run/*.gguf src/dflash_core/demo/weights/
python -m dflash_core.demo.facts --run run --corpus corpus --bench FOLDER
python -m dflash_core.demo.report --bench FOLDER --docs docs
```

Data order depends on the seed alone. The learning rate follows the clock, so a faster or slower GPU gives other
weights.
"""

NOTES = """The bar that the held-out loss falls to the end is missed. On generated text it is lowest after a third
of the training and then drifts up, most likely because answers have several right wordings and the model becomes too
sure of one of them where the question template is new to it. On the read text, of which there is little, it overfits
in the last third."""


def card(m: dict[str, Any]) -> str:
    """The whole page from what `report.measure` returned."""
    facts = m["facts"]
    corpus, log, draft = facts["corpus"], facts["target_log"], facts["draft_log"]
    final = next(r for r in reversed(log) if r.get("final"))
    copies = facts["near_copies"]
    return CARD.format(
        files="\n".join(f"| `{n}` | {f['bytes']:,} | sha256 `{f['sha256'][:16]}` |" for n, f in facts["files"].items()),
        documents=corpus["documents"], tokens=corpus["tokens"], read=corpus["read documents"],
        held=m["held_questions"], copies=len(copies["held"]),
        bench=corpus.get("bench near-copies", 0), bench_all=corpus.get("bench prompts", 0),
        count=m["count"], table=table(m), sweep=sweep_table(m), depths=depth_line(m), notes=NOTES,
        target_seconds=final["t"], target_tokens=final["tokens"], draft_seconds=draft[-1]["t"],
    )  # fmt: skip
