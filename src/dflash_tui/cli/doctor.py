"""`doctor`: checks the machine and rates each part: fine, worth knowing, or a problem, and what to do about it.

`look` collects what is known of a machine, as plain data. A check reads only that, so tests can give it any machine.
"""

from __future__ import annotations

import json
import locale
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

from dflash_core.memory import HostMemory, gib, host_memory
from dflash_core.user_folders import KINDS, user_folder
from dflash_tui.application.amounts import counted
from dflash_tui.cli import probe
from dflash_tui.cli.options import Invocation
from dflash_tui.cli.probe import Facts
from dflash_tui.terminal.output import Notes

Verdict = Literal["ok", "note", "problem"]
TORCH_INSTALL = 'pip install --force-reinstall "torch>=2.11,<=2.13.0" --index-url ADDRESS'
CPU_TORCH = f"{TORCH_INSTALL}, with the address that pytorch.org/get-started/locally shows for CPU"
CUDA_TORCH = f"{TORCH_INSTALL}, with the address that pytorch.org/get-started/locally shows for CUDA 13.0"
DRIVER = "580"  # the first driver that runs programs made for CUDA 13
SMALLEST_TERMINAL = (40, 12)
LITTLE_MEMORY = 2 << 30
LITTLE_DISK = 64 << 20
# A card's usable memory is a few per cent below its size; below this share, someone has set a limit.
USUAL_SHARE = 0.9
ENOUGH_SHARED = (8, 0)  # a Turing block has 64 KB of shared memory, later architectures 99 KB and more
PROBE_LIMIT_S = 300


class Folder(NamedTuple):
    """A folder that the app writes to, the error if it cannot, and the bytes that are free on its disk."""

    name: str
    path: Path
    error: str = ""
    free: int = 1 << 62


class Terminal(NamedTuple):
    """The terminal that the app would use. Without a terminal the size is 0 x 0."""

    columns: int = 0
    lines: int = 0
    encoding: str = "utf-8"


@dataclass(frozen=True, slots=True)
class Computer:
    """Everything that the checks read. `probe` has the facts of each stage of probe.py, or its `error`; `refuses`: of
    something that is there, and not that it is missing."""

    system: str = "linux"
    environment: Mapping[str, str] = field(default_factory=dict)
    nvidia_card: bool = False  # on the PCI bus, driver or not
    memory: HostMemory = field(default_factory=lambda: HostMemory(0, 0, 0))
    folders: tuple[Folder, ...] = ()
    terminal: Terminal = Terminal()
    probe: Mapping[str, Facts] = field(default_factory=dict)

    def stage(self, name: str) -> Facts:
        return self.probe.get(name, {"error": "was not reached"})

    @property
    def has_driver(self) -> bool:
        return "driver" in self.stage("management") or "capability" in self.stage("driver")

    @property
    def refusal(self) -> str:
        """Why a driver that is installed cannot be used; "" where it can, or where there is none."""
        driver = self.stage("driver")
        failed = (one["error"] for one in (self.stage("management"), driver) if one.get("refuses"))
        return next(failed, driver.get("error", "") if self.has_driver else "")


class Finding(NamedTuple):
    """One part of the machine: what was found, the verdict, what to do."""

    check: str
    verdict: Verdict
    found: str
    remedy: str = ""


def judged(check: str, found: str, *rules: tuple[object, Verdict, str, str]) -> Finding:
    """The first rule that applies: whether it does, the verdict, what was found, the remedy. Fine if none does."""
    apply = (Finding(check, verdict, what, remedy) for applies, verdict, what, remedy in rules if applies)
    return next(apply, Finding(check, "ok", found))


def run(call: Invocation) -> int:
    """Inspect, judge, report. Returns 1 if there is a problem."""
    notes = Notes()
    notes.progress("looking at this machine")
    findings = examine(look(), call.args.device)
    notes.end_line()
    problems = sum(one.verdict == "problem" for one in findings)
    facts = {"verdict": worst(findings), "problems": problems, "checks": [one._asdict() for one in findings]}
    call.result(facts, report(findings))
    return 1 if problems else 0


def examine(machine: Computer, device: str = "auto") -> list[Finding]:
    """All findings. `device`: what --device asks for; with "cuda" a machine that has no usable card is a problem."""
    findings = [finding for check in CHECKS for finding in check(machine)]
    if device == "cuda" and not machine.has_driver and worst(findings) != "problem":
        refused = f"the driver refuses: {machine.refusal}"
        why = refused if machine.refusal else "this machine has no NVIDIA card and no driver"
        remedy = "leave --device out, and it decodes on the CPU"
        findings.append(Finding("device", "problem", f"cuda, but {why}", remedy))
    return findings


def worst(findings: list[Finding]) -> Verdict:
    return max((one.verdict for one in findings), key=("ok", "note", "problem").index)


