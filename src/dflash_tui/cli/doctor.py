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


def judged(check: str, found: str, *cases: tuple[object, Verdict, str, str]) -> Finding:
    """The first case that holds: its verdict, what it adds to `found`, its remedy. Without one all is well."""
    wrong = (Finding(check, verdict, f"{found}{more}", remedy) for holds, verdict, more, remedy in cases if holds)
    return next(wrong, Finding(check, "ok", found))


def check_python(machine: Computer) -> Iterator[Finding]:
    found = f"{'.'.join(map(str, machine.python))} on {machine.system} {machine.processor}"
    remedy = "use Python 3.11 or later: make PYTHON=python3.12 chat"
    yield judged("Python", found, (machine.python < (3, 11), "problem", "", remedy))


def check_torch(machine: Computer) -> Iterator[Finding]:
    """The build of torch compared with the driver: each may be installed without the other."""
    torch, driver = machine.stage("torch"), has_driver(machine)
    if "error" in torch:
        yield Finding("torch", "problem", torch["error"], "install the project again: pip install --force-reinstall .")
        return
    built = torch["cuda"]
    if built and driver and 0 < driver_cuda(machine)[0] < int(built.split(".")[0]):
        return  # the driver is too old for it: reported by that check
    blind = built and driver and not machine.stage("torch_cuda").get("available")
    yield judged(
        "torch", f"{torch['version']}, {f'CUDA {built}' if built else 'CPU build'}",
        (not built and driver, "problem", ", although there is an NVIDIA driver",
         f"{CUDA_TORCH} (or nothing: it decodes on the CPU)"),
        (built and not driver and not machine.nvidia_card, "note", ", but no NVIDIA driver",
         f"decodes on the CPU; smaller: {CPU_TORCH}"),
        (blind, "problem", ", but it sees no card", "see the driver and card lines below"),
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
    management, driver = machine.stage("management"), machine.stage("driver")
    if machine.system == "darwin":
        return
    if not has_driver(machine):
        found = "none, though there is an NVIDIA card"
        remedy = f"install driver {DRIVER} or later; in a container, start it with the GPU (--gpus all)"
        none = "no NVIDIA card and no driver; decodes on the CPU"
        yield Finding("driver", "problem", found, remedy) if machine.nvidia_card else Finding("driver", "ok", none)
        return
    cuda = driver_cuda(machine)
    needed = machine.stage("torch").get("cuda") or "13.0"
    again = "see the line on CUDA_VISIBLE_DEVICES; else restart the machine, install the driver again, or --device cpu"
    yield judged(
        "driver", f"{management['driver']}, for CUDA up to {cuda[0]}.{cuda[1]}" if cuda[0] else "version unknown",
        (0 < cuda[0] < int(needed.split(".")[0]), "problem", f"; {needed} is needed",
         f"install driver {DRIVER} or later"),
        ("error" in driver, "problem", f"; {driver.get('error')}", again),
    )  # fmt: skip


def check_cards(machine: Computer) -> Iterator[Finding]:
    card = machine.stage("driver")
    if "error" in card or "capability" not in card:
        return
    version = tuple(card["capability"])
    managed = [one for one in machine.stage("management").get("cards", ()) if one["name"] == card["name"]]
    size = max((one["total"] for one in managed), default=0)
    yield judged(
        "card",
        f"{card['name']}, compute capability {'.'.join(map(str, version))}, "
        f"{gib(card['free'])} of {gib(card['total'])} free",
        (version < ENOUGH_SHARED, "problem", "; its shared memory is too small for passes of 64 rows",
         "use a card of 8.0 (Ampere) or later, or --device cpu"),
        (card["total"] < USUAL_SHARE * size, "note", f"; the card has {gib(size)}",
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


def check_visible_devices(machine: Computer) -> Iterator[Finding]:
    value = machine.environment.get("CUDA_VISIBLE_DEVICES")
    if value is not None and (has_driver(machine) or machine.nvidia_card):
        hidden = value.strip() in ("", "-1", "NoDevFiles")
        found, remedy = f"CUDA_VISIBLE_DEVICES={value!r}", "unset CUDA_VISIBLE_DEVICES"
        yield judged("visible cards", found, (hidden, "problem", " hides every card", remedy))


def check_memory(machine: Computer) -> Iterator[Finding]:
    free, remedy = machine.memory.free, "enough only for the demo pair; close other programs for more"
    yield judged(
        "memory", f"{gib(free)} of {gib(machine.memory.total)} free", (free < LITTLE_MEMORY, "note", "", remedy)
    )


def check_folders(machine: Computer) -> Iterator[Finding]:
    for folder in machine.folders:
        remedy = f"make it writable, or set XDG_{folder.name.upper()}_HOME to a folder that is"
        found = f"cannot write to {folder.error}" if folder.error else str(folder.path)
        yield judged(f"{folder.name} folder", found, (folder.error, "problem", "", remedy))


def check_demo(machine: Computer) -> Iterator[Finding]:
    demo = machine.stage("demo")
    found = demo["error"] if "error" in demo else f"loads in {demo['seconds']:.1f} s"
    again = "install the project again; the models come with it"
    yield judged("demo pair", found, ("error" in demo, "problem", "", again))


def check_terminal(machine: Computer) -> Iterator[Finding]:
    terminal, environment = machine.terminal, machine.environment
    if not terminal.columns:
        yield Finding("terminal", "ok", "none, as the output is piped; the app needs one")
        return
    kind, colours = environment.get("TERM", ""), _colours(environment)
    columns, lines = SMALLEST_TERMINAL
    small = terminal.columns < columns or terminal.lines < lines
    yield judged(
        "terminal",
        f"{terminal.columns}x{terminal.lines}, {kind or 'TERM not set'}, {colours}, {terminal.encoding}",
        (small, "problem", "", f"make the window at least {columns}x{lines}; 80x24 is comfortable"),
        (kind in ("", "dumb"), "problem", "", "the app needs cursor control: TERM=xterm-256color, or `ask`"),
        ("utf" not in terminal.encoding.lower(), "note", "", "lines and bars may show as ?: export LC_ALL=C.UTF-8"),
        (colours == "16 colours", "note", "", "for the themes' own colours: export TERM=xterm-256color"),
    )


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
    check_python, check_torch, check_compiler, check_driver, check_cards, check_kernels, check_visible_devices,
    check_memory, check_folders, check_demo, check_terminal,
)  # fmt: skip
