"""`doctor`: checks the machine and rates each part: fine, worth knowing, or a problem, and what to do about it.

A check is a function from a Computer to findings. A check reads nothing else, so tests can give it any machine.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from dflash_core.memory import gib
from dflash_core.nvrtc import OLDEST
from dflash_tui.cli.machine import Computer, look
from dflash_tui.cli.options import Invocation
from dflash_tui.terminal.output import Notes, write_json, write_out

Verdict = Literal["ok", "note", "problem"]
TORCH_INSTALL = 'pip install --force-reinstall "torch>=2.11,<=2.13.0" --index-url ADDRESS'
CPU_TORCH = f"{TORCH_INSTALL}, with the address that pytorch.org/get-started/locally shows for CPU"
CUDA_TORCH = f"{TORCH_INSTALL}, with the address that pytorch.org/get-started/locally shows for CUDA 13.0"
# The first driver that runs programs made for CUDA 13.
DRIVER = "580"
SMALLEST_TERMINAL = (40, 12)
LITTLE_MEMORY = 2 << 30
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
    if call.args.json:
        checks = [dataclasses.asdict(finding) for finding in findings]
        write_json({"verdict": worst(findings), "problems": problems, "checks": checks})
    else:
        write_out(report(findings))
    return 1 if problems else 0


def examine(machine: Computer, device: str = "auto") -> list[Finding]:
    """All findings. `device`: what --device asks for; with "cuda" a machine that has no usable card is a problem."""
    findings = [finding for check in CHECKS for finding in check(machine)]
    if device == "cuda" and not has_driver(machine) and worst(findings) != "problem":
        remedy = "leave --device out, and it decodes on the CPU"
        findings.append(Finding("device", "problem", "cuda, but this machine has no NVIDIA card and no driver", remedy))
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


def check_python(machine: Computer) -> Iterator[Finding]:
    version = ".".join(map(str, machine.python))
    found = f"{version} on {machine.system} {machine.processor}"
    if machine.python < (3, 11):
        yield Finding("Python", "problem", found, "use Python 3.11 or later: make PYTHON=python3.12 chat")
    else:
        yield Finding("Python", "ok", found)


def check_torch(machine: Computer) -> Iterator[Finding]:
    """The build of torch compared with the driver: each may be installed without the other."""
    torch = machine.stage("torch")
    if "error" in torch:
        yield Finding("torch", "problem", torch["error"], "install the project again: pip install --force-reinstall .")
        return
    found = f"{torch['version']}, {'CUDA ' + torch['cuda'] if torch['cuda'] else 'CPU build'}"
    if not torch["cuda"] and has_driver(machine):
        remedy = f"{CUDA_TORCH} (or nothing: it decodes on the CPU)"
        yield Finding("torch", "problem", f"{found}, although there is an NVIDIA driver", remedy)
    elif torch["cuda"] and not has_driver(machine) and not machine.nvidia_card:
        yield Finding("torch", "note", f"{found}, but no NVIDIA driver", f"decodes on the CPU; smaller: {CPU_TORCH}")
    elif torch["cuda"] and has_driver(machine) and driver_cuda(machine)[0] < int(torch["cuda"].split(".")[0]):
        pass  # the driver is too old for it: reported by that check
    elif torch["cuda"] and has_driver(machine) and not machine.stage("torch_cuda").get("available"):
        yield Finding("torch", "problem", f"{found}, but it sees no card", "see the driver and card lines below")
    else:
        yield Finding("torch", "ok", found)


def check_compiler(machine: Computer) -> Iterator[Finding]:
    """NVRTC: it needs no card, so it is tested wherever its wheels exist."""
    compiler = machine.stage("compiler")
    if machine.system == "darwin":
        yield Finding("CUDA compiler", "ok", "none, as CUDA does not exist on macOS; decodes on the CPU")
    elif "error" in compiler:
        yield Finding(
            "CUDA compiler", "problem", compiler["error"], "install the project again; its CUDA packages are pinned"
        )
    else:
        version = ".".join(map(str, compiler["version"]))
        made = ", ".join(compiler["architectures"])
        yield Finding("CUDA compiler", "ok", f"NVRTC {version} compiles probe.cu for {made}")


def check_driver(machine: Computer) -> Iterator[Finding]:
    if machine.system == "darwin":
        return
    management, driver = machine.stage("management"), machine.stage("driver")
    if not has_driver(machine):
        if machine.nvidia_card:
            remedy = f"install driver {DRIVER} or later; in a container, start it with the GPU (--gpus all)"
            yield Finding("driver", "problem", "none, though there is an NVIDIA card", remedy)
        else:
            yield Finding("driver", "ok", "no NVIDIA card and no driver; decodes on the CPU")
        return
    cuda = driver_cuda(machine)
    found = f"{management.get('driver', 'version unknown')}, for CUDA up to {'.'.join(map(str, cuda))}"
    required = machine.stage("torch").get("cuda") or "13.0"
    if cuda[0] < int(required.split(".")[0]):
        yield Finding("driver", "problem", f"{found}; {required} is needed", f"install driver {DRIVER} or later")
    elif "error" in driver:
        remedy = "see the line on CUDA_VISIBLE_DEVICES; else restart the machine or install the driver again"
        yield Finding("driver", "problem", f"{found}; {driver['error']}", remedy)
    else:
        yield Finding("driver", "ok", found)


def _managed(machine: Computer) -> Sequence[Mapping[str, Any]]:
    """The cards as the management library knows them."""
    found: Sequence[Mapping[str, Any]] = machine.stage("management").get("cards", ())
    return found


def check_cards(machine: Computer) -> Iterator[Finding]:
    card = machine.stage("driver")
    if "error" in card or "capability" not in card:
        return
    major, minor = card["capability"]
    found = f"{card['name']}, compute capability {major}.{minor}, {gib(card['free'])} of {gib(card['total'])} free"
    size = max((c["total"] for c in _managed(machine) if c["name"] == card["name"]), default=0)
    if (major, minor) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        yield Finding("card", "problem", f"{found}; too old", f"use a card of {oldest} or later, or --device cpu")
    elif (major, minor) < ENOUGH_SHARED:
        remedy = "use a card of 8.0 (Ampere) or later, or --device cpu"
        yield Finding("card", "problem", f"{found}; its shared memory is too small for passes of 64 rows", remedy)
    elif card["total"] == 0:
        yield Finding("card", "problem", found, "no memory is visible: unset the vGPU limit, or restart the machine")
    elif "launch_error" in card:
        yield Finding("card", "problem", f"{found}; {card['launch_error']}", "restart the machine; then the driver")
    elif not card.get("correct"):
        remedy = "the card computes wrong numbers: undo overclocking, then test it with other programs"
        yield Finding("card", "problem", f"{found}; probe.cu ran and its result is wrong", remedy)
    elif card["total"] < USUAL_SHARE * size:
        yield Finding("card", "note", f"{found}; the card has {gib(size)}", "a vGPU limit or a MIG slice is in force")
    else:
        yield Finding("card", "ok", f"{found}; probe.cu runs")
    if users := next((c["holders"] for c in _managed(machine) if c["name"] == card["name"] and c.get("holders")), ""):
        yield Finding("card memory", "note", f"used by {users}", "close them for longer contexts and larger trees")
    if "WSL_DISTRO_NAME" in machine.environment:
        remedy = 'in the NVIDIA Control Panel set "CUDA - Sysmem Fallback Policy" to "Prefer No Sysmem Fallback"'
        yield Finding("card memory", "note", "on WSL the driver moves what does not fit to main memory, slowly", remedy)
    if card["count"] > 1:
        yield Finding("cards", "note", f"{card['count']} cards; the first is used", "choose with CUDA_VISIBLE_DEVICES")


def check_kernels(machine: Computer) -> Iterator[Finding]:
    """The self-test, if there is a usable card."""
    card, kernels = machine.stage("driver"), machine.stage("kernels")
    if not card.get("correct") or not machine.stage("torch").get("cuda"):
        return
    if "error" in kernels:
        yield Finding("kernels", "problem", kernels["error"], "decode with --device cpu, and report this output")
        return
    if kernels.get("note"):
        yield Finding("kernels", "note", kernels["note"], "make the folder writable")
    yield Finding("kernels", "ok", f"a small pair agrees with the CPU, {kernels['seconds']:.0f} s")


def check_visible_devices(machine: Computer) -> Iterator[Finding]:
    value = machine.environment.get("CUDA_VISIBLE_DEVICES")
    if value is None or not (has_driver(machine) or machine.nvidia_card):
        return
    hidden = value.strip() in ("", "-1", "NoDevFiles")
    found = f"CUDA_VISIBLE_DEVICES={value!r}"
    if hidden:
        yield Finding("visible cards", "problem", f"{found} hides every card", "unset CUDA_VISIBLE_DEVICES")
    else:
        yield Finding("visible cards", "ok", found)


def check_memory(machine: Computer) -> Iterator[Finding]:
    memory = machine.memory
    found = f"{gib(memory.free)} of {gib(memory.total)} free"
    if memory.free < LITTLE_MEMORY:
        yield Finding("memory", "note", found, "enough only for the demo pair; close other programs for more")
    else:
        yield Finding("memory", "ok", found)


def check_folders(machine: Computer) -> Iterator[Finding]:
    for folder in machine.folders:
        name = f"{folder.name} folder"
        if folder.error:
            remedy = f"make it writable, or set XDG_{folder.name.upper()}_HOME to a folder that is"
            yield Finding(name, "problem", f"cannot write to {folder.error}", remedy)
        else:
            yield Finding(name, "ok", str(folder.path))


def check_demo(machine: Computer) -> Iterator[Finding]:
    demo = machine.stage("demo")
    if "error" in demo:
        yield Finding("demo pair", "problem", demo["error"], "install the project again; the models come with it")
    else:
        yield Finding("demo pair", "ok", f"loads in {demo['seconds']:.1f} s")


def check_terminal(machine: Computer) -> Iterator[Finding]:
    terminal, environment = machine.terminal, machine.environment
    kind = environment.get("TERM", "")
    if not terminal.columns:
        yield Finding("terminal", "ok", "none, as the output is piped; the app needs one")
        return
    colours = _colours(environment)
    found = f"{terminal.columns}x{terminal.lines}, {kind or 'TERM not set'}, {colours}, {terminal.encoding}"
    columns, lines = SMALLEST_TERMINAL
    if terminal.columns < columns or terminal.lines < lines:
        yield Finding("terminal", "problem", found, f"make the window at least {columns}x{lines}; 80x24 is comfortable")
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


def driver_cuda(machine: Computer) -> tuple[int, int]:
    """The newest CUDA version that the driver supports; (0, 0) if not known."""
    major, minor = machine.stage("management").get("cuda", (0, 0))
    return major, minor


CHECKS: tuple[Check, ...] = (
    check_python,
    check_torch,
    check_compiler,
    check_driver,
    check_cards,
    check_kernels,
    check_visible_devices,
    check_memory,
    check_folders,
    check_demo,
    check_terminal,
)
