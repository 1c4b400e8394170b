"""The corpus: a seed always gives the same text, held-out items are never trained on, answers are right, and prompts
are as the template renders them."""

from __future__ import annotations

import ast
import re
from functools import cache

import jinja2.sandbox
import numpy as np
import pytest
from tools.train_demo import data, prepare
from tools.train_demo import tokenizer as tok
from tools.train_demo.corpus import arithmetic, build, program, python_code, smalltalk, splits
from tools.train_demo.corpus.base import Draw
from tools.train_demo.export import TEMPLATE

COUNT = 1500


def test_the_corpus_is_deterministic() -> None:
    assert build.sample("train", 200) == build.sample("train", 200)
    assert list(build.generated(50, "train", first=100)) == build.sample("train", 200)[100:150]
    assert build.sample("train", 50) != build.sample("train", 50, seed=1)


def test_splits_share_no_question_of_a_template() -> None:
    """Operand pairs and question forms of the two splits are disjoint."""
    for family in (arithmetic.sums, arithmetic.differences):
        pairs: dict[str, set[tuple[int, ...]]] = {"train": set(), "held": set()}
        for split in ("train", "held"):
            for i in range(COUNT):
                answer = family(Draw(f"{split}{i}", split)).answer  # type: ignore[arg-type]
                a, b = re.findall(r"\d+", answer)[:2]
                pairs[split].add(tuple(sorted((int(a), int(b)))))
        assert not pairs["train"] & pairs["held"]
        assert len(pairs["held"]) > 100
    for family in (program.topics, smalltalk.talk, python_code.combined):
        plain = {"train": set[str](), "held": set[str]()}
        for split in ("train", "held"):
            for document in build.sample(split, COUNT):  # type: ignore[arg-type]
                if document.exchange.family == family.__name__:
                    plain[split].add(document.exchange.user.lower().rstrip(".!?"))
        assert not plain["held"] & plain["train"]
        assert plain["held"]


def test_about_a_fifth_is_held_out() -> None:
    share = np.mean([splits.pair_split(a, b) == "held" for a in range(100) for b in range(a, 100)])
    assert 0.15 < share < 0.25
    assert splits.pair_split(3, 9) == splits.pair_split(9, 3)


def test_near_copies_are_found_by_a_run_of_13_tokens() -> None:
    rng = np.random.default_rng(0)
    trained = rng.integers(0, 8000, 5000).astype(np.int32)
    copied = np.concatenate([rng.integers(0, 8000, 5).astype(np.int32), trained[100:113]])
    nearly = np.concatenate([rng.integers(0, 8000, 5).astype(np.int32), trained[100:112]])
    assert splits.near_copies([copied, nearly, trained[:3]], trained) == [True, False, False]


def test_arithmetic_answers_and_code_are_right() -> None:
    for document in build.sample("train", COUNT) + build.sample("held", COUNT):
        e = document.exchange
        if e.family in ("sum", "difference", "product"):
            left, result = e.answer.rstrip(".").split(" = ")
            assert eval(left) == int(result.strip("*")), e
        for block in re.findall(r"```python\n(.*?)```", e.answer, re.DOTALL):
            ast.parse(block)


def test_library_functions_do_what_they_say() -> None:
    space: dict[str, object] = {}
    for function in python_code.LIBRARY:
        for body in function.bodies:
            code = f"def {function.names[0]}({function.params}):\n" + "\n".join("    " + x for x in body.split("\n"))
            exec(compile(code, function.names[0], "exec"), space)
    calls = {
        "reverse_list([1, 2])": [2, 1], "factorial(5)": 120, "fibonacci(10)": 55, "is_prime(97)": True,
        "gcd(12, 18)": 6,
        "lcm(4, 6)": 12, "median([3, 1, 2, 4])": 2.5, "binary_search([1, 3, 5], 5)": 2, "to_binary(10)": "1010",
        "bubble_sort([3, 1, 2])": [1, 2, 3], "quick_sort([3, 1, 2])": [1, 2, 3], "second_largest([1, 5, 5, 4])": 4,
        "balanced_brackets('(())')": True, "caesar('abz', 1)": "bca", "rotate([1, 2, 3], 1)": [2, 3, 1],
        "is_leap_year(1900)": False, "merge_sorted([1, 4], [2, 3])": [1, 2, 3, 4], "collatz(6)": 8,
    }  # fmt: skip
    for call, expected in calls.items():
        assert eval(call, space) == expected, call


