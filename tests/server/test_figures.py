"""Metrics, properties and the figures of an answer: all there from the start, and consistent with each other."""

from __future__ import annotations

import re
from typing import Any

from dflash_core.knobs import SPECS
from support import demo_pair
from support.serving import running

LINE = re.compile(r"^(dflash:\w+)(\{[^}]*\})? (-?[\d.e+-]+)$")


def parsed(text: str) -> dict[str, float]:
    """Samples by name and labels; each has its HELP and TYPE once, before it."""
    found: dict[str, float] = {}
    typed: list[str] = []
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            typed.append(line.split()[2])
        elif not line.startswith("#"):
            match = LINE.match(line)
            assert match, line
            family = re.sub(r"_(bucket|sum|count)$", "", match[1])
            assert typed[-1] in (match[1], family)
            assert match[1] + (match[2] or "") not in found
            found[match[1] + (match[2] or "")] = float(match[3])
    assert len(set(typed)) == len(typed)
    return found


def test_metrics_are_the_sums_of_answers() -> None:
    with running(demo_pair.new_engine()) as server, server.http() as http:
        first = http.get("/metrics")
        assert first.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        before = parsed(first.text)
        pos = 'dflash:spec_decode_num_accepted_tokens_per_pos_total{position="0"}'
        assert before[pos] == before["dflash:generation_tokens_total"] == 0
        body: dict[str, Any] = {
            "messages": [{"role": "user", "content": "What is 12 plus 7?"}],
            "dflash": {"mode": "tree", "budget": 8, "detail": True},
        }
        answer = http.post("/v1/chat/completions", json=body).json()
        after = parsed(http.get("/metrics").text)
    usage, timings, told = answer["usage"], answer["timings"], answer["dflash"]
    assert after["dflash:generation_tokens_total"] == usage["completion_tokens"]
    assert after["dflash:prompt_tokens_total"] == usage["prompt_tokens"]
    assert after["dflash:spec_decode_num_draft_tokens_total"] == timings["draft_n"] > 0
    assert after["dflash:spec_decode_num_accepted_tokens_total"] == timings["draft_n_accepted"] > 0
    assert after[pos] == round(told["drafted_by_depth"][0] * told["accept_rate_by_depth"][0])
    assert after['dflash:requests_total{path="/v1/chat/completions",status="200"}'] == 1
    assert after['dflash:request_success_total{finished_reason="end"}'] == 1
    assert after["dflash:time_to_first_token_seconds_count"] == 1
    assert set(before) <= set(after)
    details = usage["completion_tokens_details"]
    assert details["accepted_prediction_tokens"] == timings["draft_n_accepted"]
    assert details["rejected_prediction_tokens"] == timings["draft_n"] - timings["draft_n_accepted"]
    assert (told["mode"], told["stop"], told["knobs"]["drafting"]) == ("tree", "stop token", "tree 8")
    assert sum(told["nodes_per_step"]) == timings["draft_rounds"]


def test_grammars_and_the_context_are_counted() -> None:
    names = "dflash:grammar_compile_seconds_total", "dflash:context_tokens_used"
    with running(demo_pair.new_engine()) as server, server.http() as http:
        before = parsed(http.get("/metrics").text)
        body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 5, "dflash": {"choice": ["yes"]}}
        usage = http.post("/v1/chat/completions", json=body).json()["usage"]
        after = parsed(http.get("/metrics").text)
    assert [before[name] for name in names] == [0, 0]
    assert after[names[0]] > 0
    assert usage["prompt_tokens"] <= after[names[1]] <= usage["total_tokens"]


def test_properties_say_what_is_served() -> None:
    with running(demo_pair.new_engine()) as server, server.http() as http:
        props = http.get("/props").json()
        assert props["default_generation_settings"]["n_ctx"] == 2048
        assert set(props["default_generation_settings"]["params"]) == {spec.name for spec in SPECS}
        assert props["chat_template_caps"]["supports_tool_calls"] is True
        assert "/" not in props["model_path"]
        shown = http.post("/apply-template", json={"messages": [{"role": "user", "content": "Hi"}]}).json()["prompt"]
        assert shown.startswith("<|im_start|>user\nHi<|im_end|>")
