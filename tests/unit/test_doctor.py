"""`doctor`: every verdict on simulated machines, the probe's failures, and one run on the real machine."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dflash_core import nvrtc
from dflash_core.errors import UnsupportedError
from dflash_core.memory import HostMemory
from dflash_core.user_folders import KINDS, user_folder
from dflash_tui.cli import command_line as cli
from dflash_tui.cli import doctor, probe
from dflash_tui.cli.doctor import Computer, Finding, Folder, Terminal, examine, report, worst

GIB = 1 << 30
CPU_BUILD = {"version": "2.13.0+cpu", "cuda": None}
CUDA_BUILD = {"version": "2.13.0+cu130", "cuda": "13.0"}
COMPILER = {"version": [13, 0], "architectures": ["sm_80", "sm_90a"]}
NO_DRIVER = {
    "torch": CPU_BUILD,
    "compiler": COMPILER,
    "demo": {"seconds": 0.4},
    "management": {"error": "NVML Shared Library Not Found"},
    "driver": {"error": "no libcuda.so.1"},
    "kernels": {"error": "no NVIDIA driver"},
}
SELF_TEST = {"seconds": 7.4, "note": None}
MANAGEMENT = {
    "driver": "580.95.05",
    "cuda": [13, 0],
    "cards": [{"name": "A card", "total": 24 * GIB, "free": 20 * GIB}],
}
CARD = {"count": 1, "name": "A card", "capability": [8, 9], "free": 20 * GIB, "total": 24 * GIB}
WITH_CARD = NO_DRIVER | {
    "torch": CUDA_BUILD,
    "management": MANAGEMENT,
    "driver": CARD,
    "kernels": SELF_TEST,
}
LAPTOP = Computer(
    environment={"TERM": "xterm-256color", "COLORTERM": "truecolor"},
    memory=HostMemory(16 * GIB, 9 * GIB, 0),
    folders=(Folder("cache", Path("/home/me/.cache/dflash-tui")),),
    terminal=Terminal(120, 40, "UTF-8"),
    probe=NO_DRIVER,
)
WORKSTATION = replace(LAPTOP, nvidia_card=True, probe=WITH_CARD)


def stage(base: Computer, name: str, **facts: Any) -> Computer:
    """`base` with some facts of a stage changed; `error=...` alone replaces them all."""
    changed = facts if set(facts) == {"error"} else {**base.stage(name), **facts}
    return replace(base, probe={**base.probe, name: changed})


def refusing(base: Computer, **changed: Any) -> Computer:
    """`base` with a driver that refuses, and without its management library."""
    probe = {**base.probe, "driver": {"error": "no device", "refuses": True}}
    return replace(base, probe=probe, **changed)


def env(base: Computer, **variables: str) -> Computer:
    return replace(base, environment={**base.environment, **variables})


def only(findings: list[Finding], check: str) -> Finding:
    [finding] = [finding for finding in findings if finding.check == check]
    return finding


@pytest.mark.parametrize("good", [LAPTOP, WORKSTATION], ids=["laptop", "workstation"])
def test_a_good_machine_has_nothing_to_say(good: Computer) -> None:
    findings = examine(good)
    assert worst(findings) == "ok"
    assert not any(finding.remedy for finding in findings)
    assert report(findings).endswith("no problems\n")


def test_a_card_that_is_asked_for_has_to_be_there() -> None:
    assert worst(examine(LAPTOP)) == "ok"
    assert worst(examine(WORKSTATION, "cuda")) == "ok"
    missing = examine(LAPTOP, "cuda")
    assert only(missing, "device").found == "cuda, but this machine has no NVIDIA card and no driver"
    assert only(missing, "device").verdict == "problem"


def test_a_driver_that_refuses_is_why_a_card_cannot_be_used() -> None:
    """Regression: without its management library it counted as missing."""
    found = examine(refusing(LAPTOP), "cuda")
    assert only(found, "device").found == "cuda, but the driver refuses: no device"
    crashed = replace(
        LAPTOP, nvidia_card=True, probe={"torch": CPU_BUILD, "management": {"error": "signal 11", "refuses": True}}
    )
    assert only(examine(crashed), "driver").found == "version unknown; signal 11"


def test_kernels_that_agree() -> None:
    assert only(examine(WORKSTATION), "kernels").found == "a small pair agrees with the CPU, 7 s"


@pytest.mark.parametrize("error", ["a tree: logits differ by 98% of their spread", "the check was ended by signal 11"])
def test_kernels_that_are_wrong(error: str) -> None:
    finding = only(examine(stage(WORKSTATION, "kernels", error=error)), "kernels")
    assert (finding.verdict, finding.found) == ("problem", error)


def test_kernels_are_not_tested_where_no_card_can_be_used() -> None:
    assert not [finding for finding in examine(LAPTOP) if finding.check == "kernels"]
    cpu_build = stage(WORKSTATION, "torch", **CPU_BUILD)
    assert not [finding for finding in examine(cpu_build) if finding.check == "kernels"]


def test_a_cache_that_cannot_be_written_is_worth_a_note() -> None:
    findings = examine(stage(WORKSTATION, "kernels", note="compiled kernels cannot be saved in /cache"))
    assert [finding.verdict for finding in findings if finding.check == "kernels"] == ["note", "ok"]


def test_macos_is_not_asked_for_cuda() -> None:
    probe = {"torch": {"version": "2.11.0", "cuda": None}, "demo": {"seconds": 0.4}}
    mac = replace(LAPTOP, system="darwin", probe=probe)
    findings = examine(mac)
    assert worst(findings) == "ok"
    assert "macOS" in only(findings, "CUDA compiler").found
    assert not [finding for finding in findings if finding.check == "driver"]


WRONG: list[tuple[str, Computer, str, str, str, str]] = [
    # what, the machine, the check that speaks, its verdict, in what was found, in the remedy
    ("no torch", stage(LAPTOP, "torch", error="No module named 'torch'"), "torch", "problem", "No module", "install"),
    ("CPU torch, driver", stage(WORKSTATION, "torch", **CPU_BUILD), "torch", "problem", "although", "CUDA 13.0"),
    ("CUDA torch, no driver", stage(LAPTOP, "torch", **CUDA_BUILD), "torch", "note", "no NVIDIA driver", "for CPU"),
    ("torch blind", stage(WORKSTATION, "kernels", error="torch cannot use it"), "kernels", "problem", "torch", "cpu"),
    ("no compiler", stage(LAPTOP, "compiler", error="no headers"), "CUDA compiler", "problem", "headers", "again"),
    ("compiler crash", stage(LAPTOP, "compiler", error="signal 11"), "CUDA compiler", "problem", "11", "again"),
    ("card, no driver", replace(LAPTOP, nvidia_card=True), "driver", "problem", "though", "--gpus all"),
    ("old driver", stage(WORKSTATION, "driver", error="it is for CUDA 12.2"), "driver", "problem", "12.2", "580"),
    ("hidden", stage(WORKSTATION, "driver", error="it hides all; unset it"), "driver", "problem", "unset", "else"),
    ("driver broken", stage(WORKSTATION, "driver", error="cuInit: 999"), "driver", "problem", "999", "restart"),
    ("refuses, no NVML", refusing(LAPTOP, nvidia_card=True), "driver", "problem", "unknown; no device", "restart"),
    ("refuses, WSL", refusing(env(LAPTOP, WSL_DISTRO_NAME="a")), "driver", "problem", "no device", "restart"),
    ("refuses, no card", refusing(LAPTOP), "driver", "note", "no device", "--device cpu"),
    ("old card", stage(WORKSTATION, "driver", error="capability 7.0"), "driver", "problem", "7.0", "--device cpu"),
    ("small card", stage(WORKSTATION, "driver", capability=[7, 5]), "card", "problem", "shared memory", "--device cpu"),
    ("no launch", stage(WORKSTATION, "kernels", error="cuModuleLoad"), "kernels", "problem", "cuMod", "restart"),
    ("wrong numbers", stage(WORKSTATION, "kernels", error="they differ"), "kernels", "problem", "differ", "clock"),
    ("held", stage(WORKSTATION, "management", cards=[{**MANAGEMENT["cards"][0], "holders": "Xorg (9) 1.0 GiB"}]),
     "card memory", "note", "used by Xorg (9) 1.0 GiB", "close them"),
    ("WSL", env(WORKSTATION, WSL_DISTRO_NAME="Ubuntu"), "card memory", "note", "on WSL", "Sysmem"),
    ("limited", stage(WORKSTATION, "driver", total=8 * GIB), "card", "note", "24.0 GiB", "MIG"),
    ("two cards", stage(WORKSTATION, "driver", count=2), "cards", "note", "2 cards", "CUDA_VISIBLE_DEVICES"),
    ("little memory", replace(LAPTOP, memory=HostMemory(4 * GIB, GIB, 0)), "memory", "note", "1.0 GiB", "demo"),
    (
        "locked folder",
        replace(LAPTOP, folders=(Folder("cache", Path("/x"), "/x: Read-only file system"),)),
        "cache folder", "problem", "Read-only", "XDG_CACHE_HOME",
    ),
    (
        "full disk",
        replace(LAPTOP, folders=(Folder("data", Path("/x"), free=40 << 10),)),
        "data folder", "problem", "40.0 KiB free on the disk of /x", "free some space",
    ),
    ("no demo", stage(LAPTOP, "demo", error="demo-target.gguf is missing"), "demo pair", "problem", "missing", "again"),
    ("small", replace(LAPTOP, terminal=Terminal(39, 40, "UTF-8")), "terminal", "problem", "39x40", "40x12"),
    ("low", replace(LAPTOP, terminal=Terminal(80, 11, "UTF-8")), "terminal", "problem", "80x11", "40x12"),
    ("dumb", env(LAPTOP, TERM="dumb"), "terminal", "problem", "dumb", "xterm-256color"),
    (
        "old locale",
        replace(LAPTOP, terminal=Terminal(80, 24, "ANSI_X3.4-1968")),
        "terminal", "note", "ANSI", "C.UTF-8",
    ),
    ("16 colours", env(LAPTOP, TERM="linux", COLORTERM=""), "terminal", "note", "16 colours", "256color"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("_what", "sick", "check", "verdict", "found", "remedy"), WRONG, ids=[case[0] for case in WRONG]
)
def test_a_verdict_and_a_remedy(_what: str, sick: Computer, check: str, verdict: str, found: str, remedy: str) -> None:
    findings = examine(sick)
    finding = only(findings, check)
    assert finding.verdict == verdict
    assert found in finding.found
    assert remedy in finding.remedy
    assert all("\n" not in line.found + line.remedy for line in findings)
    assert worst(findings) == verdict


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        (env(LAPTOP, TERM="xterm-256color", COLORTERM=""), "256 colours"),
        (env(LAPTOP, NO_COLOR="1"), "no colour (NO_COLOR)"),
        (replace(LAPTOP, terminal=Terminal()), "the output is piped"),
        # A container that was started without the driver's tools. The driver itself was asked for its version.
        (stage(WORKSTATION, "management", error="NVML Shared Library Not Found"), "version unknown"),
    ],
)
def test_what_is_fine(changed: Computer, says: str) -> None:
    findings = examine(changed)
    assert worst(findings) == "ok"
    assert says in report(findings)


def test_remedies_stand_under_what_they_remedy() -> None:
    text = report([Finding("a", "ok", "fine"), Finding("longer", "problem", "bad", "mend it")])
    assert text == "ok       a       fine\nproblem  longer  bad\n                 -> mend it\n1 problem\n"


def run_script(code: str, limit_s: float = 30) -> dict[str, Any]:
    return doctor.run_probe([sys.executable, "-c", code], limit_s)


class TestProbe:
    def test_a_crash_is_put_on_the_stage_that_was_running(self) -> None:
        code = 'import os; print(\'{"torch": {"version": "2"}}\', flush=True); os.kill(os.getpid(), 11)'
        stages = run_script(code)
        assert stages["torch"] == {"version": "2"}
        assert stages["compiler"] == {"error": "the check was ended by signal 11", "refuses": True}
        assert "demo" not in stages
        assert Computer(probe=stages).stage("demo") == {"error": "was not reached"}

    def test_a_hang_is_cut_short(self) -> None:
        code = "import time; print('{\"torch\": {}}', flush=True); time.sleep(600)"
        for limit_s in (1, 8, 64):  # a busy machine takes its time to start Python
            stages = run_script(code, limit_s)
            if stages["torch"] == {}:
                break
        assert stages["torch"] == {}
        assert f"no answer for {limit_s} s" in stages["compiler"]["error"]

    def test_an_exit_brings_its_last_words(self) -> None:
        stages = run_script("import sys; sys.stderr.write('first\\nlast words\\n'); sys.exit(3)")
        assert stages["torch"] == {"error": "the check ended with code 3: last words", "refuses": True}

    def test_noise_on_stdout_is_passed_over(self) -> None:
        lines = "\\n".join(["a banner", *(json.dumps({name: {}}) for name in probe.STAGES)])
        assert run_script(f"print('''{lines}''')") == {name: {} for name in probe.STAGES}


def test_folders_are_tried_without_being_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All folders that are written to: kernels, settings, conversations and the log."""
    assert len(KINDS) == 4
    for kind in KINDS:
        there = "file" if kind in ("config", "data") else "new"
        monkeypatch.setenv(f"XDG_{kind.upper()}_HOME", str(tmp_path / there / kind))
    (tmp_path / "file").touch()
    found = {folder.name: folder for folder in doctor.folders()}
    assert all(found[kind].path == user_folder(kind) for kind in KINDS)
    assert [kind for kind, folder in found.items() if not folder.error] == ["cache", "state"]
    assert not found["cache"].path.exists()
    assert found["cache"].free == pytest.approx(shutil.disk_usage(tmp_path).free, rel=0.1)
    assert "Not a directory" in found["data"].error


