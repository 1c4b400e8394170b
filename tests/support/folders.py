"""Folders of Hugging Face models, as their own library saves them, with a small tokenizer."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, models, normalizers, pre_tokenizers
from torch import Tensor

from dflash_core.text.pieces import LETTERS
from dflash_core.text.pre_tokenizers import PRE_TOKENIZERS
from support import random_family, random_model
from support.quantised import in_layout
from support.random_family import Drawn
from support.random_model import VOCAB, Shape

END, MARK = "<|im_end|>", "<think>"
WORDS = ("h e", "l l", "he ll", "hell o", "Ġ w", "o r")
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}<|im_end|>{% endfor %}"


PRE = {"qwen35": "qwen35", "qwen35moe": "qwen35"}
"""The pre-tokenizers of models; of the others it is qwen2."""
WIDE = Shape(
    layers=3, hidden=256, heads=2, kv_heads=1, head_dim=128, k_heads=2, v_heads=6, k_size=128, v_size=128, kernel=4,
    interval=3, rope=64, tied=False,
)  # fmt: skip
"""Rows of whole groups of 128, and three value heads for each key head."""


def wide(name: str, seed: int) -> Any:
    """A model whose rows are whole groups."""
    if name == "qwen35":
        return random_model.hugging_face(WIDE, seed)
    of = Drawn(
        WIDE, theta=1e6, experts=5, used=2, width=128, shared=256, fused=False, normalised=True, router=2
    )  # fmt: skip
    return random_family.hugging_face(name, of, seed)


def saved(model: Any, folder: Path, pre: str = "qwen2", dtype: torch.dtype = torch.bfloat16) -> Any:
    """Save `model` in `dtype` with a tokenizer and a template. Returns the model with the weights as saved, in
    float32."""
    with torch.no_grad():  # not `model.to`: that rounds rotary frequencies too
        for parameter in model.parameters():
            parameter.copy_(parameter.to(dtype))
    model.save_pretrained(folder, state_dict={name: one.to(dtype) for name, one in model.state_dict().items()})
    tokenizer(pre).save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": END, "chat_template": "not this one"}))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return model


def tokenizer(pre: str, size: int = VOCAB - 8) -> tokenizers.Tokenizer:
    """Byte-level BPE with a few merges, filler tokens, and tokens of both kinds added."""
    merged = [merge.replace(" ", "") for merge in WORDS]
    names = [*LETTERS, *merged]
    names += [f"<filler {id}>" for id in range(size - 2 - len(names))]
    merges = [(left, right) for left, right in (merge.split(" ") for merge in WORDS)]
    found = tokenizers.Tokenizer(models.BPE(vocab={name: id for id, name in enumerate(names)}, merges=merges))
    known = PRE_TOKENIZERS[pre]
    splits = [pre_tokenizers.Split(tokenizers.Regex(split), behavior="isolated") for split in known.splits]
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    found.pre_tokenizer = pre_tokenizers.Sequence([*splits, to_bytes])
    if known.composes:
        found.normalizer = normalizers.NFC()
    found.add_special_tokens([AddedToken(END, special=True)])
    found.add_tokens([AddedToken(MARK, special=False)])
    return found


def changed(
    folder: Path,
    tensors: Callable[[dict[str, Tensor]], Mapping[str, Tensor]] = lambda found: found,
    config: Callable[[dict[str, Any]], Mapping[str, Any]] = lambda found: found,
) -> Path:
    """Change the tensors and the config of a folder."""
    path = folder / "model.safetensors"
    made = {name: one.contiguous() for name, one in tensors(load_file(path)).items()}
    save_file(made, path)
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config(settings)))
    return folder


def in_shards(folder: Path, count: int = 3) -> Path:
    """The same tensors in several files and an index."""
    path = folder / "model.safetensors"
    found = load_file(path)
    path.unlink()
    placed = {}
    for number in range(count):
        name = f"model-{number + 1:05d}-of-{count:05d}.safetensors"
        part = dict(list(found.items())[number::count])
        save_file(part, folder / name)
        placed |= dict.fromkeys(part, name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": placed}))
    return folder


EXPERT = re.compile(r"\.experts\.(\d+)\.")
NEVER = (
    "embed_tokens", "lm_head", "in_proj_a", "in_proj_b", "mlp.gate.", "shared_expert_gate", "conv1d", "g_proj",
    "router.", "per_layer_model_projection",
)  # fmt: skip
"""Modules that publishers leave as floats."""


def quantised(folder: Path, model: Any, layouts: Sequence[str], seed: int) -> list[str]:
    """Store the matrices of a saved folder in `layouts` in turn, one matrix after the other, and give `model` the
    values that they stand for. Experts become tensors of their own. Returns the layouts that were used."""
    rng, chosen, state = np.random.default_rng(seed), dict[str, str](), dict(model.state_dict())
    turns = itertools.cycle(rng.permutation(layouts).tolist())

    def made(found: dict[str, Tensor]) -> dict[str, Tensor]:
        kept = dict[str, Tensor]()
        for name, stored in found.items():
            module = name.removesuffix(".weight")
            if name == module or stored.ndim != 2 or any(one in name for one in NEVER):
                kept[name] = stored
                continue
            alike = EXPERT.sub(".experts.", module)  # experts of a layer are stored alike
            layout = chosen[alike] if alike in chosen else chosen.setdefault(alike, next(turns))
            weight = _weight(state, name)
            tensors, values = in_layout(rng, module, layout, weight.double().numpy())
            kept |= tensors
            with torch.no_grad():
                weight.copy_(torch.from_numpy(values))
        return kept

    changed(folder, made)
    return sorted({*chosen.values()})


def _weight(state: Mapping[str, Tensor], name: str) -> Tensor:
    """The model's own weight of a stored tensor: a part of a larger one where it is an expert's."""
    found = EXPERT.search(name)
    if found is None:
        return state[name if name in state else name.replace("shared_expert.", "shared_experts.")]
    of_all = EXPERT.sub(".experts.", name)
    if "down_proj" in name:
        return state[of_all.removesuffix(".weight")][int(found[1])]
    gate, up = state[of_all.rsplit(".", 2)[0] + ".gate_up_proj"][int(found[1])].chunk(2)
    return gate if "gate_proj" in name else up


def with_fused_experts(found: dict[str, Tensor]) -> dict[str, Tensor]:
    """Experts of a layer as two tensors, as newer checkpoints have them."""
    kept, each = dict[str, Tensor](), dict[str, list[Tensor]]()
    for name, stored in found.items():
        if EXPERT.search(name):
            each.setdefault(EXPERT.sub(".experts.", name).removesuffix(".weight"), []).append(stored)
        else:
            kept[name] = stored
    for name, matrices in each.items():
        prefix, part = name.rsplit(".", 1)
        if part == "down_proj":
            kept[name] = torch.stack(matrices)
        elif part == "gate_proj":
            pairs = zip(matrices, each[f"{prefix}.up_proj"], strict=True)
            kept[f"{prefix}.gate_up_proj"] = torch.stack([torch.cat(pair) for pair in pairs])
    return kept
