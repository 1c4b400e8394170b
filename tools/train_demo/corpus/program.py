"""Questions about this program, its parameters and keys, and about speculative decoding."""

from __future__ import annotations

from dataclasses import dataclass

from .base import Draw, Exchange


@dataclass(frozen=True)
class Knob:
    """What can be said about one parameter: each field holds wordings to choose from."""

    name: str
    what: tuple[str, ...]
    more: tuple[str, ...]
    advice: tuple[str, ...]
    default: str


KNOBS = [
    Knob("mode",
         ("The mode chooses how tokens are drafted: `ar` drafts nothing, `chain` verifies one line of drafts, `tree` verifies several branches, and `auto` lets the program choose.",
          "`mode` says how the decoder works: `ar` is plain decoding, `chain` checks a line of drafted tokens, `tree` checks a tree of them, and `auto` picks for you."),
         ("All modes give the same text; only the speed differs.", "The answer does not depend on the mode, only the speed does."),
         ("Use `tree` for speed and `ar` to compare against plain decoding.", "Leave it on `auto`, and switch to `ar` when you want a baseline."), "auto"),
    Knob("budget",
         ("The budget is the number of draft tokens that the target checks in one pass, not counting the root.",
          "`budget` sets how many nodes the draft tree may have. The target verifies all of them at once."),
         ("A larger budget accepts more tokens per step, but each step costs more time.", "More nodes mean a longer acceptance length, but a slower verify step."),
         ("Start with 22 and move the slider while you watch tokens per second.", "22 is a good start; try 15 for a narrow tree and 40 for a wide one."), "22"),
    Knob("p_min",
         ("`p_min` is the smallest probability that a draft token may have. Tokens below it are left out of the tree.",
          "p_min cuts unlikely drafts: a token whose own draft probability is under p_min is not added to the tree, and neither is anything after it."),
         ("A higher value makes the tree smaller and the steps cheaper, but fewer tokens are accepted.", "The first draft token is always kept, whatever p_min says."),
         ("Leave it at 0 at first, then try 0.05 or 0.1 if verification is slow.", "Values between 0 and 0.3 are useful; at 0 nothing is cut."), "0"),
    Knob("tree_temperature",
         ("`tree_temperature` softens or sharpens the drafter's probabilities before the tree is built.",
          "The tree temperature divides the drafter's logits, so it changes the shape of the tree."),
         ("Above 1 the tree becomes wider, below 1 it becomes deeper and narrower.", "It never changes the text, only which branches are tried."),
         ("1 is right for a drafter with honest probabilities.", "Raise it a little if the drafter is too sure of itself."), "1"),
    Knob("tree_width",
         ("`tree_width` is the number of candidates that are considered at each draft position.",
          "The tree width limits how many different tokens the tree may try at one position."),
         ("A width of 1 turns the tree into a chain.", "More candidates give the tree more choices, but the budget still limits its size."),
         ("8 is plenty for most budgets.", "Raise it only together with a large budget."), "8"),
    Knob("chain_seed",
         ("`chain_seed` puts the drafter's best chain into the tree before any other branch.",
          "With chain seed on, the most likely chain is always in the tree, and the rest of the budget goes to side branches."),
         ("It makes sure that a long lucky run is never cut short.", "Without it, the tree is filled strictly by probability."),
         ("Keep it on unless you want to compare both ways.", "Turn it off to see a purely best-first tree."), "on"),
    Knob("draft_window",
         ("`draft_window` limits how many past positions the drafter can look at.",
          "The draft window is the number of recent positions that the drafter sees of the context."),
         ("A small window keeps drafting fast in a long conversation.", "0 means that the drafter sees all of the context."),
         ("Leave it at 0 for short chats, and try 1024 or 2048 for long ones.", "Lower it if the draft step becomes slow with a long context."), "0"),
    Knob("thinking",
         ("`thinking` lets the model reason before it answers. The reasoning is folded away above the answer.",
          "With thinking on, the model first writes its reasoning inside a think block and then the answer."),
         ("Drafts are accepted less often while the model thinks, because the drafter was not trained on that text.", "Thinking makes answers longer, and acceptance is usually lower in the reasoning."),
         ("Turn it on for hard questions and off for speed.", "It is off by default; a change takes effect with the next turn."), "off"),
    Knob("temperature",
         ("`temperature` controls how random the answer is. 0 always takes the most likely token.",
          "The temperature scales the logits before a token is drawn: low values are careful, high values are varied."),
         ("Higher values give more variety and more mistakes.", "At a high temperature the drafter guesses less well, so fewer tokens are accepted."),
         ("Use 0 for arithmetic and code, and 0.7 for a bit of variety.", "0 is best with this small model."), "0"),
    Knob("top_k",
         ("`top_k` keeps only the k most likely tokens and draws among them.", "With top_k, all tokens but the k likeliest are thrown away before drawing."),
         ("A small value keeps the text on track.", "0 means that no token is cut by this rule."),
         ("20 is a common choice together with a temperature above 0.", "It has no effect at temperature 0."), "0"),
    Knob("top_p",
         ("`top_p` keeps the smallest set of tokens whose probabilities add up to p.", "With top_p, the decoder draws among the likeliest tokens that together hold the probability p."),
         ("Lower values cut the unlikely tail.", "1 keeps every token."),
         ("0.9 or 0.95 are common values.", "Try 0.9 when sampled text gets strange."), "1"),
    Knob("min_p",
         ("`min_p` leaves out tokens whose probability is less than this share of the best token's.", "With min_p, a token must be at least that fraction as likely as the best one."),
         ("It cuts more when the model is sure, and less when it is not.", "0 switches it off."),
         ("0.05 is a good value to try with a high temperature.", "Values from 0.02 to 0.1 work well."), "0"),
    Knob("repetition_penalty",
         ("`repetition_penalty` makes tokens that were already generated less likely.", "The repetition penalty divides the logits of tokens that are already in the answer."),
         ("A value above 1 reduces loops.", "1 means no penalty, and large values make the text odd."),
         ("Try 1.1 if the model repeats itself.", "Keep it between 1 and 1.3."), "1"),
    Knob("frequency_penalty",
         ("`frequency_penalty` lowers the logit of a token once for every time it was used before.", "The frequency penalty grows with the number of times that a token has occurred."),
         ("It works against words that are used again and again.", "0 switches it off."),
         ("Small values such as 0.2 are enough.", "Raise it slowly, because code needs repeated tokens."), "0"),
    Knob("presence_penalty",
         ("`presence_penalty` lowers the logit of every token that has occurred at least once.", "The presence penalty is subtracted once for each token that was already used."),
         ("It pushes the model toward new words.", "0 switches it off."),
         ("Values between 0 and 1 are common.", "Use it for free text, not for code."), "0"),
    Knob("seed",
         ("`seed` fixes the random draws, so that the same question gives the same answer again.", "The seed starts the random numbers of the sampler."),
         ("The same seed gives the same text in every mode.", "It matters only when the temperature is above 0."),
         ("Change it to get another answer to the same question.", "Keep it fixed while you compare settings."), "0"),
    Knob("max_tokens",
         ("`max_tokens` is the largest number of tokens that one answer may have.", "max_tokens ends an answer after that many tokens, even in the middle of a sentence."),
         ("Most answers end by themselves before that.", "The context of this demo model has 2048 tokens in all."),
         ("512 is enough for normal answers.", "Raise it when long answers are cut off."), "512"),
]  # fmt: skip

