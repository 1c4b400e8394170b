from __future__ import annotations

import unicodedata
from pathlib import Path

import gguf
import numpy as np
import pytest
import regex
import tokenizers
from hypothesis import example, given, settings
from hypothesis import strategies as st
from text_data import DATA, END_THINK, IM_END, IM_START, THINK, TOKENIZER_JSON, metadata, tiny

from dflash_core.errors import ContextError, DFlashError, FormatError, UnsupportedError
from dflash_core.text import pieces
from dflash_core.text.pieces import KINDS, LONGEST_RUN
from dflash_core.text.pre_tokenizers import PRE_TOKENIZERS
from dflash_core.text.tokenizer import Tokenizer
from support.golden import goldens
from support.grids import full

ORACLE = tokenizers.Tokenizer.from_file(str(TOKENIZER_JSON))
ORACLE.normalizer = tokenizers.normalizers.NFC()  # as in the files that Qwen publishes
composed = ORACLE.normalizer.normalize_str
TINY = tiny()
NAMES = sorted(TINY.special)
GOLDEN_FILES = goldens("tiny-[!d]*.gguf") + goldens("tiny-dflash*-bf16.gguf")  # other drafters bring no tokenizer

# Text as people type it, then anything at all; unassigned characters are left out, Unicode versions differ in them.
ANY = st.characters(exclude_categories=["Cs", "Cn"])
TYPED = st.text(st.sampled_from(" \t\r\n\u3000'sStTllVdE019٣.,!?<>|aé\u0301ñक\u093f中🙂\u200d\ufe0f"), max_size=40)
TEXT = TYPED | st.text(ANY, max_size=40)
WITH_SPECIALS = st.lists(TEXT | st.sampled_from(NAMES), max_size=8).map("".join)


@settings(deadline=None, max_examples=400)
@given(WITH_SPECIALS)
def test_ids_are_those_of_the_library_with_its_own_file(text: str) -> None:
    ids = TINY.encode(text)
    assert ids == ORACLE.encode(text, add_special_tokens=False).ids
    assert TINY.decode(ids) == "".join(
        composed(t) for t in _cut(text) if t not in NAMES or t in ("<think>", "</think>")
    )


@settings(deadline=None, max_examples=200)
@given(WITH_SPECIALS)
def test_ids_and_text_are_those_of_transformers(text: str) -> None:
    import transformers

    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=ORACLE, clean_up_tokenization_spaces=False)
    ids = TINY.encode(text)
    assert ids == fast.encode(text, add_special_tokens=False)
    assert TINY.decode(ids) == fast.decode(ids, skip_special_tokens=True)


@settings(deadline=None, max_examples=400)
@given(WITH_SPECIALS)
def test_plain_encoding_never_gives_a_special_token_and_loses_nothing(text: str) -> None:
    ids = TINY.encode(text, special=False)
    assert not set(ids) & set(TINY.special.values())
    assert TINY.decode(ids) == composed(text)


@settings(deadline=None, max_examples=400)
@given(WITH_SPECIALS | st.sampled_from([*NAMES, "\u1112\u1161\u11ab"]).map(lambda name: 50 * name))
def test_no_text_has_fewer_tokens_than_the_least(text: str) -> None:
    assert TINY.min_tokens(text) <= min(len(TINY.encode(text)), len(TINY.encode(text, special=False)))
    assert bool(TINY.min_tokens(text)) == bool(text)


def split(pre: str, text: str) -> list[str]:
    """The parts of a text, by the regular expressions alone."""
    parts = [text]
    for expression in PRE_TOKENIZERS[pre].splits:
        parts = [piece for part in parts for piece in regex.split(f"({expression})", part) if piece]
    return parts


@settings(deadline=None, max_examples=400)
@given(st.sampled_from(sorted(PRE_TOKENIZERS)), TEXT)
@example("qwen2", "<think>")
def test_splits_are_those_of_the_regular_expression(pre: str, text: str) -> None:
    """No merge crosses a border of the split, so encoding the parts one by one gives the ids of the whole."""
    text = composed(text) if PRE_TOKENIZERS[pre].composes else text
    parts = split(pre, text)
    assert "".join(parts) == text
    tokenizer = Tokenizer.from_metadata(metadata(pre=pre))
    pieces = [piece for piece, _ in ORACLE.pre_tokenizer.pre_tokenize_str(text)] if pre == "qwen35" else None
    if pieces is not None:
        assert len(pieces) == len(parts)
    whole = tokenizer.encode(text, special=False)  # "<think>" is text here, and may be drawn
    assert whole == [id for part in parts for id in tokenizer.encode(part, special=False)]


