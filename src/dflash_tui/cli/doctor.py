"""`doctor`: checks the machine and rates each part: fine, worth knowing, or a problem, and what to do about it.

A check is a function from a Computer to findings. A check reads nothing else, so tests can give it any machine.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from dflash_core.memory import gib
from dflash_tui.cli.machine import Computer, look
from dflash_tui.cli.options import Invocation
from dflash_tui.terminal.output import Notes

Verdict = Literal["ok", "note", "problem"]
TORCH_INSTALL = 'pip install --force-reinstall "torch>=2.11,<=2.13.0" --index-url ADDRESS'
CPU_TORCH = f"{TORCH_INSTALL}, with the address that pytorch.org/get-started/locally shows for CPU"
CUDA_TORCH = f"{TORCH_INSTALL}, with the address that pytorch.org/get-started/locally shows for CUDA 13.0"
# The first driver that runs programs made for CUDA 13.
DRIVER = "580"
SMALLEST_TERMINAL = (40, 12)
LITTLE_MEMORY = 2 << 30
LITTLE_DISK = 64 << 20
# A card's usable memory is a few per cent below its size; below this share, someone has set a limit.
USUAL_SHARE = 0.9
ENOUGH_SHARED = (8, 0)  # a Turing block has 64 KB of shared memory, later architectures 99 KB and more


@dataclass(frozen=True, slots=True)
class Finding:
    """One part of the machine: what was found, the verdict, what to do."""

    check: str
    verdict: Verdict
    found: str
    remedy: str = ""


Check = Callable[[Computer], Iterator[Finding]]


def run(call: Invocation) -> int:
    """Inspect, judge, report. Returns 1 if there is a problem."""
    notes = Notes()
    notes.progress("looking at this machine")
    findings = examine(look(), call.args.device)
    notes.end_line()
    problems = sum(finding.verdict == "problem" for finding in findings)
    checks = [dataclasses.asdict(finding) for finding in findings]
    call.result({"verdict": worst(findings), "problems": problems, "checks": checks}, report(findings))
    return 1 if problems else 0


def examine(machine: Computer, device: str = "auto") -> list[Finding]:
    """All findings. `device`: what --device asks for; with "cuda" a machine that has no usable card is a problem."""
    findings = [finding for check in CHECKS for finding in check(machine)]
    if device == "cuda" and not has_driver(machine) and worst(findings) != "problem":
        remedy = "leave --device out, and it decodes on the CPU"
        refused = refusal(machine)
        why = f"the driver refuses: {refused}" if refused else "this machine has no NVIDIA card and no driver"
        findings.append(Finding("device", "problem", f"cuda, but {why}", remedy))
    return findings


def worst(findings: list[Finding]) -> Verdict:
    verdicts = {finding.verdict for finding in findings}
    return "problem" if "problem" in verdicts else "note" if "note" in verdicts else "ok"


def report(findings: list[Finding]) -> str:
    width = max(len(finding.check) for finding in findings)
    lines = []
    for finding in findings:
        lines.append(f"{finding.verdict:<8} {finding.check:<{width}}  {finding.found}")
        if finding.remedy:
            lines.append(f"{'':<8} {'':<{width}}  -> {finding.remedy}")
    problems = sum(finding.verdict == "problem" for finding in findings)
    lines.append("no problems" if not problems else f"{problems} problem{'s' * (problems > 1)}")
    return "\n".join(lines) + "\n"


def rated(check: str, found: str, verdict: Verdict, remedy: str, *, wrong: bool) -> Finding:
    """Fine; if it is wrong, it has this verdict and this remedy."""
    return Finding(check, verdict, found, remedy) if wrong else Finding(check, "ok", found)


def check_python(machine: Computer) -> Iterator[Finding]:
    found = f"{'.'.join(map(str, machine.python))} on {machine.system} {machine.processor}"
    remedy = "use Python 3.11 or later: make PYTHON=python3.12 chat"
    yield rated("Python", found, "problem", remedy, wrong=machine.python < (3, 11))


def check_torch(machine: Computer) -> Iterator[Finding]:
    """The build of torch compared with the driver: each may be installed without the other."""
    torch, driver = machine.stage("torch"), has_driver(machine)
    if "error" in torch:
        yield Finding("torch", "problem", torch["error"], "install the project again: pip install --force-reinstall .")
        return
    built = torch["cuda"]
    if built and driver and 0 < driver_cuda(machine)[0] < int(built.split(".")[0]):
        return  # the driver is too old for it: reported by that check
    found = f"{torch['version']}, {f'CUDA {built}' if built else 'CPU build'}"
    if not built and driver:
        remedy = f"{CUDA_TORCH} (or nothing: it decodes on the CPU)"
        yield Finding("torch", "problem", f"{found}, although there is an NVIDIA driver", remedy)
    elif built and not driver and not machine.nvidia_card:
        remedy = f"decodes on the CPU; smaller: {CPU_TORCH}"
        yield Finding("torch", "note", f"{found}, but no NVIDIA driver", remedy)
    elif built and driver and not machine.stage("torch_cuda").get("available"):
        yield Finding("torch", "problem", f"{found}, but it sees no card", "see the driver and card lines below")
    else:
        yield Finding("torch", "ok", found)


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
    if machine.system == "darwin":
        return
    needed, refused, cuda = machine.stage("torch").get("cuda") or "13.0", refusal(machine), driver_cuda(machine)
    known = f"{machine.stage('management')['driver']}, for CUDA up to {cuda[0]}.{cuda[1]}" if cuda[0] else ""
    again = "see the line on CUDA_VISIBLE_DEVICES; else restart the machine, install the driver again, or --device cpu"
    if 0 < cuda[0] < int(needed.split(".")[0]):
        yield Finding("driver", "problem", f"{known}; {needed} is needed", f"install driver {DRIVER} or later")
    elif refused:
        # A machine without a card may have the library of a driver.
        sure = has_driver(machine) or machine.nvidia_card or "WSL_DISTRO_NAME" in machine.environment
        yield Finding("driver", "problem" if sure else "note", f"{known or 'version unknown'}; {refused}", again)
    elif has_driver(machine):
        yield Finding("driver", "ok", known or "version unknown")
    elif machine.nvidia_card:
        remedy = f"install driver {DRIVER} or later; in a container, start it with the GPU (--gpus all)"
        yield Finding("driver", "problem", "none, though there is an NVIDIA card", remedy)
    else:
        yield Finding("driver", "ok", "no NVIDIA card and no driver; decodes on the CPU")


def check_cards(machine: Computer) -> Iterator[Finding]:
    card = machine.stage("driver")
    if "error" in card or "capability" not in card:
        return
    version = tuple(card["capability"])
    managed = [one for one in machine.stage("management").get("cards", ()) if one["name"] == card["name"]]
    size = max((one["total"] for one in managed), default=0)
    found = f"{card['name']}, compute capability {'.'.join(map(str, version))}, "
    found += f"{gib(card['free'])} of {gib(card['total'])} free"
    if version < ENOUGH_SHARED:
        remedy = "use a card of 8.0 (Ampere) or later, or --device cpu"
        yield Finding("card", "problem", f"{found}; its shared memory is too small for passes of 64 rows", remedy)
    elif card["total"] < USUAL_SHARE * size:
        yield Finding("card", "note", f"{found}; the card has {gib(size)}", "a vGPU limit or a MIG slice is in force")
    else:
        yield Finding("card", "ok", found)
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


def check_visible_devices(machine: Computer) -> Iterator[Finding]:
    value = machine.environment.get("CUDA_VISIBLE_DEVICES")
    if value is not None and (has_driver(machine) or machine.nvidia_card):
        hidden = value.strip() in ("", "-1", "NoDevFiles")
        found = f"CUDA_VISIBLE_DEVICES={value!r}{' hides every card' * hidden}"
        yield rated("visible cards", found, "problem", "unset CUDA_VISIBLE_DEVICES", wrong=hidden)


def check_memory(machine: Computer) -> Iterator[Finding]:
    free, remedy = machine.memory.free, "enough only for the demo pair; close other programs for more"
    found = f"{gib(free)} of {gib(machine.memory.total)} free"
    yield rated("memory", found, "note", remedy, wrong=free < LITTLE_MEMORY)


def check_folders(machine: Computer) -> Iterator[Finding]:
    for folder in machine.folders:
        remedy = f"make it writable, or set XDG_{folder.name.upper()}_HOME to a folder that is"
        found = f"cannot write to {folder.error}" if folder.error else str(folder.path)
        if not folder.error and folder.free < LITTLE_DISK:
            found = f"{gib(folder.free)} free on the disk of {folder.path}"
            remedy = "free some space: what is written there may be lost"
        wrong = bool(folder.error) or folder.free < LITTLE_DISK
        yield rated(f"{folder.name} folder", found, "problem", remedy, wrong=wrong)


def check_demo(machine: Computer) -> Iterator[Finding]:
    demo = machine.stage("demo")
    found = demo["error"] if "error" in demo else f"loads in {demo['seconds']:.1f} s"
    again = "install the project again; the models come with it"
    yield rated("demo pair", found, "problem", again, wrong="error" in demo)


def check_terminal(machine: Computer) -> Iterator[Finding]:
    terminal, environment = machine.terminal, machine.environment
    if not terminal.columns:
        yield Finding("terminal", "ok", "none, as the output is piped; the app needs one")
        return
    kind, colours = environment.get("TERM", ""), _colours(environment)
    columns, lines = SMALLEST_TERMINAL
    found = f"{terminal.columns}x{terminal.lines}, {kind or 'TERM not set'}, {colours}, {terminal.encoding}"
    if terminal.columns < columns or terminal.lines < lines:
        remedy = f"make the window at least {columns}x{lines}; 80x24 is comfortable"
        yield Finding("terminal", "problem", found, remedy)
    elif kind in ("", "dumb"):
        yield Finding("terminal", "problem", found, "the app needs cursor control: TERM=xterm-256color, or `ask`")
    elif "utf" not in terminal.encoding.lower():
        yield Finding("terminal", "note", found, "lines and bars may show as ?: export LC_ALL=C.UTF-8")
    elif colours == "16 colours":
        yield Finding("terminal", "note", found, "for the themes' own colours: export TERM=xterm-256color")
    else:
        yield Finding("terminal", "ok", found)


def _colours(environment: Any) -> str:
    if environment.get("NO_COLOR"):
        return "no colour (NO_COLOR)"
    if environment.get("COLORTERM", "").lower() in ("truecolor", "24bit"):
        return "24-bit colour"
    return "256 colours" if "256color" in environment.get("TERM", "") else "16 colours"


def has_driver(machine: Computer) -> bool:
    return "driver" in machine.stage("management") or "capability" in machine.stage("driver")


def refusal(machine: Computer) -> str:
    """Why a driver that is installed cannot be used; "" where it can, or where there is none."""
    management, driver = machine.stage("management"), machine.stage("driver")
    failed = next((one for one in (management, driver) if one.get("refuses")), {})
    return failed.get("error") or (driver.get("error", "") if has_driver(machine) else "")


def driver_cuda(machine: Computer) -> tuple[int, int]:
    """The newest CUDA version that the driver supports; (0, 0) if not known."""
    major, minor = machine.stage("management").get("cuda", (0, 0))
    return major, minor


CHECKS: tuple[Check, ...] = (
    check_python, check_torch, check_compiler, check_driver, check_cards, check_kernels, check_visible_devices,
    check_memory, check_folders, check_demo, check_terminal,
)  # fmt: skip