KNOB_QUESTIONS = [
    "What is {k}?", "What does {k} do?", "Explain {k}.", "What does the {k} setting mean?", "Tell me about {k}.",
    "What is the {k} knob for?", "Can you explain {k}?", "What is {k} good for?", "Describe the parameter {k}.",
    "What does {k} control?", "How does {k} work?", "{k}?", "What happens when I change {k}?", "Why would I use {k}?",
    "What is the meaning of {k}?", "I do not understand {k}.", "what is the {k} slider", "Explain the {k} parameter to me.",
]  # fmt: skip
KNOB_ADVICE = [
    "How should I set {k}?", "Which value of {k} is good?", "What should {k} be?", "When should I change {k}?",
    "What is a good {k}?", "Which {k} do you recommend?", "How do I choose {k}?",
]  # fmt: skip
KNOB_DEFAULT = [
    "What is the default {k}?", "What is the default value of {k}?", "What is {k} set to by default?",
    "Which {k} is the default?",
]  # fmt: skip
KNOB_UP = [
    "What happens if I raise {k}?",
    "What does a higher {k} do?",
    "Should I increase {k}?",
    "Is a larger {k} better?",
    "What happens if I lower {k}?",
]
KNOB_WHERE = ["Where can I change {k}?", "How do I change {k}?", "Where do I find {k}?", "How can I set {k}?"]

