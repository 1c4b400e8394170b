"""Sampling that the makers of a model recommend: what the file says, else a table by name and size.

The table has the values of the makers' model cards and generation_config.json. A file names its model in
`general.name`; a model whose name is not here has no recommended sampling, and is decoded greedily by default.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from dflash_core.errors import KnobError
from dflash_core.knobs import SPEC, Knobs, Value

SAMPLING = tuple(spec.name for spec in SPEC.values() if spec.group == "sampling")
FILE_KEYS = {
    "general.sampling.temp": "temperature",
    "general.sampling.top_k": "top_k",
    "general.sampling.top_p": "top_p",
    "general.sampling.min_p": "min_p",
    "general.sampling.penalty_repeat": "repetition_penalty",
}
"""Keys of a file and the knobs that they recommend values for."""
FILE = "the file"
NAME_KEYS = ("general.name", "general.basename", "general.base_model.0.name")


@dataclass(frozen=True, slots=True)
class Recommended:
    """Values of sampling knobs, in answers without reasoning and with it; a knob that is not named is off.

    source: FILE or the name of a family; "" where nothing is recommended. problems: a line for each
    value of the file that is left out.
    """

    source: str = ""
    plain: Mapping[str, Value] = field(default_factory=dict)
    thinking: Mapping[str, Value] = field(default_factory=dict)
    problems: tuple[str, ...] = ()

    def defaults(self, thinking: bool) -> dict[str, Value]:
        """The default of each sampling knob in answers with or without reasoning."""
        found = self.thinking if thinking else self.plain
        return {name: found.get(name, SPEC[name].default) for name in SAMPLING}

    def applied(self, knobs: Knobs, chosen: Collection[str] = ()) -> Knobs:
        """`knobs` with the defaults for all that is not `chosen`. A chosen temperature of 0 is greedy decoding: then
        nothing else of sampling has a default."""
        return self.moved(knobs, {name: getattr(knobs, name) for name in SAMPLING}, chosen)

    def moved(self, knobs: Knobs, before: Mapping[str, Value], chosen: Collection[str] = ()) -> Knobs:
        """`knobs` with the defaults for all that is at its default `before` and is not `chosen`."""
        if "temperature" in chosen and not knobs.temperature:
            return knobs
        now = self.defaults(knobs.thinking).items()
        return knobs.replace(**{n: value for n, value in now if n not in chosen and getattr(knobs, n) == before[n]})

    def greedy(self, knobs: Knobs) -> Knobs:
        """`knobs` for a measurement: greedy, unless the temperature is not the default."""
        before = self.defaults(knobs.thinking)
        return NOTHING.moved(knobs, before) if knobs.temperature == before["temperature"] else knobs

    @property
    def by(self) -> str:
        """Who recommends it, in words."""
        return f"as recommended for {self.source}" if self.source != FILE else "as the file recommends"

    def words(self, thinking: bool) -> str:
        """The values in a line."""
        found = {name: value for name, value in self.defaults(thinking).items() if value != SPEC[name].default}
        return ", ".join(f"{name} {SPEC[name].show(value)}" for name, value in found.items()) or "temperature 0"


NOTHING = Recommended()


def _sampling(temperature: float, top_p: float = 1.0, top_k: int = 0, **more: Value) -> dict[str, Value]:
    return {"temperature": temperature, "top_p": top_p, "top_k": top_k, **more}


def _same(source: str, values: Mapping[str, Value]) -> Recommended:
    return Recommended(source, values, values)


_QWEN3_PLAIN, _QWEN3_THINKING = _sampling(0.7, 0.8, 20), _sampling(0.6, 0.95, 20)
_PLAIN, _THINKING = _sampling(0.7, 0.8, 20, presence_penalty=1.5), _sampling(1.0, 0.95, 20)

FAMILIES: tuple[tuple[str, Recommended], ...] = (
    ("deepseek-r1", _same("DeepSeek-R1", _sampling(0.6, 0.95))),
    (
        r"qwen-?3\.5-0\.8b",
        Recommended(
            "Qwen3.5 of 0.8B",
            _sampling(1.0, 1.0, 20, presence_penalty=2.0),
            _sampling(1.0, 0.95, 20, presence_penalty=1.5),
        ),
    ),
    (r"qwen-?3\.5-2b", NOTHING),  # its makers recommend other values than for larger ones; no source for them yet
    (r"qwen-?3\.5", Recommended("Qwen3.5", _PLAIN, _sampling(1.0, 0.95, 20, presence_penalty=1.5))),
    (r"qwen-?3\.[6-9]", Recommended("Qwen3.6 and later", _PLAIN, _THINKING)),
    ("qwen-?3-coder", _same("Qwen3-Coder", _sampling(0.7, 0.8, 20, repetition_penalty=1.05))),
    ("qwen-?3-.*thinking", _same("Qwen3-Thinking", _QWEN3_THINKING)),
    ("qwen-?3", Recommended("Qwen3", _QWEN3_PLAIN, _QWEN3_THINKING)),
    (r"qwen-?2\.5-(?!coder|math|vl)", _same("Qwen2.5", _sampling(0.7, 0.8, 20, repetition_penalty=1.05))),
    ("gemma-?[34]", _same("Gemma 3 and 4", _sampling(1.0, 0.95, 64))),
    ("gpt-?oss", _same("gpt-oss", _sampling(1.0))),
    ("llama-?3", _same("Llama 3", _sampling(0.6, 0.9))),
    ("seed-oss", _same("Seed-OSS", _sampling(1.1, 0.95))),
    ("glm-?z1", _same("GLM-Z1", _sampling(0.6, 0.95, 40))),
    ("phi-?4-reasoning", _same("Phi-4-reasoning", _sampling(0.8, 0.95, 50))),
    ("smollm-?3", _same("SmolLM3", _sampling(0.6, 0.95))),
    ("magistral", _same("Magistral", _sampling(0.7, 0.95))),
    ("(mistral-small-3|devstral)", _same("Mistral Small 3 and Devstral", _sampling(0.15))),
    ("smollm-?2", _same("SmolLM2", _sampling(0.2, 0.9))),
)
"""Patterns of names in lower case with - for spaces, and what is recommended for them; the first that is found."""


def recommended(metadata: Mapping[str, object]) -> Recommended:
    """The sampling that is recommended for the model of a GGUF file."""
    values, problems = _of_file(metadata)
    if values:
        return replace(_same(FILE, values), problems=problems)
    for key in NAME_KEYS:
        name = re.sub(r"[\s_-]+", "-", str(metadata.get(key, "")).lower())
        for pattern, found in FAMILIES:
            if re.search(rf"(?<![a-z0-9]){pattern}", name):
                return replace(found, problems=problems)
    return replace(NOTHING, problems=problems)


def _of_file(metadata: Mapping[str, object]) -> tuple[dict[str, Value], tuple[str, ...]]:
    """The values of the file, and a line for each that is out of range."""
    values, problems = dict[str, Value](), list[str]()
    for key, name in FILE_KEYS.items():
        value = metadata.get(key)
        if value is None:
            continue
        try:
            values[name] = SPEC[name].check(_plain(name, value))
        except KnobError as error:
            problems.append(f"{key} is left out: {error}")
    return values, tuple(problems)


def _plain(name: str, value: object) -> Value:
    """A number of a file: -1 candidates are all of them, and a float is the shortest decimal of its float32."""
    if name == "top_k":
        return 0 if value == -1 else value if isinstance(value, int) else str(value)
    return float(f"{value:.7g}") if isinstance(value, float) else value if isinstance(value, int) else str(value)
