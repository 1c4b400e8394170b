"""Plans of pairs of the catalogue before they are fetched, and what a repository has; nothing asks a network."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cuda.bindings")
from dflash_core.errors import DFlashError
from dflash_tui.application import smollm2
from dflash_tui.application.hub.catalogue import load_catalogue
from dflash_tui.application.hub.files import HubError
from dflash_tui.application.hub.fitting import fit_check
from dflash_tui.application.hub.quantisations import Quantisation, chosen, folder, grouped, quantisations
from dflash_tui.application.session import LoadRequest
from dflash_tui.chat.offered import fitting, row, takes
from dflash_tui.cli import get
from dflash_tui.cli.command_line import main
from support.hub_server import serving

GIB = 1 << 30
FILES = [
    ("README.md", 9), ("mmproj-F16.gguf", 5), ("M-Q8_0.gguf", 80), ("M-UD-Q4_K_XL.gguf", 41), ("M-IQ4_XS.gguf", 38),
    ("BF16/M-BF16-00001-of-00002.gguf", 100), ("BF16/M-BF16-00002-of-00002.gguf", 60), ("imatrix.gguf", 1),
]  # fmt: skip


def planned(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, Any]:
    assert main(["plan", *argv, "--memory", "24GiB", "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


PAIRS = load_catalogue().pairs


def test_a_pair_whose_shapes_are_not_known_is_fetched_first() -> None:
    with pytest.raises(DFlashError, match="smollm2: its shapes are not known here; fetch it first"):
        replace(PAIRS["smollm2"], shapes="").planned(LoadRequest())


def test_every_pair_of_the_program_has_a_size_before_it_is_fetched(capsys: pytest.CaptureFixture[str]) -> None:
    assert [name for name, pair in PAIRS.items() if not pair.shapes] == []
    found = fit_check(PAIRS["smollm2"].planned(LoadRequest(device="cpu")), 64 * GIB)
    assert 90 << 20 < found.weights < 1 << 30
    # Its weights are larger in the memory of a CPU than in the file, and its drafter comes with the program.
    assert 0.96 * smollm2.SIZE < found.files[0] <= smollm2.SIZE
    there = row("pair smollm2", "smollm2", fitting(found, found.files[0]))
    assert "about 92.1 MiB, fits" in str(there.prompt)
    assert "to fetch: about 92.1 MiB" in str(takes(found, found.files[0]))
    assert main(["plan", "--target", "smollm2", "--memory", "24GiB"]) == 0
    assert "weights as Q4_1, of the published shapes" in capsys.readouterr().out


@pytest.mark.parametrize("name", [name for name, pair in PAIRS.items() if pair.draft])
def test_pairs_are_planned_by_their_names(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = planned(capsys, "--target", name, "--context", "16384")
    sizes = {one["name"]: one["bytes"] for one in found["components"]}
    assert sizes["target"] > sizes["drafter"] > GIB // 4
    for kv, context in found["context_that_fits"].items():
        assert found["context_beside_a_desktop"][kv] <= context


def test_a_remedy_can_be_planned_as_it_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    """n-grams in place of a pair's own drafter too; another drafter is refused, not left out of the plan."""
    words = ["plan", "--target", "qwen3-14b", "--memory", "12GiB", "--context", "512"]
    assert main([*words, "--json"]) == 0
    remedies = {one["options"]: one["total"] for one in json.loads(capsys.readouterr().out)["remedies"]}
    assert list(remedies) == ["--draft-type q4_0", "--draft ngram"]
    for options, total in remedies.items():
        assert main([*words, *options.split(), "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert (found["fits"], found["total"]) == (True, total)
    assert main([*words, "--draft", "mtp"]) == 1
    assert "planned with its own drafter or with ngram; dflash-tui get qwen3-14b" in capsys.readouterr().err


def test_a_plan_names_what_it_assumes(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["plan", "--target", "qwen3.8-27b", "--memory", "24GiB", "--context", "131072"]
    assert main(argv) == 0
    said = capsys.readouterr().out
    assert said.startswith("131,072 positions, keys and values as q8_0;")
    assert "and beside a desktop\n" in said
    assert "1.0 GiB used by other programs" in said
    assert "weights as Q4_K_M, of the published shapes" in said


def test_other_commands_say_how_to_get_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ask", "--target", "qwen3.8-27b", "hi"]) != 0
    assert capsys.readouterr().err.count("dflash-tui get qwen3.8-27b fetches it") == 1


def test_what_fits_is_known_in_the_list() -> None:
    pair = load_catalogue()["qwen3.8-27b"]
    room = fit_check(pair.planned(LoadRequest(device="cpu")), 64 * GIB)
    assert (room.why, room.short) == ("", 0)
    assert 16 * GIB < room.weights < 19 * GIB


def test_the_beginning_of_a_name_is_enough_to_be_offered_it() -> None:
    with pytest.raises(DFlashError, match=r"did you mean qwen3\.8-27b\?$"):
        load_catalogue()["Qwen3.8"]
    with pytest.raises(DFlashError, match=r"did you mean qwen3\.6-27b or qwen3\.6-35b-a3b\?$"):
        load_catalogue()["qwen3.6"]


def test_what_a_repository_has(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    there = grouped(FILES)
    assert there == [
        Quantisation("IQ4_XS", "M-IQ4_XS.gguf", 38), Quantisation("UD-Q4_K_XL", "M-UD-Q4_K_XL.gguf", 41),
        Quantisation("Q8_0", "M-Q8_0.gguf", 80), Quantisation("BF16", "BF16/M-BF16-00001-of-00002.gguf", 160),
    ]  # fmt: skip
    pair = chosen("o/n", there, "bf16")
    assert pair.target.files == ("BF16/M-BF16-00001-of-00002.gguf", "BF16/M-BF16-00002-of-00002.gguf")
    with pytest.raises(DFlashError, match=r"no file of 'Q4_0'; expected one of IQ4_XS, UD-Q4_K_XL, Q8_0, BF16"):
        chosen("o/n", there, "Q4_0")
    assert main(["get", "o/n/x"]) != 0
    assert "no repository; expected owner/name" in capsys.readouterr().err
    monkeypatch.setattr(get, "quantisations", lambda repo, endpoint: there)
    assert main(["get", "https://huggingface.co/o/n"]) == 0
    out = capsys.readouterr().out
    assert "dflash-tui get o/n:QUANT" in out
    assert [line.split()[0] for line in out.splitlines()[1:]] == ["IQ4_XS", "UD-Q4_K_XL", "Q8_0", "BF16"]
    asked = list[str]()

    def requested_files(pair: Any, endpoint: Any) -> Any:
        asked.append(pair.target.file)
        raise HubError("no network")

    monkeypatch.setattr(get, "requested_files", requested_files)
    assert main(["get", "o/n:q8_0"]) != 0
    assert asked == ["M-Q8_0.gguf"]


FOLDER_FILES = [
    ("config.json", 1), ("tokenizer.json", 2), ("README.md", 5), ("model-00002-of-00002.safetensors", 40),
    ("model-00001-of-00002.safetensors", 30), ("model.safetensors.index.json", 3), ("consolidated.safetensors", 70),
    ("original/model.safetensors", 70), ("chat_template.jinja", 4),
]  # fmt: skip


def test_a_repository_that_is_a_folder(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Its files are fetched together, and opened as a folder."""
    found = folder(FOLDER_FILES)
    assert [(one.name, one.size) for one in found] == [("safetensors", 80)]
    assert folder(FOLDER_FILES[1:]) == [], "no config.json"
    assert folder(FILES) == []
    files = chosen("o/n", found, "safetensors").target.files
    assert set(files) == {name for name, _ in FOLDER_FILES if name != "README.md" and "/" not in name} - {
        "consolidated.safetensors"
    }
    monkeypatch.setattr(get, "quantisations", lambda repo, endpoint: found)
    with serving() as hub:
        assert get.get("o/good", tmp_path, yes=True, endpoint=hub.endpoint) == 0
    assert capsys.readouterr().out == f"dflash-tui --target {tmp_path}/o--good\n"
    assert {path.name for path in (tmp_path / "o--good").iterdir() if not path.name.startswith(".")} == {*files}
    there = [Quantisation("Q8_0", "M-Q8_0.gguf", 80), *found]
    monkeypatch.setattr(get, "quantisations", lambda repo, endpoint: there)
    assert main(["get", "o/n"]) == 0, "with other models beside it, one is chosen"
    assert "safetensors" in capsys.readouterr().out


def test_the_files_of_a_repository_come_from_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """With their sizes; where there is no network the library does not wait and ask again, with lines of its own."""
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    siblings = [{"rfilename": "BF16/M-Q8_0.gguf", "size": 80}, {"rfilename": "README.md", "size": 9}]
    with serving() as hub:
        hub.api = json.dumps({"id": "o/n", "siblings": siblings}).encode()
        assert quantisations("o/n", hub.endpoint) == [Quantisation("Q8_0", "BF16/M-Q8_0.gguf", 80)]
    with pytest.raises(HubError, match="the hub cannot be reached"):
        quantisations("o/n", "http://127.0.0.1:1")
    assert not slept
