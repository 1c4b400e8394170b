"""Opens the model of a folder: config.json, tokenizer.json, chat template, sampling defaults and safetensors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dflash_core.arch.draft_heads import ZLAB_ARCHITECTURES
from dflash_core.arch.folders.form import Form, Values, is_of_images, parts
from dflash_core.arch.folders.gemma import ASSISTANT
from dflash_core.arch.folders.gemma import FORM3 as GEMMA3
from dflash_core.arch.folders.gemma import FORM4 as GEMMA4
from dflash_core.arch.folders.gptoss import FORM as GPT_OSS
from dflash_core.arch.folders.hybrid import DENSE_FORM, MOE_FORM
from dflash_core.arch.folders.laguna import FORM as LAGUNA
from dflash_core.arch.folders.phi3 import FORM as PHI3
from dflash_core.arch.folders.phi3 import GLM4
from dflash_core.arch.folders.plain import GRANITE, LLAMA, MISTRAL3, QWEN2, QWEN3, QWEN3MOE, SEED_OSS, SMOLLM3
from dflash_core.arch.folders.quantisation import CONFIG, zeros_of
from dflash_core.arch.folders.settings import HARMLESS, frequency_divisors
from dflash_core.errors import Code, FormatError, UnsupportedError
from dflash_core.files import folder_name, read_input
from dflash_core.formats.folders.file import FolderFile, folder_file
from dflash_core.formats.folders.layouts import Modules
from dflash_core.formats.gguf import GGUFFile, open_gguf
from dflash_core.formats.metadata import Settings, check_unread
from dflash_core.formats.safetensors import MAX_JSON, open_safetensors, read_json
from dflash_core.formats.weights import shown
from dflash_core.text.tokenizer_json import tokenizer_settings

FORMS: dict[str, Form] = {
    "qwen3_5": DENSE_FORM,
    "qwen3_5_text": DENSE_FORM,
    "qwen3_5_moe": MOE_FORM,
    "qwen3_5_moe_text": MOE_FORM,
    "qwen2": QWEN2,
    "qwen2_vl": QWEN2,
    "qwen2_5_vl": QWEN2,
    "qwen3": QWEN3,
    "qwen3_vl": QWEN3,
    "qwen3_moe": QWEN3MOE,
    "llama": LLAMA,
    "mistral": LLAMA,
    "ministral3": MISTRAL3,
    "mistral3": MISTRAL3,
    "smollm3": SMOLLM3,
    "granite": GRANITE,
    "seed_oss": SEED_OSS,
    "phi3": PHI3,
    "glm4": GLM4,
    "gemma3": GEMMA3,
    "gemma3_text": GEMMA3,
    "gemma4": GEMMA4,
    "gemma4_text": GEMMA4,
    "gemma4_unified": GEMMA4,
    "gemma4_unified_text": GEMMA4,
    "laguna": LAGUNA,
    "gpt_oss": GPT_OSS,
}
"""Targets, by `model_type` of config.json."""
ASSISTANTS: dict[str, Form] = {"gemma4_assistant": ASSISTANT, "gemma4_unified_assistant": ASSISTANT}
"""Drafters that are read as targets are."""
SAMPLING = {
    "temperature": "temp",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "penalty_repeat",
}
"""Values of generation_config.json and the ends of their names in a GGUF file."""


def open_model(path: str | Path) -> GGUFFile:
    """A GGUF file, or the folder of a model. Raises FormatError or UnsupportedError."""
    return open_folder(Path(path)) if Path(path).is_dir() else open_gguf(path)


def is_target(path: Path) -> bool:
    """Whether a path is not that of a drafter in safetensors: its file, or a folder whose config says so or is missing.
    Raises FormatError for damaged JSON."""
    if not path.is_dir():
        return path.suffix != ".safetensors"
    return (path / CONFIG).exists() and not is_drafter(read_json(path / CONFIG))


def is_assistant(path: Path) -> bool:
    """Whether a path is the folder of a drafter that reads a target's keys. Raises FormatError for damaged JSON."""
    return path.is_dir() and (path / CONFIG).exists() and read_json(path / CONFIG).get("model_type") in ASSISTANTS


def is_drafter(config: Mapping[str, Any]) -> bool:
    """Whether a config.json is that of a block drafter."""
    named = config.get("architectures")
    return isinstance(named, list) and any(one in ZLAB_ARCHITECTURES for one in named)