def report(findings: list[Finding]) -> str:
    width = max(len(one.check) for one in findings)
    lines = []
    for check, verdict, found, remedy in findings:
        lines.append(f"{verdict:<8} {check:<{width}}  {found}")
        lines += [f"{'':<8} {'':<{width}}  -> {remedy}"] if remedy else []
    problems = sum(one.verdict == "problem" for one in findings)
    return "\n".join([*lines, counted(problems, "problem") if problems else "no problems", ""])


def check_torch(machine: Computer) -> Iterator[Finding]:
    """The build of torch compared with the driver: each may be installed without the other."""
    yield Finding("Python", "ok", f"{platform.python_version()} on {machine.system} {platform.machine()}")
    torch, driver = machine.stage("torch"), machine.has_driver
    if "error" in torch:
        yield Finding("torch", "problem", torch["error"], "install the project again: pip install --force-reinstall .")
        return
    built = torch["cuda"]
    found = f"{torch['version']}, {f'CUDA {built}' if built else 'CPU build'}"
    cpu_build, no_driver = f"{found}, although there is an NVIDIA driver", f"{found}, but no NVIDIA driver"
    yield judged(
        "torch", found,
        (not built and driver, "problem", cpu_build, f"{CUDA_TORCH} (or nothing: it decodes on the CPU)"),
        (built and not driver and not machine.nvidia_card, "note", no_driver,
         f"decodes on the CPU; smaller: {CPU_TORCH}"),
    )  # fmt: skip


def check_compiler(machine: Computer) -> Iterator[Finding]:
    """NVRTC: it needs no card, so it is tested wherever its wheels exist."""
    compiler, name = machine.stage("compiler"), "CUDA compiler"
    if machine.system == "darwin":
        yield Finding(name, "ok", "none, as CUDA does not exist on macOS; decodes on the CPU")
    elif "error" in compiler:
        yield Finding(name, "problem", compiler["error"], "install the project again; its CUDA packages are pinned")
    else:
        version, made = ".".join(map(str, compiler["version"])), ", ".join(compiler["architectures"])
        yield Finding(name, "ok", f"NVRTC {version} compiles probe.cu for {made}")


def check_driver(machine: Computer) -> Iterator[Finding]:
    management, refused = machine.stage("management"), machine.refusal
    version, wsl = "version unknown", "WSL_DISTRO_NAME" in machine.environment
    if "cuda" in management:
        version = f"{management['driver']}, for CUDA up to {'.'.join(map(str, management['cuda']))}"
    # A machine without a card may have the library of a driver.
    sure: Verdict = "problem" if machine.has_driver or machine.nvidia_card or wsl else "note"
    # What was refused says what to do first.
    again = f"else restart the machine, or install driver {DRIVER} or later, or decode with --device cpu"
    missing = f"install driver {DRIVER} or later; in a container, start it with the GPU (--gpus all)"
    if machine.system != "darwin":
        yield judged(
            "driver", version if machine.has_driver else "no NVIDIA card and no driver; decodes on the CPU",
            (refused, sure, f"{version}; {refused}", again),
            (machine.nvidia_card and not machine.has_driver, "problem", "none, though there is an NVIDIA card",
             missing),
        )  # fmt: skip


def check_cards(machine: Computer) -> Iterator[Finding]:
    card = machine.stage("driver")
    if "capability" not in card:
        return
    managed = [one for one in machine.stage("management").get("cards", ()) if one["name"] == card["name"]]
    size = max((one["total"] for one in managed), default=0)
    found = f"{card['name']}, compute capability {'.'.join(map(str, card['capability']))}, "
    found += f"{gib(card['free'])} of {gib(card['total'])} free"
    yield judged(
        "card", found,
        (tuple(card["capability"]) < ENOUGH_SHARED, "problem",
         f"{found}; its shared memory is too small for passes of 64 rows",
         "use a card of 8.0 (Ampere) or later, or --device cpu"),
        (card["total"] < USUAL_SHARE * size, "note", f"{found}; the card has {gib(size)}",
         "a vGPU limit or a MIG slice is in force"),
    )  # fmt: skip
    if users := next((one["holders"] for one in managed if one.get("holders")), ""):
        yield Finding("card memory", "note", f"used by {users}", "close them for longer contexts and larger trees")
    if "WSL_DISTRO_NAME" in machine.environment:
        remedy = 'in the NVIDIA Control Panel set "CUDA - Sysmem Fallback Policy" to "Prefer No Sysmem Fallback"'
        yield Finding("card memory", "note", "on WSL the driver moves what does not fit to main memory, slowly", remedy)
    if card["count"] > 1:
        yield Finding("cards", "note", f"{card['count']} cards; the first is used", "choose with CUDA_VISIBLE_DEVICES")


def check_kernels(machine: Computer) -> Iterator[Finding]:
    """The self-test, if there is a usable card."""
    kernels = machine.stage("kernels")
    if "capability" not in machine.stage("driver") or not machine.stage("torch").get("cuda"):
        return
    if "error" in kernels:
        remedy = "restart the machine, and undo overclocking; else decode with --device cpu, and report this output"
        yield Finding("kernels", "problem", kernels["error"], remedy)
        return
    if kernels.get("note"):
        yield Finding("kernels", "note", kernels["note"], "make the folder writable")
    yield Finding("kernels", "ok", f"a small pair agrees with the CPU, {kernels['seconds']:.0f} s")