@pytest.mark.parametrize(
    ("pre", "parts"),
    [
        ("llama-bpe", ["It", "'S", " ", "123", "45", " don", "'t", "  ", " x", "\n\n", "y"]),
        ("gpt-4o", ["It'S", " ", "123", "45", " don't", "  ", " x", "\n\n", "y"]),
        ("tekken", ["It", "'S", " ", "1", "2", "3", "4", "5", " don", "'t", "  ", " x", "\n\n", "y"]),
        ("smollm", ["It", "'", "S", " ", "1", "2", "3", "4", "5", " don", "'t", "  ", " x", "\n", "\n", "y"]),
        ("gpt-2", ["It", "'", "S", " 12345", " don", "'t", "  ", " x", "\n", "\n", "y"]),
        ("laguna", ["It", "'S", " ", "1", "2", "3", "4", "5", " don", "'t", "  ", " x", "\n\n", "y"]),
        ("seed-coder", ["It", "'S", " ", "1", "2", "3", "4", "5", " don", "'t", "  ", " x", "\n\n", "y"]),
        ("qwen2", ["It", "'S", " ", "1", "2", "3", "4", "5", " don", "'t", "  ", " x", "\n\n", "y"]),
    ],
)
def test_how_a_text_is_split(pre: str, parts: list[str]) -> None:
    assert split(pre, "It'S 12345 don't   x\n\ny") == parts


def test_words_in_which_case_changes() -> None:
    """o200k begins a new part where upper case follows lower case."""
    assert split("gpt-4o", "HelloWorld HTMLPage") == ["Hello", "World", " HTMLPage"]
    assert split("gpt-4o", "a!/\n") == ["a", "!/\n"]
    assert split("qwen2", "a!/\n") == ["a", "!/\n"]
    assert split("seed-coder", "a!/\n") == ["a", "!/", "\n"]
    assert split("tekken", "HelloWorld") == ["Hello", "World"]
    assert split("llama-bpe", "HelloWorld") == ["HelloWorld"]


def test_a_word_that_is_a_token_is_not_merged() -> None:
    """Where the models' own tokenizers take it whole, even if no merge leads to it."""
    tokens = list(metadata()["tokenizer.ggml.tokens"])  # type: ignore[call-overload]
    types = list(metadata()["tokenizer.ggml.token_type"])  # type: ignore[call-overload]
    for pre, whole in (("llama-bpe", True), ("tekken", True), ("qwen2", False)):
        of = Tokenizer.from_metadata(metadata(tokens=[*tokens, "qzxqzx"], token_type=[*types, 1], pre=pre))
        assert (of.encode("qzxqzx") == [len(tokens)]) == whole


def test_rare_bytes_may_have_no_token() -> None:
    """Text leaves them out; a byte that text needs must have one."""
    tokens = list(metadata()["tokenizer.ggml.tokens"])  # type: ignore[call-overload]
    rare = {0x04: "\u0104", 0xF5: "\u00f5"}
    without = [f"unused {at}" if token in rare.values() else token for at, token in enumerate(tokens)]
    assert without != tokens
    of = Tokenizer.from_metadata(metadata(tokens=without, pre="smollm"))
    assert of.decode(of.encode("a\x04b")) == "ab"
    with pytest.raises(FormatError, match="no token for the byte 0x61"):
        Tokenizer.from_metadata(metadata(tokens=["unused" if token == "a" else token for token in tokens]))


def test_digits_come_one_by_one() -> None:
    ids = TINY.encode("in 20250113")
    assert [TINY.token_text(id) for id in ids][-8:] == list("20250113")


