"""Every kind of file that the program reads (a "door"): a valid file, how it is damaged, what is then done with it."""

from __future__ import annotations

import gzip
import json
import random
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from dflash_core import Engine, Knobs, load_target
from dflash_core.conversation import Conversation
from dflash_core.drafters.dflash import open_drafter
from dflash_core.drafters.registry import open_draft
from dflash_core.formats.gguf import open_gguf
from dflash_core.formats.safetensors import open_safetensors
from dflash_core.formats.weights import WeightFile
from dflash_core.loading import open_target
from dflash_core.record import encode, lines, pack
from dflash_core.trace import read_trace
from dflash_tui.application.conversations.branches import Branches, Node
from dflash_tui.application.conversations.current import CurrentConversation
from dflash_tui.application.conversations.exchange import from_json, import_file, to_json
from dflash_tui.application.conversations.history import History
from dflash_tui.application.conversations.journal import Place
from dflash_tui.application.conversations.store import Card, Store, StoredConversation
from dflash_tui.application.settings.config import load_config
from dflash_tui.application.settings.presets import Presets
from dflash_tui.cli.command_line import key_rules
from dflash_tui.settings.themes import load_themes
from dflash_tui.text.pages import to_markdown, to_svg
from support import formats
from support.golden import golden, target
from support.mutation import damaged, mutate_lines, mutate_value
from support.stored import a_report, a_turn, stored_file, talk
from support.traces import a_trace, look_at, write

Mutate = Callable[[random.Random, Path], None]
DATABASE = "conversations.db"
TABLES = ("conversation", "message", "turn", "migration", "app", "paste", "step")


@dataclass(frozen=True)
class Door:
    """`lay` writes a damaged file into an empty folder; `enter` is what the program then does there.

    `enter` may raise DFlashError and nothing else. `share`: how many of some 350 mutants it gets; loading a model costs
    as much as a thousand headers.
    """

    name: str
    share: int
    lay: Mutate
    enter: Callable[[Path], object]


def _read_all(opened: WeightFile) -> None:
    for name in opened.tensors:
        opened.float32(name)


def _bytes(name: str, sound: Callable[[], bytes], low: int = 0, high: Callable[[], int] | None = None) -> Mutate:
    def lay(rng: random.Random, folder: Path) -> None:
        (folder / name).write_bytes(damaged(rng, sound(), low, high() if high else None))

    return lay


# Models


@cache
def _small_target() -> bytes:
    return _written(lambda path: formats.write_target(path))


@cache
def _small_drafter(flavour: int) -> bytes:
    return _written(lambda path: formats.write_draft(path, flavour))


def _written(make: Callable[[Path], object]) -> bytes:
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        make(Path(folder) / "a.gguf")
        return (Path(folder) / "a.gguf").read_bytes()


@cache
def _golden_target() -> bytes:
    return golden("tiny-Q4_K_M.gguf").read_bytes()


@cache
def _data(sound: Callable[[], bytes]) -> int:
    """Where a GGUF file's header ends."""
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        path = formats.write_bytes(Path(folder) / "a.gguf", sound())
        return min(info.offset for info in open_gguf(path).tensors.values())


def _open_target(folder: Path) -> None:
    opened = open_target(folder / "a.gguf", "cpu")
    opened.notes  # noqa: B018
    opened.template  # noqa: B018


def _answer(folder: Path) -> None:
    """Load it, and a few tokens."""
    loaded = load_target(folder / "a.gguf")
    engine = Engine(loaded, context_length=64)
    list(Conversation(engine, loaded.tokenizer, loaded.template).ask("hi", Knobs(max_tokens=3)))


def _lay_drafter(rng: random.Random, folder: Path) -> None:
    (folder / "a.gguf").write_bytes(damaged(rng, _small_drafter(rng.randrange(3))))


def _open_drafter(folder: Path) -> None:
    _, weights = open_drafter(folder / "a.gguf")
    _read_all(weights)


def _lay_folder(rng: random.Random, folder: Path) -> None:
    told = json.loads(json.dumps(formats.ZLAB))
    for _ in range(rng.choice((1, 1, 2, 4))):
        mutate_value(rng, told)
    text = json.dumps(told).encode()
    (folder / "config.json").write_bytes(text if rng.random() < 0.8 else damaged(rng, text))
    (folder / "model.safetensors").write_bytes(_drafter_weights())


@cache
def _drafter_weights() -> bytes:
    from safetensors.numpy import save

    return save(formats.weights(formats.DRAFT_SHAPES))


def _open_folder(folder: Path) -> None:
    open_drafter(folder)
    open_draft(folder, target())


