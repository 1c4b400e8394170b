"""Kernel sources: the files that one includes, a hash of their joint content, and machine code of them without a card.
The compiler needs only its two wheels: itself and its headers."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from dflash_core.errors import DeviceError, UnsupportedError, cpu_only

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]+["<]([^">]+)[">]', re.MULTILINE)


def closure(path: Path, include: Iterable[Path] = ()) -> dict[Path, str]:
    """The text of `path` and of every file it includes, each once, in the order of first mention.

    Includes are searched next to the including file, then in `include`. A file found in neither belongs to the
    compiler and is covered by the compiler's version.
    """
    folders = list(include)
    texts: dict[Path, str] = {}
    waiting = [path]
    while waiting:
        file = waiting.pop(0)
        if file in texts:
            continue
        texts[file] = file.read_text(encoding="utf-8")
        for name in _INCLUDE.findall(texts[file]):
            found = next((folder / name for folder in (file.parent, *folders) if (folder / name).is_file()), None)
            if found is not None:
                waiting.append(found)
    return texts


def content_hash(texts: Mapping[Path, str], *settings: object) -> str:
    """A hash of the sources and of everything else that the result depends on. Folders do not matter, file names do."""
    digest = hashlib.sha256()
    for part in (*settings, *(item for path, text in texts.items() for item in (path.name, text))):
        data = str(part).encode()
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()


# The architectures that every kernel must compile for. Hopper's matrix instructions exist under the name sm_90a only.
ARCHITECTURES = ("sm_80", "sm_86", "sm_89", "sm_90a", "sm_120")
OLDEST = (7, 5)


def architecture(major: int, minor: int) -> str:
    """The name to compile for on a card of this compute capability. Raises UnsupportedError for a card too old."""
    if (major, minor) < OLDEST:
        raise cpu_only(f"compute capability {major}.{minor}, expected {OLDEST[0]}.{OLDEST[1]} (Turing) or later")
    return f"sm_{major}{minor}" + ("a" if (major, minor) == (9, 0) else "")


def version() -> tuple[int, int]:
    """The compiler's own version. Raises DeviceError where it is not installed."""
    _, major, minor = _nvrtc().nvrtcVersion()
    return major, minor


def compile_cubin(
    source: str, name: str, arch: str, *, defines: Mapping[str, str] | None = None, include: Iterable[Path] = ()
) -> bytes:
    """Compile to machine code for `arch`, such as "sm_90a".

    Raises DeviceError where compiler or headers are missing, UnsupportedError with the log's first line where the
    source does not compile.
    """
    nvrtc = _nvrtc()
    # With "compute_90" in place of "sm_90" the compiler makes only assembly.
    options = [f"--gpu-architecture={arch}", "--std=c++17"]
    options += [f"--include-path={folder}" for folder in (*include, _headers())]
    options += [f"--define-macro={key}={value}" for key, value in (defines or {}).items()]
    encoded = [option.encode() for option in options]
    program = _ok(nvrtc.nvrtcCreateProgram(source.encode(), name.encode(), 0, [], []))
    try:
        if int(nvrtc.nvrtcCompileProgram(program, len(encoded), encoded)[0]) != 0:
            log = bytearray(_ok(nvrtc.nvrtcGetProgramLogSize(program)))
            _ok(nvrtc.nvrtcGetProgramLog(program, log))
            lines = bytes(log).rstrip(b"\0").decode(errors="replace").splitlines()
            error = next((line for line in lines if "error" in line), lines[0] if lines else "no log").strip()
            raise UnsupportedError(f"{name} does not compile for {arch}: {error}")
        code = bytearray(_ok(nvrtc.nvrtcGetCUBINSize(program)))
        _ok(nvrtc.nvrtcGetCUBIN(program, code))
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    if not code:
        raise UnsupportedError(f"{name} compiled to nothing for {arch}; expected an architecture such as sm_90a")
    return bytes(code)


def _nvrtc() -> Any:
    try:
        from cuda.bindings import nvrtc

        nvrtc.nvrtcVersion()  # loads the library
    except Exception as error:  # the bindings raise types of their own where the library is missing
        raise DeviceError(
            f"no CUDA compiler ({_line(error)}); reinstall with cuda-python and nvidia-cuda-nvrtc 13.0"
        ) from None
    return nvrtc


def _headers() -> Path:
    try:
        from cuda import pathfinder

        folder = pathfinder.find_nvidia_header_directory("cudart")
    except Exception as error:
        raise DeviceError(f"no CUDA headers ({_line(error)}); reinstall with nvidia-cuda-runtime 13.0") from None
    if folder is None:
        raise DeviceError("no CUDA headers; reinstall with nvidia-cuda-runtime 13.0, the compiler's own minor version")
    return Path(folder)


def _ok(result: tuple[Any, ...]) -> Any:
    """The value of a binding's call, whose first item is its status."""
    if int(result[0]) != 0:
        raise DeviceError(f"the CUDA compiler failed: {result[0].name}")
    return result[1] if len(result) > 1 else None


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
