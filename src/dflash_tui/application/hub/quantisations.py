"""The GGUF files of a repository, by their quantisation: what there is, and how large it is."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass

from huggingface_hub import HfApi
from huggingface_hub.hf_api import RepoFile

from dflash_core.clean import one_line
from dflash_core.formats.splits import SPLIT_NAME
from dflash_tui.application.hub.catalogue import CatalogueError, Pair, Source, source_of
from dflash_tui.application.hub.fetch import explained
from dflash_tui.application.hub.files import HubError
from dflash_tui.application.hub.waiting import as_it_comes

# Q4_K_M, UD-Q4_K_XL, IQ4_XS, BF16 and so on, at the end of a name.
_QUANT = re.compile(r"(?:UD-)?(?:I?Q\d\w*|TQ\d\w*|MXFP4\w*|BF16|F16|F32)$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Quantisation:
    """A model of a repository: its `file`, the first part if it is split, and the bytes of all parts."""

    name: str
    file: str
    size: int


def quantisations(repo: str, endpoint: str | None = None) -> list[Quantisation]:
    """The models of a repository, the smallest first. Raises CatalogueError for a name that is none, and HubError."""
    source_of(repo, "model.gguf")  # checks the name

    def asked() -> Generator[tuple[str, int], None, None]:
        try:
            for one in HfApi(endpoint=endpoint).list_repo_tree(repo, recursive=True):
                if isinstance(one, RepoFile):
                    yield one.path, one.size
        except Exception as error:
            raise explained(error, repo) from None

    found = grouped(as_it_comes(asked, lambda: None))
    if not found:
        raise HubError(f"{repo}: no GGUF file in it; expected a repository of GGUF files")
    return found


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
    """The file of a repository with this quantisation, as a pair without a drafter. Raises CatalogueError."""
    fitting = [one for one in there if one.name.lower() == quant.lower()]
    if len(fitting) != 1:
        names = ", ".join(dict.fromkeys(one.name for one in there))
        found = f"{len(fitting)} files" if fitting else "no file"
        raise CatalogueError(one_line(f"{repo}: {found} of {quant!r}; expected one of {names}"))
    source: Source = source_of(repo, fitting[0].file)
    return Pair(f"{repo}:{fitting[0].name}", fitting[0].file, "", source, None)