def _lay_safetensors(rng: random.Random, folder: Path) -> None:
    told = json.loads(json.dumps({"a": formats.F32_4X4, "bb": formats.BF16_4, "__metadata__": {"format": "pt"}}))
    if rng.random() < 0.5:
        mutate_value(rng, told)
        (folder / "a.safetensors").write_bytes(formats.safetensors_file(told, 72))
    else:
        (folder / "a.safetensors").write_bytes(damaged(rng, formats.SMALL_SAFETENSORS))


# Turns and conversations


@cache
def _trace() -> str:
    return json.dumps(a_trace())


def _lay_trace(rng: random.Random, folder: Path) -> None:
    told = json.loads(_trace())
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        mutate_lines(rng, told)
    path = write(folder / "a.trace", told)
    if rng.random() < 0.2:
        path.write_bytes(damaged(rng, path.read_bytes()))
    elif rng.random() < 0.2:
        path.write_bytes(gzip.compress(damaged(rng, gzip.decompress(path.read_bytes())), 1, mtime=0))


def _replay(folder: Path) -> None:
    look_at(read_trace(folder / "a.trace"))


@cache
def _export() -> bytes:
    card = Card("Trees & <chains>", "Be brief.", "pair", "c0", 1_700_000_000.0, 1_700_000_100.0)
    question = Node("user", "Why *trees*?\n\n```py\nif a < b: pass\n```", id="q", created=1.0)
    answers = [
        Node("assistant", "Because `x`.", "q", "hm", "", a_report(), "a1", 2.0),
        Node("assistant", "", "q", "", "failed", None, "a2", 3.0),
    ]
    nodes = [question, *answers, Node("user", "other", id="q2", created=4.0), Node("user", "on", "a1", id="q3")]
    return to_json([StoredConversation(card, Branches(nodes, "a1"), {"a1": pack(a_turn())})])


def _lay_export(rng: random.Random, folder: Path) -> None:
    data = _export()
    if rng.random() < 0.2:
        data = damaged(rng, data)
    else:
        told: Any = json.loads(data)
        for _ in range(rng.choice((1, 1, 2, 4))):
            mutate_value(rng, told)
        data = json.dumps(told).encode()
    (folder / "a.json").write_bytes(data)


def _bring_in(folder: Path) -> None:
    conversations = from_json((folder / "a.json").read_bytes())
    store = Store(folder / "store")
    try:
        for one in conversations:
            card = import_file(store, one)
            again = store.stored(card.id)
            to_json([again])
            to_markdown(again)
            if len(one.branches.nodes) % 2:  # drawing the picture takes as long as everything else
                to_svg(again)
            store.delete(card.id)
            assert not store.has(card.id), "a conversation that cannot be deleted"
    finally:
        store.close()


@cache
def _database() -> bytes:
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as name:
        stored_file(Path(name), [(f"question {number}", "answer " * 30, "and?", "so") for number in range(4)])
        path = Path(name) / DATABASE
        _put_journal(path, _journal())
        return path.read_bytes()


def _put_journal(path: Path, rows: Mapping[str, bytes]) -> None:
    """What a killed app has left."""
    place, *steps = rows["turn"].splitlines()
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("PRAGMA foreign_keys = ON")
        db.execute("DELETE FROM app")
        texts = (text.decode(errors="replace") for text in (rows["typed"], place))
        db.execute("INSERT INTO app VALUES ('x', ?, ?, 0)", (*texts,))
        db.execute("INSERT INTO paste VALUES ('x', '[1]', 'pasted')")
        db.executemany("INSERT INTO step (app, line) VALUES ('x', ?)", [(line,) for line in steps])


def _lay_database(rng: random.Random, folder: Path) -> None:
    """Bytes anywhere, or values of a wrong type in the right place."""
    path = folder / DATABASE
    if rng.random() < 0.6:
        path.write_bytes(damaged(rng, _database(), 0, rng.choice((200, 4096, len(_database())))))
        return
    path.write_bytes(_database())
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA ignore_check_constraints = ON")
        table = rng.choice(TABLES)
        columns = [row[1] for row in db.execute(f"PRAGMA table_info({table})")]
        value = rng.choice(("", "x", -1, 2**62, 1e308, b"\xff\xfe", "\x00", None, "1e999", "q"))
        try:
            db.execute(f"UPDATE {table} SET {rng.choice(columns)} = ? WHERE rowid % 2 = ?", (value, rng.randrange(2)))
            if rng.random() < 0.3:
                db.execute("PRAGMA writable_schema = ON")
                db.execute(
                    "UPDATE sqlite_master SET sql = replace(sql, ?, ?)", rng.choice((("TEXT", "INT"), ("id", "ie")))
                )
        except sqlite3.Error:
            db.execute(f"DELETE FROM {table} WHERE rowid % 2")


