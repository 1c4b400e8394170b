"""What is shipped: a wheel holds all that the program needs, the sdist the tools of a checkout too; kernels and themes
are found."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import msgspec
import pytest

from dflash_core import resources
from dflash_core.bench.synthetic_models import SIZE_27B
from dflash_core.errors import DFlashError
from dflash_tui import __version__
from support import fits_page, readme, schemas_page

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the sdist of this checkout."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=600)
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    [path] = built.glob("*.whl")
    return path


def shipped() -> dict[str, Path]:
    """Every file that the packages must hold, by its place in the wheel."""
    files = {}
    for source, place, pattern in (
        ("src", "", "**/*.py"),
        ("src", "", "**/*.tcss"),
        ("src", "", "**/py.typed"),
        ("src", "", "dflash_core/demo/weights/*.gguf"),
        ("kernels", "dflash_core/_kernels/", "*.cu*"),
        ("themes", "dflash_tui/_themes/", "*.toml"),
    ):
        for path in (ROOT / source).glob(pattern):
            name = place + path.relative_to(ROOT / source).as_posix()
            files[name] = path
    return files


def tools(checkout: Path) -> list[str]:
    folder = checkout / "tools"
    found = sorted(path.relative_to(folder).as_posix() for path in folder.glob("**/*.py"))
    assert {"train_demo/train.py", "bench/replay.py"} <= set(found)
    return found


def test_the_wheel_holds_every_file(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        assert set(shipped()) <= names
        assert archive.read("dflash_core/_kernels/probe.cu") == (ROOT / "kernels" / "probe.cu").read_bytes()
        assert not [name for name in names if name.startswith(("tests/", "tools/", "src/", "kernels/", "themes/"))]
        assert not [name for name in names if "__pycache__" in name]
        assert f"dflash_tui-{__version__}.dist-info/licenses/LICENSE" in names


def test_the_sdist_can_make_that_wheel(built: Path, wheel: Path, tmp_path: Path) -> None:
    [sdist] = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    [source] = tmp_path.iterdir()
    for document in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/architecture.md"):
        assert (source / document).is_file(), document
    assert tools(source) == tools(ROOT)
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=source, check=True, capture_output=True, timeout=600,
    )  # fmt: skip
    with zipfile.ZipFile(wheel) as ours, zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as theirs:
        assert sorted(ours.namelist()) == sorted(theirs.namelist())


def test_the_wheel_works_outside_the_checkout(wheel: Path, tmp_path: Path) -> None:
    """Installed elsewhere, with the checkout off the path, it finds its own files and no others."""
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    code = f"""
import sys
sys.path = [path for path in sys.path if not path.startswith({str(ROOT / "src")!r})]
import dflash_core, dflash_tui
from dflash_core import resources
from dflash_core.demo import demo_target_path
from dflash_tui.cli import main
for module in (dflash_core, dflash_tui):
    assert module.__file__.startswith({str(site)!r}), module.__file__
for path in (resources.kernels_dir(), resources.themes_dir(), demo_target_path()):
    assert str(path).startswith({str(site)!r}), path