def test_llama_cpp_cases_agree_in_what_does_not_depend_on_the_vocabulary() -> None:
    """The ids are of the real vocabulary, in which the digits are 15..24: each stands alone, in the text's order."""
    cases = (DATA / "qwen35_tokenizer.inp").read_text(encoding="utf-8").split("\n__ggml_vocab_test__\n")
    expected = (DATA / "qwen35_tokenizer.out").read_text(encoding="utf-8").split("\n")
    checked = 0
    for text, line in zip(cases, expected):
        ids = [int(id) for id in line.split()]
        parts = split("qwen35", text)
        assert len(parts) <= len(ids)
        assert [id - 15 for id in ids if 15 <= id < 25] == [int(c) for c in text if c.isascii() and c.isdigit()]
        if all(len(part.strip()) <= 1 or part.strip() in ("Hello", "world", "this", "is") for part in parts):
            assert len(parts) == len(ids), text  # every part a single character or a word with a token of its own
            checked += 1
        assert TINY.decode(TINY.encode(text)) == composed(text)
    assert len(cases) >= 40
    assert checked >= 10


@pytest.mark.parametrize("pre", ["qwen2", "qwen35"])
def test_text_is_composed_first(pre: str) -> None:
    tokenizer = Tokenizer.from_metadata(metadata(pre=pre))
    for text in ("Äpfel für Zoë", "Tiếng Việt", "한국어 문장"):
        decomposed = unicodedata.normalize("NFD", text)
        assert tokenizer.encode(decomposed) == tokenizer.encode(text)
        assert tokenizer.decode(tokenizer.encode(decomposed)) == text


def test_marks_belong_to_words_in_qwen35_but_not_in_qwen2() -> None:
    text = "e\u0301e"
    assert split("qwen35", text) == [text]
    assert split("qwen2", text) == ["e", "\u0301e"]


def test_half_a_surrogate_pair_does_not_stop_encoding() -> None:
    assert TINY.decode(TINY.encode("a\ud83db")) == "a\ufffdb"


def test_both_halves_of_a_surrogate_pair_are_a_character() -> None:
    assert TINY.encode("a\ud83d\ude42b") == TINY.encode("a🙂b")
    assert TINY.decode(TINY.encode("\ude42\ud83d\ud83d\ude42")) == "\ufffd\ufffd🙂"


@pytest.mark.parametrize("pre", ["qwen35", "gpt-4o"])
@pytest.mark.parametrize(("letter", "what"), [(" ", "blanks"), ("A", "letters")])
def test_a_run_that_the_expressions_cannot_take_is_refused(pre: str, letter: str, what: str) -> None:
    """Ten million blanks, and upper-case letters for some, stop the library in the middle of its own code; half of that
    is the most that is let through."""
    tokenizer = Tokenizer.from_metadata(metadata(pre=pre))
    with pytest.raises(ContextError, match=f"^the text has a run of more than 4,000,000 {what}, the most that can"):
        tokenizer.encode("b" + (LONGEST_RUN + 1) * letter + "c")