TOPICS: list[tuple[list[str], list[str]]] = [
    (["What is speculative decoding?", "Explain speculative decoding.", "Tell me about speculative decoding.", "How does speculative decoding work?", "What does speculative decoding mean?", "Can you explain speculative decoding?", "Describe speculative decoding in a few sentences.", "speculative decoding"],
     ["Speculative decoding makes a language model faster without changing its text. A small drafter guesses several tokens ahead. The large target checks all of them in one pass and keeps those that it would have written itself.",
      "In speculative decoding, a cheap drafter proposes the next tokens and the target verifies them together. Every token that agrees with the target is kept, so one pass of the target can produce several tokens.",
      "Speculative decoding works in three steps:\n\n1. The drafter guesses a block of tokens.\n2. The target checks them all in one pass.\n3. The guesses that match are kept, and the target adds one token of its own."]),
    (["Why is speculative decoding faster?", "Why does speculative decoding help?", "How does speculation save time?", "Why is it faster to verify than to generate?"],
     ["A decoding step mostly waits for the weights to be read from memory. Checking many tokens reads the weights only once, so it costs little more than making one token.",
      "Reading the weights is the slow part of a step. The target reads them once and checks many drafted tokens at the same time."]),
    (["Is speculative decoding lossless?", "Does speculative decoding change the answer?", "Does the drafter change the text?", "Is the output the same as without a drafter?", "Does speculation hurt the quality?", "Will I get the same text in tree mode?"],
     ["Yes, it is lossless. The target decides every token, so the text is the same as in plain decoding. Only the speed changes.",
      "The output stays the same. A wrong guess of the drafter is thrown away, and the target's own token is used instead."]),
    (["What is DFlash?", "Explain DFlash.", "How does DFlash work?", "What does DFlash do?", "Tell me about DFlash.", "What is a DFlash drafter?"],
     ["DFlash is a way to draft a whole block of tokens at once. The drafter reads hidden states of the target and fills in 15 masked positions in a single pass.",
      "DFlash is a block-diffusion drafter. It gets the last token and 15 masks, looks at the target's hidden states, and predicts all masked tokens in parallel."]),
    (["What is DDTree?", "Explain DDTree.", "How does DDTree work?", "What is a draft tree?", "Why use a tree?", "What is tree mode?", "Tell me about DDTree."],
     ["DDTree turns the drafter's probabilities into a tree of likely continuations. The most likely branches are added first until the budget is used. The target then checks the whole tree in one pass.",
      "A draft tree holds several possible continuations at once. If the first guess is wrong, a side branch may still be right, so more tokens are accepted per step."]),
    (["What is a drafter?", "What does the drafter do?", "What is a draft model?", "Explain the drafter.", "Why do we need a drafter?"],
     ["The drafter is a small model that guesses the next tokens. The target then checks these guesses. A good drafter is fast and agrees with the target often.",
      "A drafter proposes tokens cheaply. This one has a few layers, reads the target's hidden states, and fills a block of 16 positions in one pass."]),
    (["What is the target?", "What is the target model?", "What does the target do?", "Explain the target model."],
     ["The target is the model whose text you read. It verifies the drafted tokens and decides every token of the answer.",
      "The target is the large model. It checks what the drafter proposes and keeps only what it would have written itself."]),
    (["What is acceptance length?", "What does acceptance length mean?", "Explain the acceptance length.", "What is AL?", "What is a good acceptance length?", "How is the acceptance length computed?"],
     ["The acceptance length is the average number of tokens that one step adds to the answer. It is the accepted drafts plus the one token that the target adds itself. Plain decoding has 1.",
      "Acceptance length means tokens per step: the more drafts are accepted, the longer it is. Values of 4 and more are good."]),
    (["What is the accept rate?", "What do the accept bars show?", "What is the accept rate per position?", "Explain the accept rates.", "Why do the accept bars fall?"],
     ["The accept rate of a position is the share of steps in which the draft at that depth was accepted. It falls with depth, because every earlier token must be right too.",
      "Each bar shows how often the drafts at that position were accepted. The first position is the highest, and later ones are lower."]),
    (["What is a chain?", "What is chain mode?", "What is the difference between chain and tree?", "Chain or tree?", "Which is better, chain or tree?"],
     ["A chain is one line of drafted tokens, and a tree has side branches as well. The tree accepts more tokens per step, but it checks more of them.",
      "In chain mode, the target checks a single guess for each position. In tree mode, it checks several guesses, so one mistake does not end the step."]),
    (["What is autoregressive decoding?", "What does ar mean?", "What is mode ar?", "What is plain decoding?", "What is AR?"],
     ["Autoregressive decoding makes one token per step, each from all the tokens before it. Here it is the mode `ar`, and it is the baseline for the others.",
      "AR means autoregressive: the model writes one token after the other, without a drafter."]),
    (["What is verification?", "What happens in the verify step?", "How does the target verify the tree?", "What is the verify step?"],
     ["In the verify step, the target runs once over all nodes of the tree. Each node sees only its own ancestors. Then the decoder follows the path that the target agrees with.",
      "The target computes its own next token for every node of the tree in a single pass. Nodes that match are accepted, and the rest are thrown away."]),
    (["What is a step?", "What happens in one step?", "What does the decoder do in a step?", "Describe one decoding step."],
     ["One step has five parts:\n\n1. **draft**: the drafter fills a block\n2. **tree**: the best branches are chosen\n3. **verify**: the target checks them\n4. **accept**: the matching path is kept\n5. **commit**: the state moves forward"]),
    (["What is a block?", "What is the block size?", "How many tokens does the drafter guess?", "Why is the block size 16?"],
     ["The drafter works on a block of 16 positions: the last known token and 15 masks. So it guesses up to 15 tokens per step.",
      "The block size is 16. One position is the known token, and the other 15 are drafted."]),
    (["What is a mask token?", "What is the mask?", "Why are there masks in the block?"],
     ["A mask token marks a position that the drafter has to fill in. A block starts with one known token followed by 15 masks."]),
    (["What is a gated delta net?", "Explain the gated delta net.", "What is a linear attention layer?", "What is the delta rule?", "How does the recurrent state work?"],
     ["A gated delta net is a layer that keeps a fixed-size memory instead of all past tokens. For each token, it lets the memory fade a little, then corrects it so that the key finds the new value.",
      "It is a kind of linear attention. The layer stores what it has seen in a small matrix per head, so its cost does not grow with the length of the text."]),
    (["What is attention?", "How does attention work?", "Explain attention.", "What is full attention?"],
     ["Attention lets each token look back at earlier tokens. It compares its query with their keys and mixes their values by how well they match.",
      "In attention, every token asks a question of all earlier tokens and collects the answers that fit best. Every fourth layer of this model uses it."]),
    (["What is a token?", "What are tokens?", "Explain tokens.", "What is tokenization?"],
     ["A token is a small piece of text: a word, a part of a word, a digit or a sign. Language models read and write text as tokens.",
      "Tokens are the pieces that a model works with. This model knows 8192 of them, and every digit is a token of its own."]),
    (["What is a KV cache?", "Explain the KV cache.", "What is the kv cache for?"],
     ["The KV cache stores the keys and values of past tokens, so that they are not computed again for each new token.",
      "It holds the keys and values of all earlier tokens. It grows with the length of the conversation."]),
    (["What is quantization?", "Explain quantization.", "What is Q4_0?", "What does Q8_0 mean?", "Why are models quantized?"],
     ["Quantization stores weights with fewer bits, for example 4 or 8 instead of 16. The file gets smaller and decoding gets faster, and the quality drops a little.",
      "Weights are rounded to a few levels per block of 32 numbers, with one scale for the block. Q8_0 uses 8 bits and Q4_0 uses 4."]),
    (["What is a GGUF file?", "What is GGUF?", "Which files do I need?", "What file formats are supported?"],
     ["GGUF is a file format for language models. One file holds the weights, the settings and the tokenizer. This program reads a target and a drafter from such files.",
      "You need a target as a GGUF file and a drafter as GGUF or safetensors. Without them, the built-in demo pair is used."]),
    (["What is a language model?", "What is an LLM?", "How do language models work?", "Explain language models."],
     ["A language model predicts the next token of a text. By adding one token after the other, it writes whole answers.",
      "It is a program that has learned which tokens usually follow others. It writes text by predicting one token at a time."]),
    (["What is sampling?", "How does sampling work?", "How is a token chosen?", "What is greedy decoding?"],
     ["Sampling draws the next token at random, and likely tokens are drawn more often. Greedy decoding always takes the most likely one, which is what temperature 0 does.",
      "At temperature 0, the most likely token is taken. Above that, a token is drawn after top_k, top_p and min_p have cut the unlikely ones."]),
    (["What is this program?", "What is dflash-tui?", "What does this program do?", "What is this app?", "Tell me about this program.", "What is this?", "Explain this app.", "What can this program do?"],
     ["This is dflash-tui, a terminal chat with a speculative decoder inside. You can talk to a model and watch how drafts are proposed, checked and accepted.",
      "dflash-tui is a chat program for the terminal. It runs a target and a drafter in its own process, and its sliders let you tune how they work together."]),
    (["How do I stop the answer?", "How can I stop generation?", "How do I interrupt you?", "Which key stops the answer?", "What does Esc do?", "How do I cancel?", "Stop key?"],
     ["Press `Esc`. The answer stops and the text so far is kept.", "`Esc` stops the answer at once and keeps what was written."]),
    (["How do I retry?", "How can I get a new answer?", "What does Ctrl+R do?", "Which key retries?", "How do I regenerate the answer?", "Try again key?"],
     ["Press `Ctrl+R`. The last question is answered again with the current settings.", "`Ctrl+R` retries the last question with the knobs as they are now."]),
    (["How do I quit?", "How do I exit?", "How can I leave the program?", "What does Ctrl+Q do?", "Which key quits?", "How do I close this?"],
     ["Press `Ctrl+Q` to quit.", "`Ctrl+Q` quits the program."]),
    (["What do the function keys do?", "What does F2 do?", "What does F3 do?", "What does F4 do?", "What does F5 do?", "How do I open the Stats tab?", "How do I see the tree?", "Where is the memory view?", "How do I open the parameters?", "Which tabs are there?"],
     ["The function keys open the inspector tabs:\n\n- `F2` Params\n- `F3` Stats\n- `F4` Tree\n- `F5` Memory"]),
    (["Which keys are there?", "What are the keyboard shortcuts?", "Show me the shortcuts.", "List the keys.", "What keys can I use?", "keyboard shortcuts"],
     ["These are the most useful keys:\n\n- `Esc` stops the answer and keeps the text\n- `Ctrl+R` tries again\n- `F2` to `F5` open Params, Stats, Tree and Memory\n- `Ctrl+Q` quits"]),
    (["What does the Stats tab show?", "What is in the Stats tab?", "Which statistics are there?", "What do the stats mean?"],
     ["The Stats tab shows the accept rate per position, the acceptance length of each step, and the tokens per second."]),
    (["What does the Tree tab show?", "What is in the Tree tab?", "What do I see in the tree view?"],
     ["The Tree tab shows the candidates of the last step with their probabilities, and it marks the path that was accepted."]),
    (["What does the Memory tab show?", "How much memory do you need?", "What is in the Memory tab?", "How much memory is used?"],
     ["The Memory tab shows what each part takes: the weights, the cache, the recurrent state and the drafter."]),
    (["What does the Params tab show?", "Where are the sliders?", "How do I change the settings?", "How do I use the sliders?", "Where are the settings?"],
     ["Press `F2` to open the Params tab. It has a slider for each knob, and you can move it with the keyboard or the mouse."]),
    (["How do I make it faster?", "How can I speed it up?", "Why is it slow?", "How do I get more tokens per second?", "What can I do for more speed?", "It is too slow"],
     ["Try these:\n\n1. Use `tree` mode with a budget around 22.\n2. Turn thinking off.\n3. Keep the temperature at 0.\n4. Watch tokens per second while you move the sliders."]),
    (["Why is acceptance lower when thinking?", "Why does thinking lower the acceptance?", "Why is thinking slower?", "Why are drafts worse with thinking?"],
     ["The drafter was trained on answers without reasoning. It guesses worse inside the think block, so fewer tokens are accepted there."]),
    (["Why is the acceptance low?", "Why are so few drafts accepted?", "Why does the drafter miss?", "How can I raise the acceptance length?"],
     ["The drafter guesses well where the text is easy to foresee. Surprising text, a high temperature and thinking all lower the acceptance. A larger budget helps a little."]),
    (["What is the demo pair?", "What is the demo model?", "What are the built-in models?", "Which models come with the program?"],
     ["The demo pair is a small target and a drafter that were trained for this program. They have the same architecture as the large models, so everything can be tried on a laptop."]),
    (["How do I use my own model?", "How do I load another model?", "Can I use a bigger model?", "How do I open a GGUF file?", "Can I use Qwen3.6-27B?"],
     ["Start the program with your own files:\n\n```bash\ndflash-tui --target model.gguf --draft drafter.gguf\n```\n\nThe drafter must be made for that target."]),
    (["How do I ask from the command line?", "Can I use it without the app?", "Is there a command line?", "How do I use it in a script?", "What does ask do?"],
     ["Use `ask`:\n\n```bash\ndflash-tui ask \"What is 37 + 48?\"\n```\n\nAdd `--json` to get the statistics as well."]),
    (["How do I compare settings?", "How can I measure the speed?", "What is a sweep?", "How do I run a benchmark?", "What does sweep do?"],
     ["Use a sweep. It runs the same prompts with several values and prints a table:\n\n```bash\ndflash-tui sweep budget=4,15,22,40\n```"]),
    (["How do I check my installation?", "What does doctor do?", "Does it work with my GPU?", "How do I find problems?", "Is my GPU used?"],
     ["Run `dflash-tui doctor`. It checks Python, torch, the driver and the GPU, and it says what to do if something is wrong."]),
    (["What does inspect do?", "How do I look into a model file?", "How do I see what is in a GGUF?"],
     ["`dflash-tui inspect model.gguf` prints the architecture, the sizes and the types of the tensors, and whether a drafter fits."]),
    (["Do I need a GPU?", "Does it run on a CPU?", "Can I run this on a laptop?", "What hardware do I need?"],
     ["The demo pair runs on a normal CPU. A large target needs a GPU with enough memory."]),
    (["How long is the context?", "What is the context length?", "How much text can you read?", "How long can a chat be?"],
     ["This demo model has a context of 2048 tokens. That is about 1500 words for the question, the history and the answer together."]),
    (["What is a hidden state?", "Which hidden states does the drafter read?", "What are features?", "What are tapped layers?"],
     ["A hidden state is the vector that a layer passes on for a token. The drafter reads those of several layers of the target, so it knows what the target is about to say."]),
    (["What is tok/s?", "What does tokens per second mean?", "What is the speed shown below?", "What does the status strip show?"],
     ["It shows how many tokens per second are written, the acceptance length, and the knobs that are in use."]),
    (["What is a sliding window?", "What are sliding-window layers?", "What does swa mean?"],
     ["A sliding-window layer only looks at the last positions, for example 2048. That keeps its cost the same, however long the text is."]),
    (["What does /set do?", "Can I set knobs by command?", "How do I set a knob by text?"],
     ["Type `/set name=value` in the prompt, for example `/set budget=30`. It does the same as moving the slider."]),
]  # fmt: skip
THOUGHTS = [
    "This is a question about the program. I will answer it directly.",
    "The user wants to understand how the decoder works. A short explanation is best.",
    "I know this part of the program. I will explain it in a few sentences.",
]


