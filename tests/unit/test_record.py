"""Records of turns are read as they were written, unfinished ones too; anything else is one line of error."""

from __future__ import annotations

import zlib

import pytest

from dflash_core import record as record_module
from dflash_core.errors import FormatError
from dflash_core.events import StepEvent
from dflash_core.knobs import Knobs
from dflash_core.memory import Component, MemoryBreakdown
from dflash_core.record import (
    VERSION,
    WHOLE,
    End,
    Line,
    Loaded,
    Start,
    Step,
    Turns,
    assemble,
    decode,
    encode,
    lines,
    pack,
    unpack,
)
from support.turns import DRAFTS, ROOT, WANTED, step_of, tree_of, turn_of

BRANCHED = tree_of((0, 0), (1, 0), (0, 1), (3, 0), accepted=(0, 3))
STEPS = (
    step_of(),
    step_of(BRANCHED, bonus=9),
    step_of(knobs=Knobs(drafting="auto up to 3", p_min=0.25, temperature=0.7)),
)


def test_a_record_survives_packing_exactly() -> None:
    record = turn_of(STEPS, thinking_steps=2)
    assert unpack(pack(record)) == record
    assert list(assemble(lines(record))) == [record]
    assert all(isinstance(event, StepEvent) for event in record.steps)
    assert record.thinking == "t100 t1 t4 t7 "
    assert record.text == "t2 t9 t1 t4 t7 "


def test_texts_are_told_once_and_cover_every_id() -> None:
    told: list[Line] = []
    record = turn_of(STEPS, watchers=(told.append,))
    texts = [line.texts for line in told if isinstance(line, Step)]
    assert set(texts[0]) == {1, 2, 3, 4, 5, 6, 7, 8, 9}, "the candidates too, without the root of the prefill's line"
    assert texts[1] == texts[2] == {}
    assert {ROOT, WANTED} <= set(record.texts)
    assert record.token_text(5) == "t5 "
    assert record.token_text(55) == "<id 55>"


def test_a_turn_without_its_end_is_told_apart() -> None:
    record = turn_of(STEPS)
    cut = [line for line in lines(record) if not isinstance(line, End)]
    [left] = assemble(cut[:-1])
    assert left.steps == record.steps[:2]
    assert not left.ended
    assert left.report is None
    assert unpack(pack(left)) == left
    [first, second] = assemble([*cut, *lines(record)])
    assert (first.ended, second.ended) == (False, True)


def test_steps_keep_the_knobs_that_they_ran_with() -> None:
    record = unpack(pack(turn_of(STEPS)))
    assert [step.knobs.budget for step in record.steps] == [22, 22, 3]
    assert record.knobs.budget == 22


def test_the_rank_of_the_bonus_token() -> None:
    assert step_of().bonus_rank == 0
    assert step_of(BRANCHED, bonus=6).bonus_rank == 2
    assert step_of(BRANCHED, bonus=99).bonus_rank is None, "beyond the candidates"
    whole = step_of(tree_of((0, 0), (1, 0), (2, 0), accepted=(0, 1, 2, 3)), bonus=1)
    assert whole.bonus_rank is None, "nothing was drafted there"
    assert len(DRAFTS.tokens) == whole.accepted_depth


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "truncated"),
        (b"[1]", "object"),
        (b'{"line":"other"}', "other"),
        (b'{"line":"turn","created":"x"}', "target"),
        (
            encode(turn_of(STEPS).start).replace(b'"drafting":"auto"', b'"drafting":7'),
            "knobs.drafting: found a whole number, expected a string",
        ),
        (encode(turn_of(STEPS).start).replace(b'"drafting":"auto"', b'"drafting":"tree 0"'), "N from 1 to 256"),
        (b"\xff\xfe", "JSON"),
    ],
)
def test_a_line_that_is_none_names_its_field(data: bytes, says: str) -> None:
    with pytest.raises(FormatError) as refusal:
        decode(data)
    assert says in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_what_is_no_packed_record(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = pack(turn_of(STEPS))
    with pytest.raises(FormatError, match="version '3', expected 2"):
        unpack(packed.replace(b"%d\n" % VERSION, b"3\n", 1))
    with pytest.raises(FormatError, match="does not unpack"):
        unpack(packed[:-9])
    bomb = zlib.compress(bytes(4_000_000))
    monkeypatch.setattr(record_module, "FREE_BYTES", 2_000_000)
    with pytest.raises(FormatError, match="does not unpack: it is cut off, or longer than 2,000,000 bytes"):
        unpack(b"%d\n" % VERSION + bomb)
    twice = b"\n".join(map(encode, [*lines(turn_of(STEPS)), *lines(turn_of(STEPS))]))
    for body in (b"{}", encode(STEPS_LINE), b"[" * 100_000, twice):
        with pytest.raises(FormatError):
            unpack(b"%d\n" % VERSION + zlib.compress(body))


def older(data: bytes) -> bytes:
    """A line as version 1 wrote it."""
    for new, old in ((b'"bonus":', b'"wanted":'), (b'"memory":', b'"ledger":'), (b'"components":', b'"owners":')):
        data = data.replace(new, old)
    return data


def test_records_of_version_1_open_with_all_they_hold() -> None:
    """Field names have changed since; the user's text must not be taken for one."""
    said = step_of(BRANCHED, bonus=9)
    record = turn_of([said], prompt='{"wanted": 1, "owners": 2}')
    packed = b"1\n" + zlib.compress(b"\n".join(older(encode(line)) for line in lines(record)))
    assert b"bonus" not in zlib.decompress(packed[2:])
    assert unpack(packed) == record
    loaded = Loaded("a pair", 4096, MemoryBreakdown("this machine", (Component("target", 5, "1 layer", 6),), 10, 5))
    assert decode(older(encode(loaded))) == loaded


STEPS_LINE = next(line for line in lines(turn_of(STEPS)) if isinstance(line, Step))


def test_turns_come_back_from_their_packed_form() -> None:
    records = [turn_of(STEPS[: 1 + n % 3], prompt=f"question {n}") for n in range(3 * WHOLE)]
    turns = Turns(records)
    assert len(turns) == len(records)
    assert list(turns) == records
    assert turns[-1] is records[-1] or turns[-1] == records[-1]
    assert turns[0] is not records[0], "an old one was packed"
    assert turns[2:4] == records[2:4]
    assert isinstance(turns[0].start, Start)
    with pytest.raises(IndexError):
        turns[len(records)]
