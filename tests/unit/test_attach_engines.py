"""Other engines by what they send: recognised, asked in their dialect, their figures read and checked."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from dflash_core.errors import KnobError
from dflash_core.events import PrefillEvent, TextEvent
from dflash_core.knobs import Knobs
from dflash_core.messages import Call, Message
from dflash_core.record import End, Line, Received, Start, pack, unpack
from dflash_tui.application.attach.attaching import attach, recognise
from dflash_tui.application.attach.engines import ENGINES
from dflash_tui.application.attach.figures import Figures, added, of_histogram, of_reached, of_steps, parse, report
from dflash_tui.application.attach.remote import RemoteSession, RemoteTurn
from dflash_tui.application.attach.server import AttachedServer, AttachError
from dflash_tui.application.session import LoadRequest
from support.engine_recordings import (
    LLAMA_SERVER,
    LM_STUDIO,
    NINFER,
    OLLAMA,
    PLAIN,
    RECORDINGS,
    SGLANG,
    VLLM,
    VLLM_PLAIN,
    Recording,
)
from support.engine_server import Replaying, replaying

KNOBS = Knobs(temperature=0.6, top_p=0.9, top_k=0, min_p=0.05, repetition_penalty=1.1, seed=7, max_tokens=300)
by_engine = pytest.mark.parametrize("it", RECORDINGS, ids=lambda it: it.engine)


@pytest.fixture
def server(it: Recording) -> Iterator[Replaying]:
    with replaying(it) as found:
        yield found


def attached(server: Replaying, model: str = "") -> RemoteSession:
    session = attach(LoadRequest(attach=server.url, attach_model=model))
    assert isinstance(session, RemoteSession)
    return session


def answered(server: Replaying, knobs: Knobs = KNOBS) -> tuple[RemoteSession, RemoteTurn]:
    session = attached(server)
    turn = session.conversation.ask("Why?", knobs)
    assert isinstance(turn, RemoteTurn)
    list(turn)
    return session, turn


@by_engine
def test_an_engine_is_recognised_and_its_model_is_found(it: Recording, server: Replaying) -> None:
    found = recognise(AttachedServer(server.url))
    assert found.engine.name == it.engine
    session = attached(server)
    assert session.title == f"{it.model} at {server.url}"
    assert it.engine in session.notes[0]
    contexts = {
        "llama-server": 1024,
        "vLLM": 32768,
        "SGLang": 65536,
        "NInfer": 240000,
        "LM Studio": 8192,
        "Ollama": 4096,
    }
    assert session.context_length == contexts.get(it.engine, 0)


@by_engine
def test_an_answer_arrives_in_pieces_and_is_recorded(it: Recording, server: Replaying) -> None:
    session = attached(server)
    lines: list[Line] = []
    session.conversation.watchers.append(lines.append)
    turn = session.conversation.ask("Why?", KNOBS)
    pieces = list(turn)
    assert isinstance(pieces[0].event, PrefillEvent)
    assert all(isinstance(piece.event, TextEvent) for piece in pieces[1:])
    assert "".join(piece.text for piece in pieces) == turn.text
    assert "".join(piece.thinking for piece in pieces) == turn.thinking
    assert turn.record is not None
    assert turn.report is not None
    assert turn.report.source
    assert unpack(pack(turn.record)) == turn.record
    assert (turn.record.text, turn.record.thinking) == (turn.text, turn.thinking)
    assert session.turns[0] == turn.record
    assert [type(line) for line in (lines[0], lines[2], lines[-1])] == [Start, Received, End]
    assert session.conversation.messages[-1] == Message("assistant", turn.text, turn.thinking, turn.report)


@pytest.mark.parametrize(
    ("it", "text", "thinking"),
    [
        (LLAMA_SERVER, "I'm happy to", ""),
        (VLLM, "Yes, it is.", "Let me see."),
        (SGLANG, "A fox.", "Hm."),
        (NINFER, "Two.", "One."),
        (LM_STUDIO, "The keeper watched.", ""),
        (OLLAMA, "The sky is blue.", "Why?"),
        (PLAIN, "Yes.", "Hm."),
    ],
    ids=lambda it: getattr(it, "engine", ""),
)
def test_reasoning_is_told_from_the_answer(server: Replaying, text: str, thinking: str) -> None:
    _, turn = answered(server)
    assert (turn.text, turn.thinking) == (text, thinking)


@pytest.mark.parametrize(
    ("it", "expected"),
    [
        (
            LLAMA_SERVER,
            {
                "steps": 16,
                "tokens": 40,
                "drafted": 62,
                "accepted": 23,
                "prompt_tokens": 33,
                "reused_tokens": 0,
                "acceptance_length": 1 + 23 / 16,
                "tokens_per_second": 40 / 5.397347,
                "decode_s": 5.397347,
                "accept_rate_by_depth": (12 / 16, 6 / 16, 3 / 16, 2 / 16),
                "drafted_by_depth": (16,) * 4,
                "lengths": (0, 4, 6, 3, 1, 2),
            },
        ),
        (
            VLLM,
            {
                "steps": 12,
                "tokens": 80,
                "drafted": 84,
                "accepted": 67,
                "prompt_tokens": 11742,
                "reused_tokens": 9504,
                "acceptance_length": 6.583333333333333,
                "tokens_per_second": 63.7,
                "ttft_ms": 85.2,
                "accept_rate_by_depth": (12 / 12, 11 / 12, 11 / 12, 10 / 12, 9 / 12, 7 / 12, 7 / 12),
                "lengths": (0, 0, 1, 0, 1, 1, 2, 0, 7),
            },
        ),
        (
            VLLM_PLAIN,
            {
                "steps": 12,
                "tokens": 80,
                "drafted": 84,
                "accepted": 67,
                "reused_tokens": 0,
                "accept_rate_by_depth": (12 / 12, 11 / 12, 11 / 12, 10 / 12, 9 / 12, 7 / 12, 7 / 12),
            },
        ),
        (
            SGLANG,
            {
                "steps": 43,
                "tokens": 106,
                "drafted": 215,
                "accepted": 63,
                "acceptance_length": 106 / 43,
                "accept_rate_by_depth": (32 / 43, 18 / 43, 7 / 43, 3 / 43, 3 / 43),
                "lengths": (0, 11, 14, 11, 4, 0, 3),
            },
        ),
        (
            NINFER,
            {
                "steps": 0,
                "tokens": 129,
                "drafted": 132,
                "accepted": 84,
                "prompt_tokens": 8192,
                "reused_tokens": 4096,
                "tokens_per_second": 112.28070175438596,
                "acceptance_length": 0.0,
                "accept_rate_by_depth": (),
            },
        ),
        (
            LM_STUDIO,
            {
                "steps": 0,
                "tokens": 300,
                "drafted": 492,
                "accepted": 176,
                "tokens_per_second": 17.92897117267284,
                "ttft_ms": 1162.136,
                "decode_s": 17.839055000000002,
            },
        ),
        (
            OLLAMA,
            {
                "steps": 0,
                "tokens": 282,
                "drafted": 0,
                "prompt_tokens": 26,
                "decode_s": 4.535599,
                "tokens_per_second": 281 / 4.535599,
                "ttft_ms": 1.334875 + 342.546,
            },
        ),
        (PLAIN, {"steps": 0, "tokens": 0, "drafted": 0, "prompt_tokens": 0, "tokens_per_second": 0.0}),
    ],
    ids=lambda it: getattr(it, "engine", ""),
)
def test_the_figures_are_the_engine_s(server: Replaying, expected: dict[str, Any]) -> None:
    _, turn = answered(server)
    assert turn.report is not None
    stats = turn.report.stats
    for name, value in expected.items():
        assert getattr(stats, name) == pytest.approx(value), name
    assert turn.report.mode == "remote"
    assert stats.ttft_ms > 0


@pytest.mark.parametrize(
    ("it", "told"),
    [
        (LLAMA_SERVER, "drafts: by the growth of its counters; by the clock of this machine: first token"),
        (VLLM, "figures of vLLM"),
        (SGLANG, "by the clock of this machine: first token, speed"),
        (NINFER, "acceptance by depth into its log"),
        (OLLAMA, "Ollama reports no drafts"),
        (PLAIN, "by the clock of this machine: first token, speed"),
    ],
    ids=lambda it: getattr(it, "engine", ""),
)
def test_where_figures_come_from_is_said(server: Replaying, told: str) -> None:
    _, turn = answered(server)
    assert turn.report is not None
    assert told in turn.report.source


@pytest.mark.parametrize(
    ("it", "fields", "absent"),
    [
        (
            LLAMA_SERVER,
            {"repeat_penalty": 1.1, "top_k": 0, "min_p": 0.05, "timings_per_token": True},
            "repetition_penalty",
        ),
        (VLLM, {"repetition_penalty": 1.1, "top_k": 0, "min_p": 0.05, "ignore_eos": False}, "repeat_penalty"),
        (SGLANG, {"repetition_penalty": 1.1, "top_k": -1, "return_spec_tokens_details": True}, "repeat_penalty"),
        (NINFER, {"top_k": 0, "min_p": 0.05, "return_progress": True}, "repetition_penalty"),
        (LM_STUDIO, {"repeat_penalty": 1.1, "top_k": 0}, "min_p"),
        (PLAIN, {"stream_options": {"include_usage": True}}, "top_k"),
    ],
    ids=lambda it: getattr(it, "engine", ""),
)
def test_a_request_is_in_the_engine_s_dialect(
    it: Recording, server: Replaying, fields: dict[str, Any], absent: str
) -> None:
    answered(server)
    body = server.body(it.path)
    common = {"model": it.model, "temperature": 0.6, "top_p": 0.9, "seed": 7, "max_tokens": 300, "stream": True}
    assert body | common | fields == body
    assert absent not in body
    assert body["messages"] == [{"role": "user", "content": "Why?"}]
    assert not {"drafting", "p_min", "dflash"} & body.keys()


def test_ollama_has_an_api_of_its_own() -> None:
    with replaying(OLLAMA) as server:
        answered(server, KNOBS.replace(thinking=True))
        body = server.body("/api/chat")
    assert body["think"] is True
    expected = {"num_predict": 300, "temperature": 0.6, "top_k": 0, "repeat_penalty": 1.1, "min_p": 0.05, "seed": 7}
    assert body["options"] | expected == body["options"]


def test_calls_in_the_history_are_in_the_engine_s_form() -> None:
    history = (
        Message("user", "What time is it?"),
        Message("assistant", "", calls=(Call("c1", "clock", {"zone": "UTC"}),)),
        Message("tool", "12:00", call_id="c1", name="clock"),
    )
    for it in (VLLM, OLLAMA):
        with replaying(it) as server:
            conversation = attached(server).conversation
            conversation.set_messages(history)
            list(conversation.ask("Thanks.", KNOBS))
            call, result = server.body(it.path)["messages"][1:3]
        function = call["tool_calls"][0]["function"]
        assert function["name"] == "clock"
        if it is OLLAMA:
            assert function["arguments"] == {"zone": "UTC"}
            assert result["tool_name"] == "clock"
        else:
            assert json.loads(function["arguments"]) == {"zone": "UTC"}
            assert result["tool_call_id"] == "c1"


def test_a_seed_is_drawn_and_told() -> None:
    with replaying(VLLM) as server:
        _, turn = answered(server, KNOBS.replace(seed=-1))
        sent = server.body(VLLM.path)["seed"]
    assert turn.report is not None
    assert turn.report.knobs.seed == sent >= 0
    assert turn.report.seed_source == "random"
    assert turn.report.asked.seed == -1


def test_history_keeps_its_reasoning_under_the_engine_s_name() -> None:
    for it, name in ((VLLM, "reasoning"), (SGLANG, "reasoning_content"), (OLLAMA, "thinking")):
        with replaying(it) as server:
            session, _ = answered(server)
            list(session.conversation.ask("And?", KNOBS))
            messages = server.body(it.path)["messages"]
        assert [one["role"] for one in messages] == ["user", "assistant", "user"]
        assert messages[1][name]


@by_engine
def test_parameters_that_it_does_not_take_are_refused_by_name(it: Recording, server: Replaying) -> None:
    limits = attached(server).limits
    with pytest.raises(KnobError, match=f"drafting has no effect: {it.engine} takes .*temperature"):
        limits.check(KNOBS, {"drafting"})
    limits.check(KNOBS, {"temperature", "max_tokens"})
    limits.check_possible(Knobs(drafting="tree 16", draft="mtp"), set(Knobs().to_dict()))


@pytest.mark.parametrize(
    ("it", "sizes", "said"),
    [
        (LLAMA_SERVER, {"weights": 96576768}, "reports the size of the weights"),
        (VLLM, {}, "37% of its KV cache"),
        (SGLANG, {}, "33% of its KV cache"),
        (OLLAMA, {"on the card": 5333539264, "main memory": 6591830464 - 5333539264}, "memory of the loaded model"),
        (NINFER, {}, "does not report its memory use"),
    ],
    ids=lambda it: getattr(it, "engine", ""),
)
def test_memory_as_far_as_it_is_told(server: Replaying, sizes: dict[str, int], said: str) -> None:
    session = attached(server)
    memory = session.memory()
    assert {one.name: one.bytes for one in memory.components} == sizes
    assert memory.total == 0
    assert said in session.missing["memory"]
    assert "reports no trees" in session.missing["tree"]


def test_tokens_and_prompts_where_they_are_told() -> None:
    with replaying(LLAMA_SERVER) as server:
        session = attached(server)
        assert session.count("a fox") == 2
        assert "im_start" in session.conversation.preview("hi", KNOBS)
    with replaying(VLLM) as server:
        assert attached(server).count("a fox") == 3
    with replaying(OLLAMA) as server:
        session = attached(server)
        assert session.count("a fox") == 0
        with pytest.raises(AttachError, match="does not show the prompt"):
            session.conversation.preview("hi", KNOBS)


def test_prefill_is_told_where_the_engine_does() -> None:
    told: list[tuple[int, int]] = []
    with replaying(LLAMA_SERVER) as server:
        list(attached(server).conversation.ask("Why?", KNOBS, on_prefill=lambda *it: told.append(it)))
    assert told == [(0, 33), (33, 33)]


def test_a_model_is_chosen_by_name() -> None:
    with replaying(OLLAMA) as server:
        assert attached(server).title.startswith("gemma4:latest")  # the one that is loaded
        assert attached(server, "llama3.2:latest").title.startswith("llama3.2")
        with pytest.raises(AttachError, match=r"Ollama has no model 'qwen'; it has gemma4:latest, llama3\.2:latest"):
            attached(server, "qwen")
    nothing_loaded = replace(OLLAMA, pages={**OLLAMA.pages, "/api/ps": {"models": []}})
    with replaying(nothing_loaded) as server, pytest.raises(AttachError, match="none is loaded: name one of gemma4"):
        attached(server)


def test_counters_count_only_for_an_answer_that_was_alone() -> None:
    both = LLAMA_SERVER.after["/metrics"].replace("tokens_predicted_total 40", "tokens_predicted_total 55")
    with replaying(replace(LLAMA_SERVER, after={"/metrics": both})) as server:
        _, turn = answered(server)
    assert turn.report is not None
    assert turn.report.stats.steps == 0
    assert turn.report.stats.drafted == 62  # the answer's own count
    assert "--metrics" in turn.report.source


def test_sglang_s_average_is_not_taken_for_the_answer_s() -> None:
    without = tuple(one for one in SGLANG.pieces if "sglext" not in one)
    with replaying(replace(SGLANG, pieces=without)) as server:
        _, turn = answered(server)
    assert turn.report is not None
    assert turn.report.stats.steps == 0
    assert "its answers lately took 3.05 tokens per step" in turn.report.source


def test_figures_that_contradict_each_other_are_left_out() -> None:
    wrong = Figures(tokens=10, steps=3, drafted=9, accepted=5, reached=(4, 9), lengths=(0, 1, 1))
    found = report(wrong, "text", "", "stop token", Knobs(), "vLLM", "figures of vLLM", drawn=False)
    assert found.stats.steps == found.stats.drafted == 0
    assert found.stats.tokens == 10
    assert "contradict each other" in found.source


def test_histograms_steps_and_depths_say_the_same() -> None:
    accepted = [2, 0, 3, 1, 1]
    by_step = of_steps(accepted, [3] * 5)
    histogram = of_histogram([1, 2, 1, 1])
    assert by_step.reached == histogram.reached == of_reached(5, [4, 2, 1]).reached == (4, 2, 1)
    assert by_step.lengths == histogram.lengths == of_reached(5, [4, 2, 1]).lengths == (0, 1, 2, 1, 1)
    assert by_step.accepted == histogram.accepted == 7
    assert of_steps([0, 0], [4, 2]).drafted_at == (2, 2, 1, 1)


def test_pages_of_metrics_in_both_spellings() -> None:
    text = '# HELP a b\nvllm:x_total{engine="0"} 2.0\nvllm:x_total{engine="1"} 3.0\nvllm:y 1e3\nnonsense\nz NaN\n'
    assert parse(text).values == {"vllm:x": 5.0, "vllm:y": 1000.0}
    old, new = parse("p_drafts 1\ng 5\n"), parse("p_drafts_total 4\ng_total 9\n")
    assert added(old, new, "p_", "g", 4) == Figures(steps=3, drafted=0, accepted=0)
    assert added(new, old, "p_", "g", -4) is None  # the server was started again
    assert added(old, new, "p_", "g", 3) is None
    assert added(old, new, "p_", "absent", 0) is None


def test_engines_differ_in_name_and_owner() -> None:
    owners = [engine.owner for engine in ENGINES if engine.owner]
    assert len(set(owners)) == len(owners)
    assert len({engine.name for engine in ENGINES}) == len(ENGINES)


@pytest.mark.parametrize(
    "piece",
    [
        {"choices": 3}, {"choices": [None]}, {"choices": [{"delta": 5}]}, {"usage": "x", "timings": []},
        {"choices": [{"delta": {"content": 7}, "finish_reason": 1}]}, {"timings": {"predicted_n": -1}},
        {"metrics": {"speculative_decoding": {"num_spec_steps": 2, "acceptance_histogram": [1, "x"]}}},
        {"usage": {"completion_tokens": 10**30}}, {"message": {"content": None}, "done": 1}, {"sglext": [1]},
    ],
)  # fmt: skip
def test_no_engine_fails_on_strange_pieces(piece: dict[str, Any]) -> None:
    for engine in ENGINES:
        assert not engine.chunk(piece).text