def knobs(draw: Draw) -> Exchange:
    knob = draw.one(KNOBS)
    shown = draw.one([knob.name, knob.name, f"`{knob.name}`", knob.name.replace("_", " ")])
    kind = draw.number(0, 9)
    forms = [KNOB_QUESTIONS] * 5 + [KNOB_ADVICE] * 2 + [KNOB_DEFAULT, KNOB_UP, KNOB_WHERE]
    # The form is split per knob, so each way of asking is known from some knobs and new for others.
    text = draw.template(f"knob {knob.name}", forms[kind], keep=2).format(k=shown)
    if kind <= 4:
        parts = [draw.one(knob.what), draw.one(knob.more)]
        if draw.chance(0.4):
            parts.append(draw.one(knob.advice))
        answer = " ".join(parts)
    elif kind <= 6:
        answer = f"{draw.one(knob.advice)} {draw.one(knob.more)}"
    elif kind == 7:
        answer = f"The default of `{knob.name}` is {knob.default}. {draw.one(knob.advice)}"
    elif kind == 8:
        answer = f"{knob.more[0]} {draw.one(knob.advice)}"
    else:
        answer = (
            f"Press `F2` to open the Params tab and move the slider of `{knob.name}`, or type `/set {knob.name}=value`."
        )
    thought = draw.one(
        [
            f"The user asks about {knob.name}. I will say what it does and how to use it.",
            f"{knob.name} is one of the knobs of this program. Its default is {knob.default}.",
            f"I should explain {knob.name} in plain words.",
        ]
    )
    return Exchange(draw.say(text), answer, thought, "knobs")


def topics(draw: Draw) -> Exchange:
    questions, answers = draw.one(TOPICS)
    text = draw.template("topic", questions, keep=3)
    return Exchange(draw.say(text), draw.one(answers), draw.one(THOUGHTS), "topics")


FAMILIES = [(knobs, 5.0), (topics, 6.0)]
