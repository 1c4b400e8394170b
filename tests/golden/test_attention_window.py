"""A window of attention on the CPU: what a position sees follows from its number alone, in every mode, chunk and state.

tests/gpu/test_attention_window_card.py has the tests of the card.
"""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dflash_core import Engine, Knobs, load_draft, load_target
from dflash_core.attention_window import EVERYTHING, MIN_SINKS, AttentionWindow
from dflash_core.backends.base import Logits
from dflash_core.backends.cpu.session import CpuSession
from dflash_core.backends.cpu.target import CpuTarget
from dflash_core.backends.opened import Target
from dflash_core.conversation import Conversation
from dflash_core.drafters.draft import Draft
from dflash_core.events import Event, PrefillEvent
from dflash_core.models.attention import Attention
from dflash_core.models.kv_cache import KVCache
from dflash_core.models.rows import Inputs, Rows
from dflash_core.snapshots.folder import StateFolder
from dflash_core.snapshots.store import SnapshotStore
from support import random_family, random_model
from support.golden import golden, other_targets
from support.random_model import VOCAB
from support.shallow import shallow, shallow_draft

FAMILY = "transformers.models."
BOUND = 2e-4  # of logits: the reference computes norms and delta nets in float32 whatever the model's type


def oracle(
    model: Any, module: str, ids: Sequence[int], window: AttentionWindow, monkeypatch: pytest.MonkeyPatch
) -> Logits:
    """Hugging Face's own logits in float64, under a mask that is written out here position by position."""
    n = len(ids)
    seen = [
        [key <= at and (not window.size or key < window.sinks or key > at - window.size) for key in range(n)]
        for at in range(n)
    ]
    mask = torch.where(torch.tensor(seen), 0.0, -torch.inf).double()[None, None]
    monkeypatch.setattr(importlib.import_module(FAMILY + module), "create_causal_mask", lambda *_, **__: mask)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        found: Logits = model.double()(torch.tensor([list(ids)]), use_cache=False).logits[0].numpy()
    return found


def random_pair(kind: str, seed: int, folder: Path) -> tuple[Any, str, Any]:
    """A model by Hugging Face, the module its mask is made in, and the same model as this program loads it."""
    if kind == "qwen35":
        shape = random_model.Shape.random(seed)
        model = random_model.hugging_face(shape, seed)
        random_model.write_gguf(model, shape, folder / "random.gguf")
        return model, "qwen3_5.modeling_qwen3_5", load_target(folder / "random.gguf", dtype=torch.float64)
    drawn = random_family.Drawn.random(seed)
    model = random_family.hugging_face(kind, drawn, seed)
    path = random_family.write_gguf(kind, model, drawn, folder / "random.gguf")
    return model, f"{kind}.modeling_{kind}", load_target(path, dtype=torch.float64)


