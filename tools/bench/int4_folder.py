"""A folder of INT4 weights against a Q4_K_M file of the same model: seconds of a load, and a plain step per byte.

python -m tools.bench.int4_folder --folder FOLDER [--layers 64] [--rounds 5]

Both are written to FOLDER where they are missing: 36 GB. The INT4 folder is symmetric GPTQ with groups of 128, as
AutoRound writes it for Qwen3.6-27B: embedding, head, norms and the small matrices of the delta nets in bf16.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from dflash_core.bench.synthetic_models import SIZE_27B
from dflash_core.engine import Engine
from dflash_core.knobs import Knobs
from dflash_core.loading import load_target
from tools.bench.synthetic import synthetic_pair
from tools.bench.tool import run_tool

GROUP, SHARD = 128, 2 << 30
FLOATS = ("embed_tokens", "lm_head", "in_proj_a", "in_proj_b")
CONTEXT, TOKENS = 2048, 96


def modules(layers: int) -> tuple[dict[str, Any], dict[str, tuple[int, ...]]]:
    """The config of a 27B of so many layers, and the shapes of its tensors by name."""
    from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5ForCausalLM, Qwen3_5TextConfig

    config = Qwen3_5TextConfig(
        vocab_size=SIZE_27B.vocabulary.size, hidden_size=5120, intermediate_size=17_408, num_hidden_layers=layers,
        num_attention_heads=24, num_key_value_heads=4, head_dim=256, linear_num_key_heads=16, linear_num_value_heads=48,
        linear_key_head_dim=128, linear_value_head_dim=128, linear_conv_kernel_dim=4, tie_word_embeddings=False,
        max_position_embeddings=262_144,
        rope_parameters={
            "rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25, "mrope_section": [11, 11, 10],
            "mrope_interleaved": True,
        },
    )  # fmt: skip
    with torch.device("meta"):
        model = Qwen3_5ForCausalLM(config)
    settings = config.to_dict() | {"architectures": ["Qwen3_5ForCausalLM"]}
    return settings, {name: tuple(one.shape) for name, one in model.state_dict().items()}


def tensors(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> Iterator[tuple[str, Tensor]]:
    """What is stored of a tensor, with random codes and weights of the variance 1 / columns."""
    if len(shape) != 2 or any(one in name for one in FLOATS):
        spread = shape[-1] ** -0.5 if len(shape) > 1 else 1.0
        yield name, torch.full(shape, spread, dtype=torch.bfloat16)
        return
    module, (rows, columns) = name.removesuffix(".weight"), shape
    codes = rng.integers(0, 1 << 32, (columns // 8, rows), np.uint32).view(np.int32)
    yield f"{module}.qweight", torch.from_numpy(codes)
    yield f"{module}.qzeros", torch.full((columns // GROUP, rows // 8), 0x77777777, dtype=torch.int32)
    yield f"{module}.scales", torch.full((columns // GROUP, rows), 0.2 * columns**-0.5, dtype=torch.float16)


def write_folder(folder: Path, layers: int) -> None:
    """Write the INT4 folder, but for its tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    settings, shapes = modules(layers)
    settings["quantization_config"] = {
        "quant_method": "gptq", "bits": 4, "group_size": GROUP, "sym": True, "desc_act": False,
        "checkpoint_format": "gptq",
    }  # fmt: skip
    rng, shard, size, placed = np.random.default_rng(0), dict[str, Tensor](), 0, dict[str, str]()

    def flush() -> None:
        nonlocal shard, size
        name = f"model-{len(set(placed.values())) + 1:05d}.safetensors"
        save_file(shard, folder / name)
        placed.update(dict.fromkeys(shard, name))
        shard, size = {}, 0

    for name, shape in shapes.items():
        for key, one in tensors(name, shape, rng):
            shard[key], size = one, size + one.nbytes
        if size > SHARD:
            flush()
    flush()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": placed}))
    _tokenizer(folder)
    (folder / "config.json").write_text(json.dumps(settings))  # last: with it the folder is whole


def _tokenizer(folder: Path) -> None:
    """A tokenizer of single bytes and filler."""
    from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers

    from dflash_core.text.pieces import LETTERS
    from dflash_core.text.pre_tokenizers import PRE_TOKENIZERS

    names = [*LETTERS, *(f"<filler {at}>" for at in range(SIZE_27B.vocabulary.size - len(LETTERS) - 1))]
    made = Tokenizer(models.BPE(vocab={name: at for at, name in enumerate(names)}, merges=[]))
    splits = [pre_tokenizers.Split(Regex(one), behavior="isolated") for one in PRE_TOKENIZERS["qwen35"].splits]
    made.pre_tokenizer = pre_tokenizers.Sequence([*splits, pre_tokenizers.ByteLevel(False, use_regex=False)])
    made.add_special_tokens([AddedToken("<|im_end|>", special=True)])
    made.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>"}))
    (folder / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}")


def step_ms(engine: Engine, prompt: list[int]) -> float:
    """Milliseconds of a plain step."""
    knobs = Knobs(drafting="plain", temperature=0.0, max_tokens=TOKENS, ignore_eos=True)
    events = iter(engine.generate(prompt, knobs))
    next(events)
    began = time.perf_counter()
    count = sum(1 for _ in events)
    return (time.perf_counter() - began) * 1e3 / count


def main() -> None:
    """The command line of this module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--folder", type=Path, required=True)
    add("--layers", type=int, default=64)
    add("--rounds", type=int, default=5)
    add("--device", choices=("cpu", "cuda"), default="cuda")
    args = parser.parse_args()
    folder = args.folder / f"int4-27b-{args.layers}"
    if not (folder / "config.json").exists():
        write_folder(folder, args.layers)
    engines = {}
    for name, path in (("int4", folder), ("q4_k_m", synthetic_pair(args.folder).target)):
        began = time.perf_counter()
        target = load_target(path, args.device)
        engines[name] = Engine(target, None, context_length=CONTEXT)
        line = {"file": name, "load_s": round(time.perf_counter() - began, 1), "bytes": target.weight_bytes}
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()
    times = {name: list[float]() for name in engines}
    for round_ in range(args.rounds + 1):
        for name in sorted(engines, reverse=round_ % 2 == 1):
            taken = step_ms(engines[name], [1, 2, 3, 4])
            if round_:
                times[name].append(taken)
    for name, engine in engines.items():
        taken = median(times[name])
        embedding = engine.target.file.tensors["token_embd.weight"].n_bytes
        read = engine.target.weight_bytes - embedding  # one row of the embedding is read
        line = {"file": name, "step_ms": round(taken, 4), "gib": round(read / 2**30, 3),
                "ms_per_gib": round(taken / (read / 2**30), 4)}  # fmt: skip
        sys.stdout.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    run_tool(main)
