"""What must agree whenever nothing is under way: prompt, journal, store, tree, screen and decoder."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec

from dflash_core.clean import clean, encodable
from dflash_core.engine import Engine
from dflash_tui.app import DFlashApp
from dflash_tui.application.conversations.journal import Typed

WORD = re.compile(r"[a-z]\d+(?:y\d+)?x\d+x")


def rendered(app: DFlashApp) -> int:
    """The rows of every screen, drawn as for a terminal; raises what drawing raises."""
    return sum(len(strip) for strip in app.screen._compositor.render_strips())


def journal_of(app: DFlashApp) -> Typed:
    """What the app has recorded as typed."""
    current = app.chat.state.conversation
    query, row = "SELECT typed FROM app WHERE id = ?", (current.journal._app,)
    found = current.store.read(lambda db: db.execute(query, row).fetchone())
    return msgspec.json.decode(found[0], type=Typed) if found else Typed()


def at_rest(app: DFlashApp) -> bool:
    """No turn runs, and no message waits for one."""
    chat = app.chat
    return not (chat.state.busy or chat.state.waiting or chat.state.loading or chat.state.experiment is not None)


def disagreements(app: DFlashApp) -> Iterator[str]:
    """A line for each pair that does not agree. Something may still be under way, so callers ask again later."""
    chat, current = app.chat, app.chat.state.conversation
    typed = chat.prompt.text
    if journal_of(app).draft != ("" if typed.strip() in ("", "/") else encodable(typed)):  # these are not stored
        yield "the journal has another draft than the prompt"
    if not at_rest(app):
        return
    path = [(node.role, node.content) for node in current.branches.path]
    if current.card is not None and current.store.on_disk:
        stored = current.store.branches(current.card.id)
        if stored.nodes != current.branches.nodes:
            yield "the store has other messages than the tree"
        if stored.leaf != current.branches.leaf:
            yield "the store stands at another leaf than the tree"
    yield from _shown(app)
    if chat.state.session is not None:
        held = [(one.role, one.content) for one in chat.state.session.conversation.messages if one.role != "system"]
        if held != path:
            yield f"the decoder's conversation has {len(held)} messages, the path {len(path)}, or other ones"
        yield from _decoder(app)


def _shown(app: DFlashApp) -> Iterator[str]:
    transcript, branches = app.chat.transcript, app.chat.state.conversation.branches
    asked = [node.id for node in branches.path if node.role == "user"]
    shown = [block for block in transcript.turns if block.node]
    if [block.node for block in shown] != asked[len(asked) - len(shown) :]:
        yield "the screen shows other messages than the path"
    if len(asked) - len(shown) > len(transcript.earlier.texts):
        yield "messages of the path are not on the screen"
    for block in shown:
        if block.prompt != branches[block.node].content:
            yield "a message reads otherwise than it is kept"
        nodes = [answer.node for answer in block.answers if answer.node]
        if nodes != list(branches.children(block.node)):
            yield "a message has other answers on the screen than in the tree"
        for answer in block.answers:
            if answer.node and answer.text != clean(branches[answer.node].content).lstrip("\n"):
                yield "an answer reads otherwise than it is kept"


def _decoder(app: DFlashApp) -> Iterator[str]:
    engine = getattr(app.chat.state.session, "_engine", None)
    if not isinstance(engine, Engine):
        return
    if engine.session.length != len(engine._committed):
        yield f"the session holds {engine.session.length} positions, the engine counts {len(engine._committed)}"
    if engine.session.length > engine.context_length:
        yield "the session is longer than the context"


def just_ended(app: DFlashApp) -> Iterator[str]:
    """After a turn and before anything else: the decoder holds that turn's ids and nothing more."""
    engine, record = getattr(app.chat.state.session, "_engine", None), app.chat.state.turn.record
    if isinstance(engine, Engine) and record is not None and at_rest(app):
        tokens = [token for event in record.events for token in event.tokens]
        ids, held = (*record.start.prompt_ids, *tokens), tuple(engine._committed)
        # Of a turn that was stopped in its prompt there is a part.
        if held not in (ids, ids[:-1]) and (tokens or ids[: len(held)] != held):
            yield f"the decoder holds {len(held)} ids, the turn has {len(ids)}, or other ones"


class Words:
    """Every word that was typed: in the prompt, sent, or deleted by its user."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.drafted: set[str] = set()
        self.sent: set[str] = set()
        self.homes: dict[str, str] = {}  # the conversation that a sent word is in

    def typed(self, text: str) -> None:
        """Add the words of text that went to the prompt."""
        self.drafted.update(WORD.findall(text))

    def forget(self, app: DFlashApp, before: set[str]) -> None:
        """The user may have deleted, or torn apart, some of the words that were in the prompt `before`."""
        self.drafted -= before - set(WORD.findall(app.chat.prompt.text))

    def missing(self, app: DFlashApp) -> set[str]:
        """Words of the prompt that are lost. Those that were sent are looked for in the store from now on."""
        gone = self.drafted - set(WORD.findall(app.chat.prompt.text))
        if gone:
            kept = self._kept(app)
            self.sent |= gone & kept
            self.drafted -= gone & kept
            gone -= kept
        return gone

    def audit(self, app: DFlashApp) -> set[str]:
        """Sent words that are lost. Those of a deleted conversation do not count."""
        if not at_rest(app):
            return set()
        stored, conversations = self.stored()
        for word in self.sent & stored.keys():
            self.homes[word] = stored[word]
        deleted = {word for word in self.sent if self.homes.get(word, "") not in {"", *conversations}}
        self.sent -= deleted
        never = {word for word in self.sent if word not in self.homes}  # a command, or refused: the arrow keys have it
        return (self.sent - stored.keys() - never) | (never - self._kept(app))

    def stored(self) -> tuple[dict[str, str], set[str]]:
        """Each word of the database with its conversation, and the conversations, read independently of the store."""
        with closing(sqlite3.connect(f"file:{self.folder}/conversations.db?mode=ro", uri=True)) as db:
            rows = db.execute("SELECT conversation, content FROM message WHERE role = 'user'").fetchall()
            conversations = {id for (id,) in db.execute("SELECT id FROM conversation")}
        return {word: id for id, text in rows for word in WORD.findall(text)}, conversations

    def _kept(self, app: DFlashApp) -> set[str]:
        """Where a user finds text again: prompt, journal, store, the arrow keys, the conversation on the screen."""
        typed = journal_of(app)
        texts = [app.chat.prompt.text, typed.draft, *typed.waiting, *app.chat.state.past.entries]
        return set(WORD.findall("\n".join(texts))) | self.stored()[0].keys()


def damaged(folder: Path) -> str:
    """What SQLite finds wrong with the database; empty where nothing is."""
    with closing(sqlite3.connect(f"file:{folder}/conversations.db?mode=ro", uri=True)) as db:
        [(said,), *_] = db.execute("PRAGMA quick_check").fetchall()
    return "" if said == "ok" else str(said)
