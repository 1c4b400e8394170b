"""A hostile text in every input of the command line; the bytes that reach the terminal are checked."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from text_data import metadata

from dflash_core.clean import LINE
from dflash_core.record import lines, pack
from dflash_core.trace import TraceWriter
from dflash_tui.application.conversations.branches import Branches, Node
from dflash_tui.application.conversations.exchange import to_json
from dflash_tui.application.conversations.store import Card, Store, StoredConversation
from dflash_tui.application.log import log_file
from dflash_tui.cli import ask, main
from dflash_tui.terminal.output import Notes
from support.formats import TARGET_KEYS, TARGET_SHAPES, ZLAB, header, write_target, write_zlab
from support.golden import golden
from support.hostile import HOSTILE, NAME, TEXT, assert_harmless, on_a_terminal, replaced_template
from support.stored import a_report, a_turn
from support.turns import step_of, turn_of

Words = list[str]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for kind in ("DATA", "CONFIG", "STATE", "CACHE"):
        monkeypatch.setenv(f"XDG_{kind}_HOME", str(tmp_path / kind.lower()))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


# What each input needs, and the command line that reads it


def template(home: Path) -> Words:
    raises = '{{ raise_exception("' + TEXT.replace("\\", "") + '") }}'
    path = replaced_template(golden("tiny-F16.gguf"), home / "model.gguf", raises)
    return ["--target", str(path), "ask", "hi"]


def merges(home: Path) -> Words:
    keys = TARGET_KEYS | metadata(merges=[f"{TEXT.replace(' ', '')} b"])
    rows = {name: (len(keys["tokenizer.ggml.tokens"]), 32) for name in ("token_embd.weight", "output.weight")}
    return ["--target", str(write_target(home / "model.gguf", keys, TARGET_SHAPES | rows)), "ask", "hi"]


def model_name(home: Path) -> Words:
    return ["inspect", str(write_target(home / "model.gguf", TARGET_KEYS | {"general.name": TEXT}))]


def architecture(home: Path) -> Words:
    return ["inspect", str(write_target(home / "model.gguf", {"general.architecture": TEXT}))]


def tensor_type(home: Path) -> Words:
    entry = {"fc.weight": {"dtype": HOSTILE, "shape": [1], "data_offsets": [0, 4]}}
    return ["inspect", str(safetensors(home, entry))]


def tensor_name(home: Path) -> Words:
    return ["inspect", str(safetensors(home, {HOSTILE: {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}))]


def safetensors(home: Path, entry: dict[str, object]) -> Path:
    folder = write_zlab(home / "draft")
    head = json.dumps(entry).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + bytes(4))
    return folder


def draft_config(home: Path) -> Words:
    return ["inspect", str(write_zlab(home / "draft", ZLAB | {"hidden_size": HOSTILE}))]


def long_value(home: Path) -> Words:
    return ["inspect", str(write_zlab(home / "draft", ZLAB | {"hidden_size": f"hostile {'x' * 599_511}"}))]


def draft_architecture(home: Path) -> Words:
    return ["inspect", str(write_zlab(home / "draft", ZLAB | {"architectures": [HOSTILE]}))]


def file_name(home: Path) -> Words:
    return ["inspect", str(write_target(home / f"{NAME}.gguf"))]


def damaged_file(home: Path) -> Words:
    (home / NAME).write_bytes(header()[:20])
    return ["inspect", str(home / NAME)]


def missing_file(home: Path) -> Words:
    return ["--target", str(home / NAME / NAME), "ask", "hi"]


def words_too_many(home: Path) -> Words:
    return ["inspect", "a", NAME, f"--{NAME}"]


def unknown_parameter(home: Path) -> Words:
    return ["--set", f"{NAME}=1", "config"]


def settings(home: Path) -> Words:
    (home / "dflash-tui.toml").write_text(f"theme = {json.dumps(TEXT)}\n{json.dumps(TEXT)} = {json.dumps(TEXT)}\n")
    return ["config", "show", "--origin"]


def settings_as_json(home: Path) -> Words:
    return [*settings(home), "--json"]


def presets(home: Path) -> Words:
    folder = home / "config" / "dflash-tui" / "presets"
    folder.mkdir(parents=True)
    (folder / f"{NAME}.toml").write_text(f"about = 1\n{json.dumps(TEXT)} = 1\n[knobs]\n{json.dumps(TEXT)} = 1\n")
    return ["config", "show"]


def themes(home: Path) -> Words:
    folder = home / "config" / "dflash-tui" / "themes"
    folder.mkdir(parents=True)
    (folder / f"{NAME}.toml").write_text(f'primary = "red"\n{json.dumps(TEXT)} = 1\n')
    (folder / "other.toml").write_text(f"primary = {json.dumps(TEXT)}\n")
    return ["config", "show"]


def export() -> bytes:
    question = Node("user", TEXT)
    answer = Node("assistant", TEXT, question.id, TEXT, TEXT, a_report(TEXT))
    card = Card(TEXT, TEXT, model=TEXT)
    return to_json([StoredConversation(card, Branches([question, answer], answer.id), {answer.id: pack(a_turn())})])


def imported(home: Path) -> Words:
    (home / "a.json").write_bytes(export())
    return ["conversations", "import", "a.json"]


def imported_id(home: Path) -> Words:
    data = json.loads(export())
    data["conversations"][0]["card"]["id"] = TEXT
    (home / "a.json").write_text(json.dumps(data))
    return ["conversations", "import", "a.json"]


def imported_role(home: Path) -> Words:
    data = json.loads(export())
    data["conversations"][0]["messages"][1]["parent"] = TEXT
    (home / NAME).write_text(json.dumps(data))
    return ["conversations", "import", NAME]


def imported_key(home: Path) -> Words:
    data = json.loads(export())
    data["conversations"][0]["turns"] = {TEXT: []}
    (home / "a.json").write_text(json.dumps(data))
    return ["conversations", "import", "a.json"]


def kept(home: Path) -> Card:
    store = Store(home / "data" / "dflash-tui")
    question = Node("user", TEXT)
    answer = Node("assistant", TEXT, question.id, TEXT, TEXT, a_report(TEXT))
    card = Card(TEXT, TEXT, model=TEXT)
    store.put(StoredConversation(card, Branches([question, answer], answer.id), {answer.id: pack(a_turn())}))
    store.close()
    return card


def listed(home: Path) -> Words:
    kept(home)
    return ["conversations", "list"]


def listed_as_json(home: Path) -> Words:
    kept(home)
    return ["conversations", "list", "--json"]


def exported(home: Path, kind: str) -> Words:
    return ["conversations", "export", kept(home).id, "--as", kind]


def deleted(home: Path) -> Words:
    return ["conversations", "delete", kept(home).id]


def unknown_conversation(home: Path) -> Words:
    return ["conversations", "delete", NAME]


def trace(home: Path, name: str = "a.trace") -> Path:
    turn = turn_of([step_of()] * 3, prompt=TEXT)
    with TraceWriter(home / name) as writer:
        for line in lines(turn):
            writer(line)
    return home / name


def replayed_as_json(home: Path) -> Words:
    return ["replay", str(trace(home)), "--json"]


def cut_trace(home: Path) -> Words:
    path = trace(home, NAME)
    path.write_bytes(path.read_bytes()[:-60])
    return ["replay", str(path), "--json"]


def no_trace(home: Path) -> Words:
    (home / NAME).write_text(NAME)
    return ["replay", NAME]


def trace_that_exists(home: Path) -> Words:
    return ["--trace", str(trace(home, NAME)), "ask", "hi"]


def prompts(home: Path) -> Words:
    return ["--demo", "sweep", "budget=4", "--prompts", NAME]


def axis(home: Path) -> Words:
    return ["--demo", "sweep", f"{NAME}=4", "--prompt", "hi"]


DOORS: dict[str, tuple[Callable[[Path], Words], int]] = {
    one.__name__: (one, code)
    for one, code in (
        (template, 1), (merges, 1), (model_name, 0), (architecture, 1), (tensor_type, 1), (tensor_name, 1),
        (draft_config, 1), (long_value, 1), (draft_architecture, 1), (file_name, 0), (damaged_file, 1),
        (missing_file, 1),
        (words_too_many, 2), (unknown_parameter, 2), (settings, 0), (settings_as_json, 0), (presets, 0), (themes, 0),
        (imported, 0), (imported_id, 0), (imported_role, 1), (imported_key, 1), (listed, 0), (listed_as_json, 0),
        (deleted, 0), (unknown_conversation, 1), (replayed_as_json, 0), (cut_trace, 0), (no_trace, 1),
        (trace_that_exists, 1), (prompts, 1), (axis, 1),
    )
}  # fmt: skip
DOORS |= {f"exported_{kind}": (lambda home, kind=kind: exported(home, kind), 0) for kind in ("md", "json", "svg")}


@pytest.mark.parametrize("door", DOORS)
def test_nothing_that_a_terminal_obeys(door: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words, expected = DOORS[door]
    code, data = on_a_terminal(lambda: main(["--verbose", *words(home)]), monkeypatch)
    assert code == expected, data
    assert_harmless(data)
    if code:
        [line] = re.findall(r"dflash-tui(?: \w+)?: .*", data.decode())
        assert len(line) <= LINE
    assert_harmless(log_file().read_bytes() if log_file().exists() else b"", seen=0)


class Turn:
    """An answer that comes a character at a time."""

    def __init__(self) -> None:
        self.text, self.thinking, self.report = "", "", None

    def __iter__(self) -> Iterator[None]:
        for character in HOSTILE:
            self.thinking += character
            yield
        for character in HOSTILE:
            self.text += character
            yield

    def stop(self) -> None: ...


@pytest.mark.parametrize("lines", [False, True])
def test_an_answer_on_a_terminal(monkeypatch: pytest.MonkeyPatch, lines: bool) -> None:
    def run() -> int:
        return int(ask._show_turn(Turn(), Notes(plain=lines), quiet=False, lines=lines))  # type: ignore[arg-type]

    code, data = on_a_terminal(run, monkeypatch)
    assert code == 0
    assert_harmless(data, seen=lines + 1)