@cache
def template() -> jinja2.Template:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)

    def refuse(message: str) -> None:
        raise jinja2.TemplateError(message)

    environment.globals["raise_exception"] = refuse
    return environment.from_string(TEMPLATE.read_text(encoding="utf-8"))


def render(messages: list[dict[str, object]], **values: object) -> str:
    return template().render(messages=messages, **values)


def user(text: str) -> dict[str, object]:
    return {"role": "user", "content": text}


def assistant(text: str, **more: object) -> dict[str, object]:
    return {"role": "assistant", "content": text, **more}


def test_documents_are_what_the_template_renders() -> None:
    for document in build.sample("train", 300):
        messages = [{"role": "system", "content": document.system}] if document.system else []
        for question, answer in document.history:
            messages += [user(question), assistant(answer)]
        messages.append(user(document.exchange.user))
        text = render(messages, add_generation_prompt=True, enable_thinking=document.thinking)
        assert text == document.prompt()


def test_template_thinking_and_history() -> None:
    chat = [user(" hi "), assistant("<think>\nhm\n</think>\n\nhello"), user("and?")]
    start = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nhello<|im_end|>\n<|im_start|>user\nand?<|im_end|>\n"
    assert render(chat) == start
    assert render(chat, add_generation_prompt=True) == start + "<|im_start|>assistant\n<think>\n"
    off = render(chat, add_generation_prompt=True, enable_thinking=False)
    assert off == start + "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    assert render(chat, add_generation_prompt=True, enable_thinking="false").endswith("<think>\n")
    last = render([user("a"), assistant("b", reasoning_content=" why ")])
    assert last.endswith("<|im_start|>assistant\n<think>\nwhy\n</think>\n\nb<|im_end|>\n")


def test_template_tools() -> None:
    call = {"function": {"name": "f", "arguments": {"a": True, "b": [1, "<"], "c": "x"}}}
    text = render(
        [user("q"), assistant("", tool_calls=[call]), {"role": "tool", "content": "r"}], add_generation_prompt=True
    )
    assert "<tool_call>\n<function=f>\n<parameter=a>\nTrue\n</parameter>\n<parameter=b>\n[1, " in text
    assert (
        "</function>\n</tool_call><|im_end|>\n<|im_start|>user\n<tool_response>\nr\n</tool_response><|im_end|>\n"
        in text
    )
    assert "<tools>\n{" in render([user("q")], tools=[{"name": "f"}])


@pytest.mark.parametrize(
    "messages",
    [[], [assistant("x")], [user("a"), {"role": "system", "content": "s"}], [user("a"), {"role": "x", "content": ""}],
     [user("<tool_response>\nx\n</tool_response>")]],
)  # fmt: skip
def test_template_refuses(messages: list[dict[str, object]]) -> None:
    with pytest.raises(jinja2.TemplateError):
        render(messages)


def test_packing_keeps_every_document_whole() -> None:
    rng = np.random.default_rng(1)
    rows = [np.full(int(n), i, np.int32) for i, n in enumerate(rng.integers(1, 60, 200))]
    packed = data.pack(data.Documents.of(rows), 64, seed=3)
    found = []
    for tokens, seg in zip(packed.tokens.numpy(), packed.seg.numpy(), strict=True):
        found += [tokens[seg == s] for s in np.unique(seg[seg >= 0])]
    assert sorted(map(tuple, found)) == sorted(map(tuple, rows))
    again = data.pack(data.Documents.of(rows), 64, seed=3)
    assert np.array_equal(again.tokens, packed.tokens)


def test_encoding_marks_exactly_the_answers() -> None:
    documents = build.sample("train", 300)
    tokenizer = tok.train((d.prompt() + d.answer() for d in documents), vocab=600)
    encoded = prepare.encode(tokenizer, documents, 2048)
    assert len(encoded) == len(documents)
    for i, document in enumerate(documents):
        row = encoded[i]
        answer = (row[row >= data.ANSWER] - data.ANSWER).tolist()
        assert tokenizer.decode(answer, skip_special_tokens=False) == document.answer()