def open_folder(folder: Path) -> FolderFile:
    """The model of a folder under GGUF's names. Raises FormatError or UnsupportedError."""
    if not (folder / CONFIG).exists():
        inside = sorted(file.name for file in folder.glob("*.gguf"))
        remedy = f"name a file in it, such as {inside[0]}" if inside else "download the whole folder of the model"
        raise FormatError(f"{folder} has no {CONFIG}, expected the folder of a model; {remedy}")
    config = read_json(folder / CONFIG)
    form = _form(folder, config)
    text = config.get("text_config")
    values = {**form.defaults, **config, **(text if isinstance(text, dict) else {})}
    zeros = zeros_of(folder, values)
    modules = Modules.of(open_safetensors(folder, packed=True), *zeros)
    keys = Settings(str(folder / CONFIG), values)
    settings = form.settings(keys, modules)
    tied = keys.flag("tie_word_embeddings")
    check_unread(keys, HARMLESS | form.harmless)
    found = frequency_divisors(settings)
    found |= parts(form, modules, settings, tied)
    embedding = found.get("token_embd.weight")
    metadata = {f"{form.architecture}.{name}": value for name, value in settings.items()}
    metadata |= {"general.architecture": form.architecture, "general.name": folder_name(folder.absolute())}
    if form not in ASSISTANTS.values():
        generation = _optional(folder / "generation_config.json")
        ends = _ends(values, generation)
        metadata |= _text(folder, ends, embedding.shape[0] if embedding else 0) | _sampling(generation)
    return folder_file(folder, modules.file, metadata, found, sum(map(is_of_images, modules.modules)))


def _form(folder: Path, config: Mapping[str, Any]) -> Form:
    kind = config.get("model_type")
    if is_drafter(config):
        raise UnsupportedError(
            f"{folder} is a DFlash drafter, expected a target model; give it as the draft, together with the target it"
            " was made for"
        )
    known = FORMS | ASSISTANTS
    if isinstance(kind, str) and kind in known:
        return known[kind]
    found, expected = f"the model_type {shown(str(kind))}", ", ".join(FORMS)
    if kind is None:
        named = config.get("architectures")
        found = "no model_type" + (f" (architectures: {shown(str(named))})" if named else "")
        expected = f"one of {expected}"
    raise UnsupportedError(
        f"{folder / CONFIG} has {found}, expected {expected}; use the model's GGUF", code=Code.UNKNOWN_ARCHITECTURE
    )


def _optional(path: Path) -> dict[str, Any]:
    return read_json(path) if path.exists() else {}


def _ends(values: Values, generation: Mapping[str, Any]) -> list[int]:
    """Tokens that end an answer, by the files beside the tokenizer's."""
    found = generation.get("eos_token_id", values.get("eos_token_id"))
    listed = found if isinstance(found, list) else [found]
    return [id for id in listed if type(id) is int]


def _sampling(generation: Mapping[str, Any]) -> dict[str, Any]:
    """Sampling defaults, where the makers sample at all."""
    if generation.get("do_sample") is not True:
        return {}
    found = {name: generation.get(name) for name in SAMPLING}
    return {f"general.sampling.{SAMPLING[name]}": value for name, value in found.items() if value is not None}


def _text(folder: Path, ends: list[int], rows: int) -> dict[str, Any]:
    """The tokenizer and the chat template."""
    path = folder / "tokenizer.json"
    if not path.exists():
        raise FormatError(f"{folder} has no tokenizer.json, expected it beside {CONFIG}; download it too")
    config = _optional(folder / "tokenizer_config.json")
    found = tokenizer_settings(str(path), read_json(path), config, ends, rows)
    template = _template(folder, config)
    return found | ({"tokenizer.chat_template": template} if template is not None else {})


def _template(folder: Path, config: Mapping[str, Any]) -> str | None:
    """The chat template: a file of its own, else that of the tokenizer's config, by the name "default"."""
    path = folder / "chat_template.jinja"
    if path.exists():
        return read_input(path, MAX_JSON).decode("utf-8", "replace")
    found = _optional(folder / "chat_template.json").get("chat_template", config.get("chat_template"))
    if isinstance(found, list):
        named = {one.get("name"): one.get("template") for one in found if isinstance(one, dict)}
        found = named.get("default")
    return found if isinstance(found, str) else None