print(*sorted(p.name for p in resources.kernels_dir().iterdir()))
main(["--version"])
"""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | {"PYTHONPATH": str(site)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    assert "probe.cu" in done.stdout
    assert f"dflash-tui {__version__}" in done.stdout


def test_an_editable_install_finds_the_checkout() -> None:
    assert resources.kernels_dir() == ROOT / "kernels"
    assert resources.themes_dir() == ROOT / "themes"
    assert (resources.kernels_dir() / "probe.cu").is_file()


def test_an_editable_install_is_a_path_to_the_sources_alone(tmp_path: Path) -> None:
    """Copies of kernels or themes in site-packages would hide the files that are being worked on."""
    code = f"import hatchling.build as b; print(b.build_editable({str(tmp_path)!r}))"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, timeout=600)
    [path] = tmp_path.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        [link] = [name for name in archive.namelist() if ".dist-info/" not in name]
        assert archive.read(link).decode().split() == [str(ROOT / "src")]


def test_a_broken_installation_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(resources, "PACKAGES", tmp_path / "site")
    monkeypatch.setattr(resources, "CHECKOUT", tmp_path)
    with pytest.raises(DFlashError, match=r"no kernels at .* reinstall it"):
        resources.kernels_dir()


def test_the_packaged_folder_wins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for folder in ("site/dflash_tui/_themes", "themes"):
        (tmp_path / folder).mkdir(parents=True)
    monkeypatch.setattr(resources, "PACKAGES", tmp_path / "site")
    monkeypatch.setattr(resources, "CHECKOUT", tmp_path)
    assert resources.themes_dir() == tmp_path / "site" / "dflash_tui" / "_themes"


def test_cuda_packages_are_asked_for_where_they_exist() -> None:
    """Compiler and headers of one minor version, and of the one that torch's own build pins."""
    from packaging.requirements import Requirement

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = {need.name: need for need in map(Requirement, project["dependencies"])}
    platforms = {
        ("linux", "x86_64"): True, ("linux", "aarch64"): True, ("win32", "AMD64"): True,
        ("darwin", "arm64"): False, ("darwin", "x86_64"): False, ("linux", "riscv64"): False,
    }  # fmt: skip
    for name in ("cuda-python", "nvidia-cuda-nvrtc", "nvidia-cuda-runtime", "nvidia-ml-py"):
        marker = wanted[name].marker
        assert marker is not None
        for (system, processor), expected in platforms.items():
            assert marker.evaluate({"sys_platform": system, "platform_machine": processor}) is expected
    for name, pinned in (("nvidia-cuda-nvrtc", "13.0.88"), ("nvidia-cuda-runtime", "13.0.96")):
        assert wanted[name].specifier.contains(pinned)
        assert not wanted[name].specifier.contains("13.1.0")


@pytest.mark.parametrize("page", readme.FROM_CODE, ids=lambda page: page.name)
def test_a_page_says_what_the_code_says(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for name, made in readme.FROM_CODE[page]().items():
        found = readme.part_pattern(name).search(text)
        assert found is not None, name
        assert found[2] == made, "run: make readme"


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))], ids=lambda page: page.name
)
def test_a_page_links_to_what_exists(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text(encoding="utf-8"))
    assert not [link for link in links if not (page.parent / link).exists()]


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 130


def test_the_speeds_of_the_readme_are_published() -> None:
    """Every speed of its table stands on the page of benchmarks or of the demo pair, there perhaps with more digits."""
    pages = "".join((ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("benchmarks.md", "demo.md"))
    published = {round(float(one.replace(",", ""))) for one in re.findall(r"\d[\d,]*(?:\.\d+)?", pages)}
    rows = (ROOT / "README.md").read_text(encoding="utf-8").split("| model, machine |")[1].split("\n\n")[0]
    speeds = re.findall(r"([\d,]+)(?: / ([\d,]+))? tok/s", rows)
    assert len(speeds) >= 6
    assert {int(one.replace(",", "")) for pair in speeds for one in pair if one} <= published


def test_the_page_of_what_fits_is_current() -> None:
    text = readme.FITS.read_text(encoding="utf-8")
    for line in fits_page.fits_table([24], {"27B Q4_K_M": SIZE_27B}).splitlines():
        assert line in text, "run: make readme"


@pytest.mark.full
def test_all_of_the_page_of_what_fits_is_current() -> None:
    text = readme.FITS.read_text(encoding="utf-8")
    for name, made in fits_page.parts().items():
        found = readme.part_pattern(name).search(text)
        assert found is not None
        assert found[2] == made, "run: make readme"


def test_a_field_that_is_added_shows_in_the_page_of_schemas() -> None:
    """The tables follow the types: a new field of a line, and an object within it."""

    @dataclasses.dataclass(frozen=True)
    class Within:
        """Something new."""

        share: float

    made = schemas_page.tables([msgspec.defstruct("Line", [("within", tuple[Within, ...] | None, None)], tag="new")])
    assert "| `type` | `new` | |" in made
    assert "| `within` | list of [Within](#within) or null | `null` |" in made
    assert "### Within\n\nSomething new.\n" in made
    assert "| `share` | number |  |" in made


@pytest.mark.parametrize("name", sorted(readme.result_parts()))
def test_the_results_say_what_was_measured(name: str) -> None:
    found = readme.part_pattern(name).search(readme.BENCHMARKS.read_text(encoding="utf-8"))
    assert found is not None, f"docs/benchmarks.md has no part named {name}"
    assert found[2] == readme.result_parts()[name], "run: make readme"
