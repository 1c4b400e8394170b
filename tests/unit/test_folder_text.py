"""The tokenizer, template and sampling of a folder: ids are those of the tokenizers library for the same file."""

from __future__ import annotations

import json
from typing import Any

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers

from dflash_core.errors import DFlashError
from dflash_core.text.pre_tokenizers import PRE_TOKENIZERS
from dflash_core.text.tokenizer import Tokenizer
from dflash_core.text.tokenizer_json import tokenizer_settings
from support.folders import END, MARK, tokenizer

TEXTS = (
    "hello world", "  two  spaces\n\n\tand a tab ", "don't we'LL 12345 0.5", "naïve café e\u0301 ﬁ Ａ",
    "漢字 кириллица 🙂👩‍👩‍👧",
    f"{END}hello{MARK}\n<|im_start|>", "a\r\nb\r\r\nc", "HelloWorld hELLO XMLHttp", "\u200b\u00a0x\u3000y",
)  # fmt: skip


def ours(found: tokenizers.Tokenizer, config: dict[str, Any], rows: int = 0, ends: tuple[int, ...] = ()) -> Tokenizer:
    return Tokenizer.from_metadata(tokenizer_settings("tokenizer.json", json.loads(found.to_str()), config, ends, rows))


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("pre", PRE_TOKENIZERS)
def test_byte_level_ids(pre: str, whole: bool) -> None:
    theirs = tokenizer(pre)
    theirs.model.ignore_merges = whole
    if whole:
        theirs.normalizer = None if PRE_TOKENIZERS[pre].composes else normalizers.NFC()
    found = ours(theirs, {"eos_token": END}, rows=400)
    for text in TEXTS:
        assert found.encode(text) == theirs.encode(text).ids, text
    assert found.vocab_size == 400
    assert found.special[END] in found.stop_ids
    assert found.decode(found.encode("naïve 漢字")) == "naïve 漢字"
    assert found.encode(END, special=False) != [found.special[END]]


def spaced() -> tokenizers.Tokenizer:
    """A tokenizer as Gemma 3's: spaces are marked, characters without a token are bytes."""
    words = ["h e", "l l", "he ll", "hell o", "▁ w", "o r", "\n \n", "▁ ▁"]
    names = ["<pad>", "<eos>", "<bos>", *(f"<0x{byte:02X}>" for byte in range(256)), *"helowrdaino\n\t▁.,"]
    names += [merge.replace(" ", "") for merge in words]
    vocabulary = {name: id for id, name in enumerate(names)}
    merges = [(left, right) for left, right in (merge.split(" ") for merge in words)]
    found = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=merges, byte_fallback=True, unk_token=None))
    found.normalizer = normalizers.Replace(" ", "▁")
    found.pre_tokenizer = pre_tokenizers.Split(" ", behavior="merged_with_previous")
    found.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    found.add_special_tokens([AddedToken(one, special=True) for one in ("<pad>", "<eos>", "<bos>")])
    return found


def test_ids_with_marked_spaces() -> None:
    theirs = spaced()
    found = ours(theirs, {"bos_token": {"content": "<bos>"}, "eos_token": "<eos>", "add_bos_token": True})
    for text in ("hello world", "  hello\n\n\nworld  ", "naïve 漢字\t.", "hello<eos>hello"):
        assert found.encode(text) == theirs.encode(text, add_special_tokens=False).ids, text
        assert found.decode(found.encode(text, special=False)) == text
    assert found.begun([9]) == [found.bos_token_id, 9]


def test_line_ends_in_an_expression_may_be_characters() -> None:
    """As Seed-OSS writes them."""
    values = tokenizer("seed-coder").to_str()
    assert r"[^\\r\\n" in values
    found = tokenizer_settings("a", json.loads(values.replace(r"\\r\\n", r"\r\n")), {}, (), 0)
    assert found["tokenizer.ggml.pre"] == "seed-coder"


def test_every_end_that_is_named_ends_an_answer() -> None:
    found = ours(tokenizer("qwen2"), {}, ends=(3, 7))
    assert found.stop_ids >= {3, 7}
    assert found.eos_token_id == 3


def test_a_template_that_begins_with_bos() -> None:
    theirs = tokenizer("llama-bpe")
    theirs.model.ignore_merges = True
    single = {"single": [{"SpecialToken": {"id": END, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]}
    values = json.loads(theirs.to_str()) | {"post_processor": {"type": "TemplateProcessing"} | single}
    found = tokenizer_settings("x", values, {"bos_token": END}, (), 0)
    assert found["tokenizer.ggml.add_bos_token"] is True


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": {"type": "WordPiece", "vocab": {}}}, "is a tokenizer of type 'WordPiece', expected BPE"),
        ({"model": None}, "has no model, expected a tokenizer.json"),
        ({"added_tokens": [{"content": "a", "id": -1}]}, "has tokens without an id"),
        ({"added_tokens": [{"id": 3}]}, "added token 3 has no content"),
        ({"pre_tokenizer": {"type": "Whitespace"}}, "this kind of tokenizer is unknown"),
        (
            {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": "a+"}}, {"type": "ByteLevel", "use_regex": False},
            ]}},
            "splits text by 'a+', expected one of qwen35",
        ),
        ({"normalizer": {"type": "NFKC"}}, "normalises text by ['NFKC'], expected NFC or nothing"),
    ],
)  # fmt: skip
def test_bad_tokenizers_are_refused_in_a_line(change: dict[str, Any], message: str) -> None:
    values = json.loads(tokenizer("qwen2").to_str()) | change
    with pytest.raises(DFlashError) as refusal:
        tokenizer_settings("tokenizer.json", values, {}, (), 0)
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)
