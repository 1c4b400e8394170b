"""Prompt sets in published formats, in plain ones, and files that are not prompt sets."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from dflash_core.bench import prompts
from dflash_core.bench.prompts import Task, read_prompts, sample
from dflash_core.bench.scoring import final, is_right
from dflash_core.errors import FormatError

SHARED = Path(__file__).parents[3] / "shared" / "data" / "prompts"


def write(path: Path, *rows: object) -> Path:
    text = "\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows) + "\n"
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


HUMANEVAL = {"task_id": "HumanEval/7", "prompt": "def f(x):\n", "canonical_solution": "  return x\n", "test": ""}
GSM8K = {"question": "How many?", "answer": "2 + 2 = 4\n#### 4"}
MATH = {"problem": "Find $x$.", "solution": "So \\boxed{3}.", "answer": "3", "unique_id": "test/algebra/1.json"}
HENDRYCKS = {"problem": "Find $y$.", "solution": "So \\boxed{\\frac{1}{2}}.", "level": "Level 1"}
MT_BENCH = {"question_id": 81, "category": "writing", "turns": ["First.", "Second."]}


@pytest.mark.parametrize("ending", ["jsonl", "jsonl.gz"])
@pytest.mark.parametrize(
    ("row", "task"),
    [
        (HUMANEVAL, Task("HumanEval/7", "def f(x):")),
        (GSM8K, Task("GSM8K 1", "How many?", "2 + 2 = 4\n#### 4")),
        (MATH, Task("test/algebra/1.json", "Find $x$.", "3")),
        (HENDRYCKS, Task("MATH 1", "Find $y$.", "So \\boxed{\\frac{1}{2}}.")),
        (MT_BENCH, Task("81", "First.")),
        ({"prompt": "Hi"}, Task("plain 1", "Hi")),
        ({"id": "a", "text": "Hi"}, Task("a", "Hi")),
        ({"question": "Why?", "answer": "Because."}, Task("GSM8K 1", "Why?")),
        ("only text", Task("plain 1", "only text")),
    ],
)
def test_layouts(tmp_path: Path, row: object, task: Task, ending: str) -> None:
    assert read_prompts(write(tmp_path / f"set.{ending}", json.dumps(row), "")) == (task,)


def test_plain_text_has_one_prompt_a_line(tmp_path: Path) -> None:
    path = write(tmp_path / "prompts.txt.gz", "\ufeffWhy is the sky blue?", "", "  Count to ten.  ")
    assert read_prompts(path) == (Task("line 1", "Why is the sky blue?"), Task("line 3", "Count to ten."))


def test_line_ends_inside_a_prompt_stay_one_prompt(tmp_path: Path) -> None:
    """U+2028 and U+0085 end a line for str.splitlines, and are legal inside a JSON string."""
    path = tmp_path / "set.jsonl"
    path.write_text('{"text": "a\u2028b\u0085c"}\n', encoding="utf-8")
    assert read_prompts(path)[0].text == "a\u2028b\u0085c"


def test_a_lone_surrogate_is_no_character(tmp_path: Path) -> None:
    path = write(tmp_path / "set.jsonl", '{"text": "a \\ud800 b"}')
    assert read_prompts(path)[0].text == "a ? b"


@pytest.mark.parametrize("row", ['{"prompt": "a", "id": "\\ud800"}', '{"problem": "a", "answer": "\\udfff"}'])
def test_a_lone_surrogate_in_a_name_or_an_answer_is_none_either(tmp_path: Path, row: str) -> None:
    [task] = read_prompts(write(tmp_path / "set.jsonl", row))
    assert "?" in (task.name, task.reference)
    (task.name + task.reference).encode()


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("a.jsonl", b'{"text": "a"}\n{"text": \n', "line 2 is not JSON"),
        ("a.jsonl", b"[1, 2]\n", "line 1 is a JSON list"),
        ("a.jsonl", b'{"text": "a"}\n{"other": "a"}\n', "line 2 has no text under 'text'"),
        ("a.jsonl", b'{"text": " "}\n', "line 1 has no text"),
        ("a.jsonl", b'{"turns": []}\n', "line 1 has no text under 'turns'"),
        ("a.jsonl", b'{"a": 1, "b": 2}\n', "has the fields a, b; expected prompt"),
        ("a.jsonl", b"\n\n", "holds no prompts"),
        ("a.txt", b"\xff\xfe\n", "is not UTF-8 text"),
        ("a.txt.gz", b"plain", "not a whole gzip file"),
        ("a.txt.gz", gzip.compress(b"some text" * 99, mtime=0)[:-9], "not a whole gzip file"),
        ("a.jsonl", b"[" * 100_000, "line 1 is not JSON"),
        ("a.txt.gz", gzip.compress(b"a" * 2_000_000, mtime=0), "holds more than 1,000,000 bytes, the limit"),
        ("a.txt", b"a\n" * 1_000_000, "holds more than 1,000,000 bytes, the limit"),
    ],
)
def test_damage_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, content: bytes, message: str
) -> None:
    monkeypatch.setattr(prompts, "MAX_BYTES", 1_000_000)
    path = tmp_path / file
    path.write_bytes(content)
    with pytest.raises(FormatError, match=message):
        read_prompts(path)


@pytest.mark.parametrize("text", ['{"prompt": "a", "id": %s}', '{"question": "a", "answer": %s}'])
def test_a_nested_list_is_no_name_and_no_answer(tmp_path: Path, text: str) -> None:
    """A list that is just shallow enough for Python to read would be too deep to write out again."""
    [task] = read_prompts(write(tmp_path / "deep.jsonl", text % ("[" * 500 + "]" * 500)))
    assert task in (Task("plain 1", "a"), Task("GSM8K 1", "a"))


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="cannot be read"):
        read_prompts(tmp_path / "none.jsonl")
    with pytest.raises(FormatError, match="is a folder"):
        read_prompts(tmp_path)


def test_samples_are_the_same_every_time() -> None:
    tasks = [Task(str(n), str(n)) for n in range(50)]
    assert [task.name for task in sample(tasks)] == ["1", "5", "6", "7", "8", "14", "15", "17", "34", "40"]
    assert sample(tasks, seed=1) != sample(tasks)
    assert sample(tasks[:4]) == tuple(tasks[:4])


@pytest.mark.skipif(not SHARED.exists(), reason="the published files lie beside the checkout only")
@pytest.mark.parametrize(
    ("file", "count", "reference"),
    [("HumanEval.jsonl.gz", 164, False), ("gsm8k_test.jsonl.gz", 1319, True), ("mt_bench.jsonl", 80, False)],
)
def test_published_files(file: str, count: int, reference: bool) -> None:
    tasks = read_prompts(SHARED / file)
    assert len(tasks) == count
    assert len({task.name for task in tasks}) == count
    assert all(bool(task.reference) == reference for task in tasks)
    for task in tasks if reference else ():
        assert is_right(task.reference, task.reference)


@pytest.mark.parametrize(
    ("answer", "reference", "right"),
    [
        ("She makes 9 * 2 = $18 a day.", "9 * 2 = 18\n#### 18", True),
        ("18 eggs, so 19.", "#### 18", False),
        ("It is 1,234 in all.", "#### 1234", True),
        ("It is 18.00.", "#### 18", True),
        ("nothing to see", "#### 18", False),
        ("So \\boxed{\\dfrac{1}{2}}, I think, in 3 steps.", "\\frac12", True),
        ("\\boxed{0.5}", "\\frac{1}{2}", True),
        ("first \\boxed{3}, no: \\boxed{\\sqrt{2}}", "\\sqrt{2}", True),
        ("\\boxed{\\left( 3, \\frac{\\pi}{2} \\right)}", "(3,\\frac{\\pi}{2})", True),
        ("\\boxed{90^\\circ}", "90", True),
        ("\\boxed{10\\%}", "10", True),
        ("\\boxed{\\text{Evelyn}}", "\\text{Evelyn}", True),
        ("\\boxed{-\\frac{3}{4}}", "-0.75", True),
        ("\\boxed{.50}", "1/2", True),
        ("\\boxed{1e2}", "100", False),
        ("\\boxed{(1,234)}", "(1,234)", True),
        ("\\boxed{unclosed", "3", False),
        ("1/0", "#### 7", False),
    ],
)
def test_scoring(answer: str, reference: str, right: bool) -> None:
    assert is_right(answer, reference) == right


def test_the_final_answer_of_nothing() -> None:
    assert final("") is None
