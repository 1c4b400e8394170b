"""How other programs are pointed at the server: what to set, a recipe each."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from dflash_core.clean import one_line

DEFAULT_URL = "http://127.0.0.1:8080"
NO_KEY = "none"
"""What stands for a key where the server asks for none; most programs want one set."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """`where`: the file that `lines` go into, or "" for a shell. `note`: what else to know."""

    title: str
    lines: str
    where: str = ""
    note: str = ""


RECIPES: Mapping[str, Recipe] = {
    "claude": Recipe(
        "Claude Code",
        """\
export ANTHROPIC_BASE_URL=<URL>
export ANTHROPIC_AUTH_TOKEN=<KEY>
export ANTHROPIC_MODEL=<MODEL>
export ANTHROPIC_DEFAULT_OPUS_MODEL=<MODEL>
export ANTHROPIC_DEFAULT_SONNET_MODEL=<MODEL>
export ANTHROPIC_DEFAULT_HAIKU_MODEL=<MODEL>
export CLAUDE_CODE_MAX_CONTEXT_TOKENS=<CONTEXT>
export CLAUDE_CODE_AUTO_COMPACT_WINDOW=<CONTEXT>
export CLAUDE_CODE_MAX_OUTPUT_TOKENS=<OUTPUT>
export CLAUDE_CODE_ATTRIBUTION_HEADER=0
export CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1
claude
""",
        note="Its first prompt has about 25,000 tokens: load the model with --context 49152 or more.",
    ),
    "codex": Recipe(
        "Codex CLI",
        """\
model = "<MODEL>"
model_provider = "dflash"
model_context_window = <CONTEXT>

[model_providers.dflash]
name = "dflash-tui"
base_url = "<URL>/v1"
wire_api = "responses"
experimental_bearer_token = "<KEY>"
""",
        where="~/.codex/config.toml",
        note="Its first prompt has about 12,000 tokens.",
    ),
    "opencode": Recipe(
        "OpenCode",
        """\
{
  "$schema": "https://opencode.ai/config.json",
  "model": "dflash/<MODEL>",
  "provider": {
    "dflash": {
      "npm": "@ai-sdk/openai-compatible",
      "name": "dflash-tui",
      "options": {"baseURL": "<URL>/v1", "apiKey": "<KEY>"},
      "models": {
        "<MODEL>": {
          "name": "<MODEL>",
          "reasoning": true,
          "interleaved": {"field": "reasoning_content"},
          "limit": {"context": <CONTEXT>, "output": <OUTPUT>}
        }
      }
    }
  }
}
""",
        where="opencode.json",
        note="With interleaved it sends back the reasoning of a tool loop, which then need not be read again.",
    ),
    "aider": Recipe(
        "aider",
        """\
export OPENAI_API_BASE=<URL>/v1
export OPENAI_API_KEY=<KEY>
aider --model openai/<MODEL>
""",
        note="It takes the context from .aider.model.metadata.json: "
        '{"openai/<MODEL>": {"max_input_tokens": <CONTEXT>, "max_output_tokens": <OUTPUT>}}',
    ),
    "continue": Recipe(
        "Continue",
        """\
name: dflash-tui
version: 0.0.1
schema: v1
models:
  - name: "<MODEL>"
    provider: openai
    model: "<MODEL>"
    apiBase: "<URL>/v1"
    apiKey: "<KEY>"
    roles: [chat, edit, apply]
    defaultCompletionOptions:
      contextLength: <CONTEXT>
      maxTokens: <OUTPUT>
""",
        where="~/.continue/config.yaml",
    ),
    "open-webui": Recipe(
        "Open WebUI",
        """\
export OPENAI_API_BASE_URL=<URL>/v1
export OPENAI_API_KEY=<KEY>
open-webui serve
""",
        note="From a container the address is http://host.docker.internal:PORT/v1: serve with --host 0.0.0.0 "
        "and a key.",
    ),
    "openai": Recipe(
        "The openai package",
        """\
export OPENAI_BASE_URL=<URL>/v1
export OPENAI_API_KEY=<KEY>
""",
    ),
    "anthropic": Recipe(
        "The anthropic package",
        """\
export ANTHROPIC_BASE_URL=<URL>
export ANTHROPIC_AUTH_TOKEN=<KEY>
""",
    ),
}


def written(recipe: Recipe, *, url: str, key: str, model: str, context: int) -> str:
    """A recipe as text, with the values in their places; `context` in tokens. The lines alone may be pasted, all else
    are comments where they go into a shell. A model's name comes from the server, so values are quoted as the file or
    the shell needs it."""
    values = {"URL": url, "KEY": key, "MODEL": model, "CONTEXT": str(context), "OUTPUT": str(min(context // 4, 32_000))}
    lines, note = recipe.lines, recipe.note
    for name, value in values.items():
        value = one_line(value)
        inside = json.dumps(value)[1:-1]  # the files have their values between double quotes
        lines = lines.replace(f"<{name}>", inside if recipe.where else shlex.quote(value))
        note = note.replace(f"<{name}>", inside)
    head = f"# {recipe.title}" + (f": {recipe.where}" if recipe.where else "")
    return "\n".join([head, *([f"# {note}"] if note else []), lines])