# 17 draws two layers of delta nets, without attention.
@pytest.mark.parametrize(
    ("kind", "seed"),
    [("qwen35", 1), ("qwen35", 4), ("qwen3", 2), *(pytest.param(kind, seed, marks=pytest.mark.full)
      for kind in ("qwen35", "qwen3") for seed in range(10, 20) if (kind, seed) != ("qwen35", 17))],
)  # fmt: skip
def test_against_an_explicit_mask(kind: str, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts in chunks of any size, steps of one token, and every node of a tree, in float64."""
    model, module, target = random_pair(kind, seed, tmp_path)
    rng = np.random.default_rng([seed, len(kind)])
    ids = [int(token) for token in rng.integers(0, VOCAB, 90)]
    for size, sinks in ((60, 64), (1, 1), (7, 5), (24, 33)):
        window = AttentionWindow(size, sinks)
        expected = oracle(model, module, ids, window, monkeypatch)
        assert expected.std() > 0.1, "a model that says nothing would pass any test"
        session = target.session()
        session.set_attention_window(window)
        at = 0
        while at < 70:
            end = min(at + int(rng.integers(1, 25)), 70)
            np.testing.assert_allclose(session.prefill(ids[at:end]), expected[end - 1], rtol=0, atol=BOUND)
            at = end
        # A tree: the text's own tokens as a chain off the spine, others between them.
        tokens, parents, path = [ids[70]], [-1], [0]
        for token in ids[71:80]:
            for _ in range(int(rng.integers(0, 3))):
                tokens.append(int(rng.integers(0, VOCAB)))
                parents.append(int(rng.integers(0, len(parents))))
            parents.append(path[-1])
            tokens.append(token)
            path.append(len(tokens) - 1)
        logits = session.verify(tokens, parents)
        np.testing.assert_allclose(logits[path], expected[70:80], rtol=0, atol=BOUND)
        session.commit(path)
        for at in range(80, 85):
            np.testing.assert_allclose(session.verify([ids[at]], [-1])[0], expected[at], rtol=0, atol=BOUND)
            session.commit([0])
    whole = oracle(model, module, ids, EVERYTHING, monkeypatch)
    assert np.abs(whole - expected).max() > 1e-2, "a window that hides nothing would pass as well"


def test_a_layer_against_the_definition() -> None:
    """One layer in float64, from its projections on: norms, rotation, softmax and mask as written here."""
    rng = np.random.default_rng(6)
    target = load_target(golden("tiny-F16.gguf"), dtype=torch.float64)
    assert isinstance(target, CpuTarget)
    mixer = next(block.mixer for block in target.model.blk if isinstance(block.mixer, Attention))
    spec, n = mixer.spec, 60
    x = torch.from_numpy(rng.standard_normal((n, target.config.embedding_length)))
    half = spec.rotary // 2

    def heads(rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        rows = rows / torch.sqrt((rows**2).mean(-1, keepdim=True) + spec.eps) * weight
        turn = torch.outer(torch.arange(n).double(), mixer.rotary.frequencies.double())
        a, b = rows[..., :half], rows[..., half : spec.rotary]
        cos, sin = turn.cos()[:, None], turn.sin()[:, None]
        return torch.cat((a * cos - b * sin, b * cos + a * sin, rows[..., spec.rotary :]), -1)

    both = mixer.attn_q(x).view(n, spec.heads, 2, spec.head_dim)
    q = heads(both[:, :, 0], mixer.attn_q_norm)
    k = heads(mixer.attn_k(x).view(n, spec.kv_heads, -1), mixer.attn_k_norm)
    v = mixer.attn_v(x).view(n, spec.kv_heads, -1)
    for size, sinks in ((3, 2), (11, 40), (1, 0)):
        out = torch.zeros(n, spec.heads, spec.head_dim, dtype=torch.float64)
        for at, head in itertools.product(range(n), range(spec.heads)):
            keys = [key for key in range(at + 1) if key < sinks or key > at - size]
            own = head // (spec.heads // spec.kv_heads)
            weights = torch.softmax(k[keys, own] @ q[at, head] / spec.head_dim**0.5, 0)
            out[at, head] = weights @ v[keys, own]
        expected = mixer.attn_output((out * torch.sigmoid(both[:, :, 1])).view(n, -1))
        cache, found = mixer.new_state(), list[torch.Tensor]()
        for begin, end in itertools.pairwise([0, 1, 17, 18, 45, 60]):
            rows = Rows.of([0] * (end - begin), range(-1, end - begin - 1), begin, AttentionWindow(size, sinks))
            found.append(mixer(x[begin:end], Inputs(rows, x[begin:end], cache)))
        torch.testing.assert_close(torch.cat(found), expected, rtol=0, atol=1e-12)


def test_what_is_hidden_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of the cache that are unpacked follow the window, whatever the context."""
    read = list[int]()
    whole = KVCache.read

    def counted(self: KVCache, runs: list[slice]) -> Any:
        read.append(sum(run.stop - run.start for run in runs))
        return whole(self, runs)

    monkeypatch.setattr(KVCache, "read", counted)
    session = load_target(golden("tiny-F16.gguf")).session()
    session.set_attention_window(AttentionWindow(20, 10))
    for length in (100, 300):
        while session.length < length:
            session.prefill([1] * 25)
        read.clear()
        session.verify([3, 4, 5], [-1, 0, 0])
        assert set(read) == {10 + 20 - 1 + 3}


def test_runs_and_borders() -> None:
    window = AttentionWindow(8, 4)
    for begin, end in itertools.combinations_with_replacement(range(40), 2):
        wanted = {key for at in range(begin, end) for key in range(at + 1) if key < 4 or key > at - 8}
        found = [key for run in window.runs(begin, end) for key in range(run.start, run.stop)]
        assert found == sorted(set(found))
        assert wanted <= set(found)
        if begin < end:
            assert max(found) < end
    assert [window.hides(length) for length in (0, 12, 13)] == [False, False, True]
    assert AttentionWindow.of(0, 500) == EVERYTHING
    assert AttentionWindow.of(7) == AttentionWindow(7, MIN_SINKS)
    assert AttentionWindow.of(7, 500) == AttentionWindow(7, 500)
    assert window.same_until(AttentionWindow(2, 3), 100) == 5
    assert window.same_until(EVERYTHING, 100) == 12
    assert window.same_until(window, 100) == 100


# ---- Turns -----------------------------------------------------------------------------------------------------------

PAIRS = [("tiny-F16.gguf", "tiny-dflash"), ("q3-F16.gguf", "q3-dflash")]


@cache
def loaded(name: str, draft: str) -> tuple[Target, Draft]:
    tiny = name.startswith("tiny")
    target = load_target(shallow(name) if tiny else other_targets(name)[0])
    return target, load_draft(shallow_draft() if tiny else other_targets(draft)[0], target)


def engine(name: str, draft: str, **options: Any) -> Engine:
    return Engine(*loaded(name, draft), **options)


def tokens_of(events: Sequence[Event]) -> list[int]:
    return [token for event in events for token in event.tokens]


# Each pair greedy or sampled; with `full` both.
@pytest.mark.parametrize(
    ("drawn", "name", "draft"),
    [
        pytest.param(drawn, *pair, marks=() if at == turn else pytest.mark.full, id=f"{how}-{'-'.join(pair)}")
        for at, (how, drawn) in enumerate({"greedy": {}, "sampled": {"temperature": 0.9, "seed": 5}}.items())
        for turn, pair in enumerate(PAIRS)
    ],
)
def test_every_mode_writes_the_same(name: str, draft: str, drawn: dict[str, Any]) -> None:
    ids = [int(token) for token in np.random.default_rng(3).integers(0, 250, 120)]
    answers = {}
    for mode, window in itertools.product(("plain", "chain", "tree", "auto"), (0, 16)):
        knobs = Knobs(attention_window=window, max_tokens=24, ignore_eos=True).replace(mode=mode, **drawn)
        answers[mode, window] = tokens_of(list(engine(name, draft).generate(ids, knobs)))
    for (mode, window), answer in answers.items():
        assert answer == answers["plain", window], mode
    assert answers["plain", 0] != answers["plain", 16], "a window that changes nothing would pass as well"


def first(events: Sequence[Event]) -> PrefillEvent:
    assert isinstance(events[0], PrefillEvent)
    return events[0]


@pytest.mark.parametrize(("name", "draft"), PAIRS)
def test_an_answer_follows_from_prompt_and_parameters_alone(name: str, draft: str) -> None:
    """Whatever windows a session had before: text that was read under another window is read again where that makes a
    difference, or restored from a snapshot."""
    rng = np.random.default_rng(7)
    ids = [int(token) for token in rng.integers(0, 250, 150)]
    asked = Knobs(drafting="tree 22", max_tokens=8, ignore_eos=True)
    windows = (0, 32, 16, 0, 32)
    fresh = {}
    for window in set(windows):
        one = engine(name, draft, states=SnapshotStore(0))
        fresh[window] = tokens_of(list(one.generate(ids, asked.replace(attention_window=window))))
    for states in (SnapshotStore(0), SnapshotStore(1 << 30, 32)):
        one, reused = engine(name, draft, states=states), list[int]()
        for window in windows:
            events = list(one.generate(ids, asked.replace(attention_window=window), keep=[60, 90, 140]))
            assert tokens_of(events) == fresh[window], window
            reused.append(first(events).reused_tokens)
        cut = not one.target.config.recurrent
        assert reused[:3] == ([0, 64 + 32, 64 + 16] if cut else [0, 90, 60])
        if states.max_bytes:
            assert reused[3] >= 140, "the state without a window was kept"
            assert reused[4] >= 140, "so was that under the first one"
        again = list(one.generate([*ids, *tokens_of(events), 1], asked.replace(attention_window=32)))
        assert first(again).reused_tokens >= len(ids) + 7


def test_experiments_come_back_to_the_window() -> None:
    one = engine(*PAIRS[0], states=SnapshotStore(0))
    ids = [int(token) for token in np.random.default_rng(8).integers(0, 250, 120)]
    asked = Knobs(max_tokens=4, ignore_eos=True, attention_window=16)
    before = tokens_of(list(one.generate(ids, asked)))
    with one.scratch():
        list(one.generate(ids, asked.replace(attention_window=0)))
    assert isinstance(one.session, CpuSession)
    assert one.session.window == AttentionWindow.of(16)
    events = list(one.generate([*ids, *before, 7], asked))
    assert first(events).reused_tokens == len(ids) + 3
    other = engine(*PAIRS[0], states=SnapshotStore(0))
    assert tokens_of(list(other.generate([*ids, *before, 7], asked))) == tokens_of(events)


def test_it_is_said_where_something_is_hidden() -> None:
    """The reason mentions the window from the first step on that differs from the exact output, and not before."""
    one = engine(*PAIRS[0])
    asked = Knobs(drafting="tree 22", max_tokens=20, ignore_eos=True, attention_window=64)
    events = list(one.generate([5] * 120, asked))
    said = ["not the model's exact output" in event.reason for event in events]
    assert said == [False, *(event.length > 128 for event in events[1:])]  # type: ignore[union-attr]
    assert said[-1]
    assert "window 64 and the first 64" in events[-1].reason
    assert all("window" not in event.reason for event in one.generate([5] * 150, asked.replace(attention_window=0)))


def test_states_on_disk_come_back_under_their_window(tmp_path: Path) -> None:
    """Two conversations, one of them under a window: a new engine continues both without mixing them up."""
    rng = np.random.default_rng(9)
    asked = Knobs(max_tokens=3, ignore_eos=True)
    talks = {0: rng.integers(0, 250, 120).tolist(), 16: rng.integers(0, 250, 130).tolist()}

    def made() -> Engine:
        return engine(*PAIRS[0], states=SnapshotStore(1 << 30, 32, StateFolder(tmp_path, 2)))

    one = made()
    for window, ids in talks.items():
        ids += tokens_of(list(one.generate(ids, asked.replace(attention_window=window))))
    one.leave()
    other = made()
    for window, ids in talks.items():
        events = list(other.generate([*ids, 7], asked.replace(attention_window=window)))
        assert first(events).reused_tokens == len(ids) - 1
    assert first(list(made().generate([*talks[16], 7], asked))).reused_tokens == 0


TEMPLATES = {
    "in front": "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}",
    "in the question": (
        "{% set s = namespace(text='') %}{% for m in messages %}{% if m.role == 'system' %}"
        "{% set s.text = m.content | trim %}{% else %}[{{ m.role }}] "
        "{% if loop.last %}{{ s.text }} {% endif %}{{ m.content }}\n{% endif %}{% endfor %}"
    ),
}


@pytest.mark.usefixtures("templates_here")
@pytest.mark.parametrize("where", TEMPLATES)
@pytest.mark.parametrize("system", ["Be brief. " * 60, "a", "<|im_end|> stays <|im_start|> text " * 20, "  trimmed?  "])
def test_the_system_message_is_never_hidden(where: str, system: str) -> None:
    """Wherever a template puts it, and whatever it says."""
    from dflash_core.text.template import ChatTemplate

    one = engine(*PAIRS[0])
    template = ChatTemplate(TEMPLATES[where])
    conversation = Conversation(one, one.target.tokenizer, template, system)
    turn = conversation.ask("And a question behind it?", Knobs(attention_window=1, max_tokens=1))
    shown = one.target.tokenizer.decode(turn.prompt.ids[: turn.prompt.sinks])
    assert system.strip() in shown
    assert len(shown) <= shown.index(system.strip()) + len(system) + 16, "little more than that"
    list(turn)
    assert isinstance(one.session, CpuSession)
    assert one.session.window == AttentionWindow.of(1, turn.prompt.sinks)
    assert turn.record is not None
    assert turn.record.start.sinks == turn.prompt.sinks
    plain = Conversation(one, one.target.tokenizer, template, system).ask("And?", Knobs(max_tokens=1))
    assert plain.prompt.sinks == 0


def test_without_a_system_message_the_first_positions_stay() -> None:
    one = engine(*PAIRS[0])
    turn = Conversation(one, one.target.tokenizer, one.target.template).ask(
        "Hi", Knobs(attention_window=8, max_tokens=1)
    )
    assert turn.prompt.sinks == 0
    list(turn)
    assert isinstance(one.session, CpuSession)
    assert one.session.window == AttentionWindow(8, 64)