@pytest.mark.parametrize("longest", [4000, full(LONGEST_RUN)])
def test_a_long_text_of_short_runs_is_taken(longest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Longer than the longest run that is let through."""
    monkeypatch.setattr(pieces, "LONGEST_RUN", longest)
    text = "AAAAAAA 1 " * (longest // 10 + 1)
    assert len(text) > longest
    assert Tokenizer.from_metadata(metadata(pre="qwen35")).encode(text)


def test_the_longest_special_name_wins() -> None:
    tokens = list(metadata()["tokenizer.ggml.tokens"])  # type: ignore[call-overload]
    types = [1] * 762 + [3] * 6 + [4, 4]
    tokenizer = Tokenizer.from_metadata(metadata(tokens=[*tokens, "<x>", "<x>y"], token_type=types))
    assert tokenizer.encode("<x>y<x>") == [769, 768]


def test_end_tokens() -> None:
    assert TINY.stop_ids == {762, IM_END}
    assert Tokenizer.from_metadata(metadata(eot_token_id=3)).stop_ids == {762, IM_END, 3}
    # Without types, the ids that keys name are control tokens still; what only has a name is ordinary text.
    bare = Tokenizer.from_metadata(metadata(token_type=None))
    assert bare.stop_ids == {IM_END}
    assert IM_END in bare.hidden
    assert IM_END not in bare.encode("<|im_end|>", special=False)


def test_mask_token() -> None:
    assert TINY.mask_token_id is None
    assert Tokenizer.from_metadata(metadata(mask_token_id=765)).mask_token_id == 765


def test_padding_rows_are_no_text() -> None:
    keys = metadata()
    tokens, types = list(keys["tokenizer.ggml.tokens"]), list(keys["tokenizer.ggml.token_type"])  # type: ignore[call-overload]
    tokenizer = Tokenizer.from_metadata(metadata(tokens=[*tokens, "[PAD768]"], token_type=[*types, 5]))
    assert tokenizer.vocab_size == 769
    assert 768 not in tokenizer.encode("[PAD768]")
    assert tokenizer.decode([768, 769, 10**9]) == ""
    assert tokenizer.token_text(768) == "[PAD768]"
    assert tokenizer.token_text(769) == "<id 769>"


@pytest.mark.parametrize(
    ("text", "shown"),
    [(" the", "␣the"), ("\n", "\\n"), ("\t", "\\t"), ("\x1b", "\\x1b"), ("a", "a"), ("<|im_end|>", "<|im_end|>")],
)
def test_a_token_on_one_line(text: str, shown: str) -> None:
    (id,) = TINY.encode(text)
    assert TINY.token_text(id) == shown


def test_every_token_can_be_shown() -> None:
    for id in range(TINY.vocab_size):
        shown = TINY.token_text(id)
        assert shown
        assert shown.isprintable()
    assert "\\xe2" in [TINY.token_text(id) for id in range(TINY.vocab_size)]


def test_a_lone_combining_mark_is_shown_on_a_circle() -> None:
    keys = metadata()
    tokens, types = list(keys["tokenizer.ggml.tokens"]), list(keys["tokenizer.ggml.token_type"])  # type: ignore[call-overload]
    tokenizer = Tokenizer.from_metadata(metadata(tokens=[*tokens, "Ìģ"], token_type=[*types, 1]))
    assert tokenizer.token_text(768) == "◌\u0301"


def test_numpy_values_are_read_like_lists() -> None:
    keys = metadata()
    tokenizer = Tokenizer.from_metadata(
        metadata(
            tokens=np.array(keys["tokenizer.ggml.tokens"], dtype=object),
            token_type=np.array(keys["tokenizer.ggml.token_type"], dtype=np.int32),
            eos_token_id=np.uint32(IM_END),
        )
    )
    assert tokenizer.encode("hello <think>") == TINY.encode("hello <think>")
    assert tokenizer.stop_ids == TINY.stop_ids


@pytest.mark.parametrize("file", GOLDEN_FILES, ids=lambda file: file.name)
def test_the_golden_files_hold_this_tokenizer(file: Path) -> None:
    fields = gguf.GGUFReader(file).fields
    keys = {key: field.contents() for key, field in fields.items() if key.startswith("tokenizer.")}
    tokenizer = Tokenizer.from_metadata(keys)
    text = "<|im_start|>user\nÄpfel 12<|im_end|>\n<think>"
    assert tokenizer.encode(text) == ORACLE.encode(text, add_special_tokens=False).ids
    assert (tokenizer.special, tokenizer.stop_ids) == (TINY.special, TINY.stop_ids)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": None}, "tokenizer.ggml.model is missing"),
        ({"model": 3}, "tokenizer.ggml.model is 3"),
        ({"pre": None}, "tokenizer.ggml.pre is missing"),
        ({"tokens": None}, "tokenizer.ggml.tokens is missing"),
        ({"tokens": [1, 2]}, "begins with int"),
        (
            {"tokens": ["a", "b"], "eos_token_id": None},
            "token_type has 768 entries, expected 2",
        ),
        ({"tokens": ["a"] * 768}, "no token for the byte"),
        ({"merges": None}, "tokenizer.ggml.merges is missing"),
        ({"merges": ["a"]}, "merge 0 is 'a'"),
        ({"merges": ["a b c"]}, "merge 0"),
        ({"token_type": [1]}, "has 1 entries"),
        ({"token_type": "1"}, "expected a list of int"),
        ({"eos_token_id": 768}, "eos_token_id is 768, expected an id below 768"),
        ({"eos_token_id": -2}, "eos_token_id is -2"),
        ({"eos_token_id": "x"}, "eos_token_id is 'x'"),
        ({"eos_token_id": "\ud800"}, r"eos_token_id is '\ud800'"),
    ],
)
def test_malformed_metadata_is_refused_in_one_line(changes: dict[str, object], words: str) -> None:
    with pytest.raises(FormatError) as caught:
        Tokenizer.from_metadata(metadata(**changes))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("none", [-1, (1 << 32) - 1])
def test_what_converters_write_for_nothing_and_flags_as_numbers(none: int) -> None:
    kinds = ("eos", "eot", "bos", "mask", "padding")
    found = Tokenizer.from_metadata(metadata(**{f"{kind}_token_id": none for kind in kinds}, add_bos_token=0))
    assert (found.bos_token_id, found.eos_token_id, found.adds_bos) == (None, None, False)
    assert found.stop_ids == Tokenizer.from_metadata(metadata(eos_token_id=None)).stop_ids
    assert Tokenizer.from_metadata(metadata(add_bos_token=1, bos_token_id=IM_START)).adds_bos


@pytest.mark.parametrize(
    ("other", "pre"),
    [
        ("llama3", "llama-bpe"),
        ("llama-v3", "llama-bpe"),
        ("pixtral", "llama-bpe"),
        ("deepseek-r1-qwen", "qwen2"),
        ("refact", "smollm"),
        ("granite-docling", "gpt-2"),
    ],
)
def test_other_names_of_a_pre_tokenizer(other: str, pre: str) -> None:
    text = "It's 12345 don't"
    found, expected = (Tokenizer.from_metadata(metadata(pre=name)) for name in (other, pre))
    assert found.encode(text) == expected.encode(text)
    assert found.adds_bos == expected.adds_bos


@pytest.mark.parametrize("pre", ["smaug-bpe", "dbrx", "glm4", "chatglm-bpe"])
def test_splits_of_llama_3_without_its_other_rules(pre: str) -> None:
    of, llama = PRE_TOKENIZERS[pre], PRE_TOKENIZERS["llama-bpe"]
    assert of.splits == llama.splits
    assert (of.whole_words, of.bos) == (False, False)


def test_merges_that_do_not_fit_the_tokens_are_refused_when_they_are_built() -> None:
    tokenizer = Tokenizer.from_metadata(metadata(merges=["zq qz"]))
    for use in (tokenizer.prepare, lambda: tokenizer.encode("a")):
        with pytest.raises(FormatError, match=r"the merges do not fit the vocabulary: .*zq") as caught:
            use()
        assert "\n" not in str(caught.value)


def test_a_template_that_is_not_text_is_refused() -> None:
    with pytest.raises(FormatError, match="chat_template is 1"):
        Tokenizer.from_metadata(metadata() | {"tokenizer.chat_template": 1})


@pytest.mark.parametrize(("changes", "name"), [({"model": "t5"}, "t5"), ({"pre": "chatglm"}, "chatglm")])
def test_other_tokenizers_are_refused_by_name(changes: dict[str, object], name: str) -> None:
    with pytest.raises(UnsupportedError, match=f"{name}.*supported: .*; use a.* model$") as caught:
        Tokenizer.from_metadata(metadata(**changes))
    known = PRE_TOKENIZERS if "pre" in changes else KINDS
    assert all(one in str(caught.value) for one in known)


VALUES = st.none() | st.integers() | st.floats() | st.text(max_size=5) | st.booleans()
VALUES |= st.lists(st.integers() | st.text(max_size=5), max_size=5)


@settings(deadline=None, max_examples=200)
@given(st.dictionaries(st.sampled_from(sorted(key.rpartition(".")[2] for key in metadata())), VALUES, max_size=3))
def test_any_metadata_is_read_or_refused(changes: dict[str, object]) -> None:
    try:
        tokenizer = Tokenizer.from_metadata(metadata(**changes))
    except DFlashError:
        return
    assert tokenizer.decode(tokenizer.encode("fine 12")) == "fine 12"


def test_special_ids() -> None:
    assert (TINY.special["<|im_start|>"], TINY.special["<think>"], TINY.special["</think>"]) == (
        IM_START,
        THINK,
        END_THINK,
    )


def _cut(text: str) -> list[str]:
    return [part for part in regex.split("(" + "|".join(map(regex.escape, NAMES)) + ")", text) if part]