def check_memory(machine: Computer) -> Iterator[Finding]:
    """Main memory, folders, and the pair that comes with the program."""
    free, demo = machine.memory.free, machine.stage("demo")
    found = f"{gib(free)} of {gib(machine.memory.total)} free"
    remedy = "enough only for the demo pair; close other programs for more"
    yield judged("memory", found, (free < LITTLE_MEMORY, "note", found, remedy))
    for name, path, error, left in machine.folders:
        remedy = f"make it writable, or set XDG_{name.upper()}_HOME to a folder that is"
        full = f"{gib(left)} free on the disk of {path}"
        yield judged(
            f"{name} folder", str(path), (error, "problem", f"cannot write to {error}", remedy),
            (left < LITTLE_DISK, "problem", full, "free some space: what is written there may be lost"),
        )  # fmt: skip
    if "error" in demo:
        yield Finding("demo pair", "problem", demo["error"], "install the project again; the models come with it")
    else:
        yield Finding("demo pair", "ok", f"loads in {demo['seconds']:.1f} s")


def check_terminal(machine: Computer) -> Iterator[Finding]:
    (columns, lines, encoding), environment = machine.terminal, machine.environment
    kind, deep = environment.get("TERM", ""), environment.get("COLORTERM", "").lower() in ("truecolor", "24bit")
    colours = "24-bit colour" if deep else "256 colours" if "256color" in kind else "16 colours"
    colours = "no colour (NO_COLOR)" if environment.get("NO_COLOR") else colours
    found, (width, height) = f"{columns}x{lines}, {kind or 'TERM not set'}, {colours}, {encoding}", SMALLEST_TERMINAL
    if not columns:
        yield Finding("terminal", "ok", "none, as the output is piped; the app needs one")
        return
    yield judged(
        "terminal", found,
        (columns < width or lines < height, "problem", found,
         f"make the window at least {width}x{height}; 80x24 is comfortable"),
        (kind in ("", "dumb"), "problem", found, "the app needs cursor control: TERM=xterm-256color, or `ask`"),
        ("utf" not in encoding.lower(), "note", found, "lines and bars may show as ?: export LC_ALL=C.UTF-8"),
        (colours == "16 colours", "note", found, "for the themes' own colours: export TERM=xterm-256color"),
    )  # fmt: skip


CHECKS = (check_torch, check_compiler, check_driver, check_cards, check_kernels, check_memory, check_terminal)


def look() -> Computer:
    """Inspect this machine. Takes a few seconds: another process imports torch and loads the demo pair."""
    found = run_probe([sys.executable, "-m", probe.__name__], PROBE_LIMIT_S)
    environment = dict(os.environ)
    return Computer(sys.platform, environment, _has_card(), host_memory(), folders(), _terminal(), found)


def run_probe(command: list[str], limit_s: float) -> dict[str, Facts]:
    """Run the probe and collect its stages. The first stage missing after a crash or hang gets the error."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            output, errors = process.communicate(timeout=limit_s)
            code = process.returncode
            ended = f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"
            trouble = ": ".join([f"the check {ended}", *errors.strip().splitlines()[-1:]])
        except subprocess.TimeoutExpired:
            process.kill()
            output, trouble = process.communicate()[0], f"the check gave no answer for {limit_s:g} s"
    stages: dict[str, Facts] = {}
    for line in output.splitlines():
        if line.startswith('{"') and line.endswith("}"):
            stages |= json.loads(line)
    for missing in [name for name in probe.STAGES if name not in stages][:1]:
        stages[missing] = {"error": trouble, "refuses": True}
    return stages


def folders() -> tuple[Folder, ...]:
    """The app's folders, each checked for writing without being created."""
    return tuple(_folder(kind, user_folder(kind)) for kind in KINDS)


def _folder(kind: str, path: Path) -> Folder:
    """The folder `path`; where it does not exist, its nearest existing parent is checked."""
    there = next(one for one in (path, *path.parents) if one.exists())
    try:
        with tempfile.TemporaryFile(dir=there):
            return Folder(kind, path, free=shutil.disk_usage(there).free)
    except OSError as error:
        return Folder(kind, path, f"{there}: {error.strerror}")


def _has_card() -> bool:
    for device in Path("/sys/bus/pci/devices").glob("*"):
        with suppress(OSError):
            vendor, kind = ((device / name).read_text().strip() for name in ("vendor", "class"))
            if vendor == "0x10de" and kind.startswith(("0x0300", "0x0302")):
                return True
    return False


def _terminal() -> Terminal:
    for stream in (1, 2, 0):
        with suppress(OSError):
            return Terminal(*os.get_terminal_size(stream), locale.getpreferredencoding(False))
    return Terminal()
