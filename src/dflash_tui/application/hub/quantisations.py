"""The models of a repository and their sizes: its GGUF files by quantisation, and the folder that it is itself."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass

from huggingface_hub import HfApi

from dflash_core.clean import one_line
from dflash_core.errors import DFlashError
from dflash_core.formats.splits import INDEX, SPLIT_NAME
from dflash_tui.application.hub.catalogue import Pair, source_of
from dflash_tui.application.hub.fetch import TIMEOUT_S, as_it_comes, explained
from dflash_tui.application.hub.files import HubError

# Q4_K_M, UD-Q4_K_XL, IQ4_XS, BF16 and so on, at the end of a name.
_QUANT = re.compile(r"(?:UD-)?(?:I?Q\d\w*|TQ\d\w*|MXFP4\w*|BF16|F16|F32)$", re.IGNORECASE)
FOLDER = "safetensors"
"""The name of a model whose repository is its folder."""
_NEEDED = ("config.json", "tokenizer.json")
_OPTIONAL = (
    "tokenizer_config.json", "generation_config.json", "chat_template.jinja", "chat_template.json", INDEX,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Quantisation:
    """A model: its `file`, the first part of a split one; the bytes of all parts; `beside`: other files of a folder."""

    name: str
    file: str
    size: int
    beside: tuple[str, ...] = ()


def quantisations(repo: str, endpoint: str | None = None) -> list[Quantisation]:
    """The models of a repository, the smallest first. Raises DFlashError."""
    source_of(repo, "model.gguf")  # checks the name

    def asked() -> Generator[tuple[str, int], None, None]:
        try:
            # Not `list_repo_tree`, which asks again for half a minute where there is no network.
            about = HfApi(endpoint=endpoint).model_info(repo, files_metadata=True, timeout=TIMEOUT_S)
        except Exception as error:
            raise explained(error, repo) from None
        yield from ((one.rfilename, one.size or 0) for one in about.siblings or ())

    files = list(as_it_comes(asked, lambda: None))
    found = [*grouped(files), *folder(files)]
    if not found:
        no_folder = f"no {' and '.join(_NEEDED)} beside .safetensors files"
        raise HubError(f"{repo}: no GGUF file in it, and {no_folder}; expected a repository of either")
    return sorted(found, key=lambda one: one.size)


def folder(files: Sequence[tuple[str, int]]) -> list[Quantisation]:
    """The repository itself, where it is the folder of a model; [] where it is none. Of weights in several forms, those
    under the usual name."""
    sizes = {name: size for name, size in files if "/" not in name}
    weights = [name for name in sizes if name.endswith(".safetensors")]
    weights = [name for name in weights if name.startswith("model")] or weights
    if not weights or not all(name in sizes for name in _NEEDED):
        return []
    first, *more = sorted(weights)
    beside = (*_NEEDED, *(name for name in _OPTIONAL if name in sizes), *more)
    return [Quantisation(FOLDER, first, sum(sizes[name] for name in (first, *beside)), beside)]


def grouped(files: Iterable[tuple[str, int]]) -> list[Quantisation]:
    """Models from names and sizes of files: parts of a split model count as one."""
    found = dict[str, Quantisation]()
    for file, size in files:
        stem = file.rpartition("/")[2].removesuffix(".gguf")
        if stem == file.rpartition("/")[2] or "mmproj" in stem.lower() or "imatrix" in stem.lower():
            continue
        split = SPLIT_NAME.fullmatch(file)
        whole = (split[1] if split else file.removesuffix(".gguf")).rpartition("/")[2]
        match = _QUANT.search(whole)
        before = found.get(whole)
        first = file if before is None else min(file, before.file)
        found[whole] = Quantisation(match[0] if match else whole, first, size + (before.size if before else 0))
    return sorted(found.values(), key=lambda one: one.size)


def chosen(repo: str, there: Sequence[Quantisation], quant: str) -> Pair:
    """The file of a repository with this quantisation, as a pair without a drafter. Raises DFlashError."""
    fitting = [one for one in there if one.name.lower() == quant.lower()]
    if len(fitting) != 1:
        names = ", ".join(dict.fromkeys(one.name for one in there))
        found = f"{len(fitting)} files" if fitting else "no file"
        raise DFlashError(one_line(f"{repo}: {found} of {quant!r}; expected one of {names}"))
    source = source_of(repo, fitting[0].file, fitting[0].beside)
    return Pair(f"{repo}:{fitting[0].name}", fitting[0].file, "", source, None)
