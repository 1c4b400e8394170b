"""What is wrong with JSON of the wrong type, in plain words and not in those of the library that reads it."""

from __future__ import annotations

from typing import Literal

import msgspec
import pytest

from dflash_core.damaged import in_words, misread


class Inner(msgspec.Struct):
    name: str


class Outer(msgspec.Struct, forbid_unknown_fields=True):
    count: int | None = None
    many: list[int] = []
    kind: Literal["a", "b"] = "a"
    by_name: dict[str, float] = {}
    pair: tuple[int, int] = (1, 2)
    on: bool = False
    inner: Inner | None = None
    stop: str | list[str] | None = None


WRONG = {
    '{"count": "3"}': "count: found a string, expected a whole number",
    '{"count": 1.5}': "count: found a number, expected a whole number",
    '{"many": [1, null]}': "many[1]: found null, expected a whole number",
    '{"kind": "c"}': "kind: found 'c', which is none of its values",
    '{"by_name": {"x": "y"}}': "by_name[...]: found a string, expected a number",
    '{"by_name": {"x": 1e400}}': "by_name[...]: number out of range",
    '{"pair": [1]}': "pair: expected an array of length 2",
    '{"on": 1}': "on: found a whole number, expected true or false",
    '{"inner": {}}': "inner.name is missing; add it",
    '{"cuont": 1}': "cuont is no field; check its spelling",
    '{"stop": {}}': "stop: found an object, expected a string or an array",
    "[]": "found an array, expected an object",
}


@pytest.mark.parametrize("text", WRONG)
def test_what_is_wrong_in_words(text: str) -> None:
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.json.decode(text, type=Outer)
    assert in_words(caught.value) == WRONG[text]
    assert "`" in str(caught.value) or "'" in WRONG[text] or "range" in WRONG[text], "the library's own words"


def test_keys_of_another_type_have_the_path_of_their_object() -> None:
    for text, kind, path in (('{"a": 1}', dict[int, int], ""), ('{"b": {"a": 1}}', dict[str, dict[int, int]], "[...]")):
        with pytest.raises(msgspec.ValidationError) as caught:
            msgspec.json.decode(text, type=kind)
        assert misread(caught.value) == ("found a string, expected a whole number", path)


def test_other_errors_keep_their_words() -> None:
    for error in (ValueError("budget is 0, expected 1 or more"), UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad")):
        assert in_words(error) == str(error)