def _open_store(folder: Path) -> None:
    """What the app does with it from its start to its end."""
    current = CurrentConversation(folder)
    try:
        current.rescue()
        current.problems()
        for entry in current.store.list()[:6]:
            current.open(entry.card.id)
            for node in current.branches.nodes:
                current.store.record(node.id)
            [current.store.record(message) for message in current.store.recorded(entry.card.id)]
        current.store.list("answer")
        current.store.list("%?")
        card, nodes = talk(current.store, "goes on", "yes")
        current.store.rename(card.id, "another")
        assert [node.content for node in current.store.branches(card.id).path] == ["goes on", "yes"], "not kept"
        current.store.delete(card.id)
        del nodes
    finally:
        current.close()


@cache
def _journal() -> dict[str, bytes]:
    place = Place("c", "q", "a", "the question", None, "pair")
    turn = b"".join(line + b"\n" for line in [msgspec.json.encode(place), *map(encode, lines(a_turn()))])
    return {"typed": b'{"draft": "half a thought [1]", "waiting": ["one that waits"]}\n', "turn": turn}


def _lay_journal(rng: random.Random, folder: Path) -> None:
    rows = dict(_journal())
    kind = rng.choice(("typed", "turn"))
    if rng.random() < 0.5:
        rows[kind] = damaged(rng, rows[kind])
    else:
        told = [json.loads(line) for line in rows[kind].splitlines()]
        mutate_lines(rng, told)
        rows[kind] = b"".join(json.dumps(line).encode() + b"\n" for line in told)
    (folder / DATABASE).write_bytes(_database())
    _put_journal(folder / DATABASE, {**rows, kind: rows[kind] or b"{}"})


# Settings

THEME = b"""name = "mine"
dark = true
primary = "#5ec8b0"
accent = "orange"
background = "#101214"
[variables]
block-cursor-background = "#5ec8b0 40%"
footer-key-foreground = "$accent"
scrollbar = "#202428"
"""
PRESET = b"""about = "a preset of mine"
[knobs]
mode = "tree"
budget = 22
temperature = 0.7
"""
CONFIG = b"""theme = "nord"
notify = "bell"
notify_after = 10.0
mouse = true
[knobs]
budget = 33
thinking = false
[keys]
"turn.retry" = "f10"
"""
HISTORY = b"".join(json.dumps({"prompt": f"prompt {number}\nof two lines"}).encode() + b"\n" for number in range(9))


def _lay_settings(rng: random.Random, folder: Path) -> None:
    for kind, name, sound in (
        ("themes", "mine.toml", THEME),
        ("presets", "mine.toml", PRESET),
        (".", "config.toml", CONFIG),
        (".", "prompts.jsonl", HISTORY),
    ):
        (folder / kind).mkdir(exist_ok=True)
        (folder / kind / name).write_bytes(_other_value(rng, sound) if rng.random() < 0.5 else damaged(rng, sound))


def _other_value(rng: random.Random, sound: bytes) -> bytes:
    """A line with another value, or the value of another line."""
    told = sound.splitlines(keepends=True)
    places = [place for place, line in enumerate(told) if b" = " in line] or [0]
    at, other = rng.choice(places), rng.choice(places)
    values = [b'"$nothing"', b'"transparent"', b'"nonsense"', b"1e308", b"[]", b"{}", b'""', b"-1", b"nan", b"true"]
    value = rng.choice([*values, told[other].partition(b" = ")[2].strip()])
    told[at] = told[at].partition(b" = ")[0] + b" = " + value + b"\n"
    return b"".join(told)


def _open_settings(folder: Path) -> None:
    for theme in load_themes([folder / "themes"]).themes:
        theme.to_color_system().generate()
    presets = Presets(folder / "presets")
    [preset.knobs for preset in presets]
    load_config({}, {}, user=folder / "config.toml", project=folder / "none.toml", key_rules=key_rules)
    history = History(folder)
    history.add("one more")
    history.previous("now")


def _open_gguf(folder: Path) -> None:
    _read_all(open_gguf(folder / "a.gguf"))


def _open_safetensors(folder: Path) -> None:
    _read_all(open_safetensors(folder / "a.safetensors"))


DOORS = (
    Door("GGUF header", 90, _bytes("a.gguf", lambda: formats.SMALL_GGUF), _open_gguf),
    Door("target header", 50, _bytes("a.gguf", _small_target, 8, lambda: _data(_small_target)), _open_target),
    Door("drafter header", 32, _lay_drafter, _open_drafter),
    Door("drafter folder", 32, _lay_folder, _open_folder),
    Door("safetensors header", 90, _lay_safetensors, _open_safetensors),
    Door("model", 1, _bytes("a.gguf", _golden_target, 8), _answer),
    Door("model header", 2, _bytes("a.gguf", _golden_target, 8, lambda: _data(_golden_target)), _answer),
    Door("trace", 12, _lay_trace, _replay),
    Door("import", 16, _lay_export, _bring_in),
    Door("database", 8, _lay_database, _open_store),
    Door("journal", 8, _lay_journal, _open_store),
    Door("settings", 16, _lay_settings, _open_settings),
)