def test_the_driver_is_asked_for_its_first_card(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cuda.bindings")
    from support.fake_cuda import FakeDriver

    monkeypatch.setattr(nvrtc, "version", lambda: (13, 0))
    monkeypatch.setattr("dflash_core.backends.cuda.driver.find_driver", FakeDriver)
    facts = probe.driver()
    assert (facts["name"], facts["capability"], facts["total"]) == ("A card", (9, 0), 80 << 30)
    found = only(examine(replace(WORKSTATION, probe=WITH_CARD | {"driver": facts})), "card")
    assert found.found.startswith("A card, compute capability 9.0, ")
    monkeypatch.setattr("dflash_core.backends.cuda.driver.find_driver", lambda: FakeDriver(capability=(7, 0)))
    assert "7.0" in probe.driver()["error"]
    assert probe.driver()["refuses"]


def test_the_probe_kernel_compiles_for_every_architecture() -> None:
    from dflash_tui.cli.probe import compiler

    if sys.platform == "darwin":
        pytest.skip("CUDA does not exist on macOS")
    assert compiler()["version"] == nvrtc.version()


class TestCompile:
    pytestmark = pytest.mark.skipif(sys.platform == "darwin", reason="CUDA does not exist on macOS")

    def test_machine_code_depends_on_the_defines(self) -> None:
        source = 'extern "C" __global__ void f(int* out) { *out = ANSWER; }'
        one = nvrtc.compile_cubin(source, "f.cu", "sm_80", defines={"ANSWER": "1"})
        two = nvrtc.compile_cubin(source, "f.cu", "sm_80", defines={"ANSWER": "2"})
        assert one[:4] == b"\x7fELF"
        assert one != two

    def test_includes_are_found(self, tmp_path: Path) -> None:
        (tmp_path / "shared.cuh").write_text("#define ANSWER 42\n")
        source = '#include "shared.cuh"\nextern "C" __global__ void f(int* out) { *out = ANSWER; }'
        assert nvrtc.compile_cubin(source, "f.cu", "sm_80", include=[tmp_path])

    def test_an_error_is_the_first_line_of_the_log(self) -> None:
        with pytest.raises(UnsupportedError, match=r'bad\.cu does not compile for sm_80: .*"x" is undefined'):
            nvrtc.compile_cubin('extern "C" __global__ void f() { x = 1; }', "bad.cu", "sm_80")

    def test_nothing_is_not_a_success(self) -> None:
        with pytest.raises(UnsupportedError, match="compiled to nothing for compute_86"):
            nvrtc.compile_cubin('extern "C" __global__ void f() {}', "f.cu", "compute_86")


@pytest.mark.parametrize(("capability", "name"), [((7, 5), "sm_75"), ((9, 0), "sm_90a"), ((12, 0), "sm_120")])
def test_architecture_names(capability: tuple[int, int], name: str) -> None:
    assert nvrtc.architecture(*capability) == name


def test_a_card_too_old_is_refused_by_number() -> None:
    with pytest.raises(UnsupportedError, match=r"compute capability 7\.0, expected 7\.5"):
        nvrtc.architecture(7, 0)


def test_json_and_exit_code(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for found, code in ((LAPTOP, 0), (stage(LAPTOP, "demo", error="gone"), 1)):
        monkeypatch.setattr(doctor, "look", lambda found=found: found)
        assert cli.main(["doctor", "--json"]) == code
        answer = json.loads(capsys.readouterr().out)
        assert answer["problems"] == code
        assert {"check", "verdict", "found", "remedy"} == set(answer["checks"][0])


def test_this_machine_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    code = cli.main(["doctor"])
    captured = capsys.readouterr()
    assert code in (0, 1)
    assert captured.out.startswith("ok       Python")
    assert "Traceback" not in captured.out + captured.err
