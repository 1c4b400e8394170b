"""Models on this machine: found in the folders of other programs, classified and paired by their headers."""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest

from dflash_core.demo import demo_draft_path, demo_target_path, smollm2_draft_path
from dflash_core.errors import UnsupportedError
from dflash_core.fits import MemoryEstimator
from dflash_tui.application.hub import find
from dflash_tui.application.hub import header as headers
from dflash_tui.application.hub.find import likeness, look
from dflash_tui.application.hub.fitting import fit_check
from dflash_tui.application.hub.found import Found, PassedOver, counted_others
from dflash_tui.application.hub.header import HeaderCache
from dflash_tui.application.hub.walk import Place, of_name, places, walk
from dflash_tui.application.session import LoadRequest
from dflash_tui.cli.command_line import main
from support.homes import work_at_home
from support.real_models import smollm2
from support.reckoned import estimator

TARGET, DRAFT = demo_target_path(), demo_draft_path()
DIGEST = "ab" * 32


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return work_at_home(tmp_path, monkeypatch)


def put(path: Path, source: Path = TARGET) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(source)
    return path


def small(path: Path, architecture: str, **keys: object) -> Path:
    """A sound GGUF file of something else."""
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in keys.items():
        name = key.replace("__", ".")
        writer.add_string(name, value) if isinstance(value, str) else writer.add_uint32(name, int(str(value)))
    if keys.get("general__type") != "vocab":
        writer.add_tensor("token_embd.weight", np.zeros((4, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def found(folder: Path, **options: object) -> tuple[dict[str, Found], list[PassedOver]]:
    """What one folder holds: models by name, in their final state, and the files that were passed over."""
    seen = list(look([Place("there", folder, **options)], HeaderCache()))  # type: ignore[arg-type]
    models = {one.name: one for one in seen if isinstance(one, Found)}
    return models, [one for one in seen if isinstance(one, PassedOver)]


def test_the_places_of_other_programs(home: Path) -> None:
    cache = home / "cache"
    hub = cache / "huggingface" / "hub"
    put(hub / "models--o--n" / "snapshots" / "1" / "model.gguf")
    put(hub / "datasets--o--d" / "snapshots" / "1" / "data.gguf")
    put(cache / "llama.cpp" / "o_n_m-Q4_K_M.gguf", DRAFT)
    put(home / ".lmstudio" / "models" / "o" / "n" / "m.gguf")
    put(home / "mine" / "deep" / "er" / "own.gguf")
    named = places([home / "mine", home / "not-there"], {"XDG_CACHE_HOME": str(cache)}, home)
    others = ["Hugging Face", "llama.cpp", "LM Studio", "dflash-tui"]
    assert [one.name for one in named] == ["here", str(home / "mine"), *others]
    [one] = {one.path: one for one in look(named, HeaderCache()) if isinstance(one, Found)}.values()
    assert (one.where, one.name, one.header.architecture) == (str(home / "mine"), "own.gguf", "qwen35")
    assert one.size == TARGET.stat().st_size
    assert one.draft is None or "dflash" in one.draft.name
    again = places([], {"HF_HUB_CACHE": str(hub), "LLAMA_CACHE": str(cache / "llama.cpp")}, home)
    assert [one.name for one in again][1:3] == ["Hugging Face", "llama.cpp"]


def test_smollm2_has_the_drafter_that_comes_with_the_program(home: Path) -> None:
    named = [one for one in places([], {}, home) if one.keeps == "itself"]
    assert [one.folder for one in named] == [smollm2_draft_path()]
    seen = list(look([Place("a package", smollm2().parent), *named], HeaderCache()))
    last = [one for one in seen if isinstance(one, Found)][-1]
    assert (last.path, last.draft) == (smollm2(), smollm2_draft_path())


def test_ollama_names_are_in_its_manifests(home: Path) -> None:
    store = home / ".ollama" / "models"
    blob = store / "blobs" / f"sha256-{DIGEST}"
    put(blob)
    projector = put(store / "blobs" / f"sha256-{'cd' * 32}")
    (store / "blobs" / f"sha256-{'ef' * 32}").write_bytes(b"a licence")
    (store / "blobs" / f"sha256-{'12' * 32}").write_bytes(b"GGUF but no more")
    layers = [
        {"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{DIGEST}"},
        {"mediaType": "application/vnd.ollama.image.projector", "digest": f"sha256:{'cd' * 32}"},
    ]
    manifests = store / "manifests"
    for name, text in {
        "registry.ollama.ai/library/qwen3.6/27b": json.dumps({"layers": layers}),
        "registry.ollama.ai/library/bad/x": json.dumps({"layers": [{"digest": "sha256:../../../etc/passwd"}]}),
        "registry.ollama.ai/library/worse/x": "[" * 100_000,
        "registry.ollama.ai/library/worst/x": '{"layers": "\udcff"}',
        "hf.co/o/n/q4": json.dumps({"layers": layers}),
    }.items():
        (manifests / name).parent.mkdir(parents=True, exist_ok=True)
        (manifests / name).write_text(text, errors="surrogateescape")
    models, others = found(store, keeps="ollama")
    assert list(models) == ["hf.co/o/n:q4"], "the first of its names"
    assert next(iter(models.values())).path == blob
    assert projector not in [one.path for one in models.values()]
    [damaged] = others
    assert damaged.broken
    assert "\n" not in damaged.why


def test_what_is_no_model_is_told_apart(home: Path) -> None:
    folder = home / "all"
    small(folder / "mmproj.gguf", "clip")
    small(folder / "mmproj2.gguf", "qwen35", general__type="mmproj")
    small(folder / "lora.gguf", "qwen35", general__type="adapter")
    small(folder / "embed.gguf", "qwen3", qwen3__pooling_type=3)
    small(folder / "bert.gguf", "nomic-bert")
    small(folder / "falcon.gguf", "falcon")
    small(folder / "vocab.gguf", "qwen35", general__type="vocab")
    (folder / "empty.gguf").write_bytes(b"")
    (folder / "page.gguf").write_bytes(b"<html>no</html>")
    (folder / "nowhere.gguf").symlink_to(folder / "gone")
    put(folder / "model.gguf")
    put(folder / "MODEL.GGUF", DRAFT)
    models, others = found(folder)
    assert list(models) == ["model.gguf"]
    said = {one.path.name: (one.why, one.broken) for one in others}
    assert said["mmproj.gguf"] == said["mmproj2.gguf"] == ("vision encoder", False)
    assert said["embed.gguf"] == said["bert.gguf"] == ("embedding or reranker model", False)
    assert said["lora.gguf"] == ("LoRA adapter", False)
    assert said["falcon.gguf"] == ("falcon model", False)
    assert said["vocab.gguf"][1] is False
    counts = counted_others(others)[0].split(", ")
    assert {"2 vision encoders", "2 embedding or reranker models", "1 falcon model", "1 vocabulary file"} < {*counts}
    for name in ("empty.gguf", "page.gguf", "nowhere.gguf"):
        why, broken = said[name]
        assert broken
        assert name in why
        assert "\n" not in why


def test_a_split_model_is_one_row(home: Path) -> None:
    folder = home / "split"
    for part in (2, 3):
        put(folder / f"lost-0000{part}-of-00003.gguf", TARGET)
    for part in (1, 2, 3):
        put(folder / f"m-0000{part}-of-00003.gguf", TARGET)
    names = [one.path.name for one in walk(Place("there", folder))]  # type: ignore[union-attr]
    assert names == ["lost-00002-of-00003.gguf", "m-00001-of-00003.gguf"]
    assert [one.name for one in headers.parts(folder / "m-00001-of-00003.gguf")] == [
        f"m-0000{part}-of-00003.gguf" for part in (1, 2, 3)
    ]
    assert headers.key_and_size(folder / "m-00001-of-00003.gguf")[1] == 3 * TARGET.stat().st_size


def test_links_in_a_circle_end(home: Path) -> None:
    folder = home / "round"
    put(folder / "a" / "m.gguf")
    (folder / "a" / "again").symlink_to(folder)
    models, _ = found(folder)
    assert len(models) == 1


def test_names_choose_among_drafters_that_fit(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All fit by their headers, being copies of one; the name says which was made for the target."""
    folder = home / "models"
    put(folder / "qwen" / "Qwen3.6-27B-Q4_K_M.gguf")
    for place, name in (("x", "Qwen3.5-27B-DFlash"), ("y", "Qwen3.6-27B-DFlash"), ("z", "Qwen3.6-35B-A3B-DFlash")):
        (folder / place).mkdir()
        shutil.copy(DRAFT, folder / place / f"{name}.gguf")
    models, _ = found(folder)
    [one] = models.values()
    assert one.drafters is not None
    assert one.drafters[0].name == "Qwen3.6-27B-DFlash.gguf"
    assert [drafter.belongs for drafter in one.drafters] == [True, False, False], "another generation, another size"
    assert one.draft == folder / "y" / "Qwen3.6-27B-DFlash.gguf"

    def refuse(draft: Path, target: object) -> None:
        raise UnsupportedError("made for another target")

    monkeypatch.setattr(find, "open_draft", refuse)
    [one] = [
        one for one in look([Place("there", folder)], HeaderCache(home / "another.json")) if isinstance(one, Found)
    ][1:]
    assert one.drafters == (), "what does not fit by its header is none, whatever its name"


def test_a_drafter_of_a_hubs_cache_goes_by_its_repository() -> None:
    assert likeness("Qwen3-8B-DFlash-b16", "Qwen3-8B-Q4_K_M.gguf Qwen3 8B") == 1
    assert likeness("Qwen3-4B-DFlash-b16", "Qwen3-8B-Q4_K_M.gguf Qwen3 8B") == 0.5
    assert likeness("model", "anything") == 0


def test_an_unchanged_file_is_not_opened_again(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = home / "models"
    folder.mkdir()
    copy = folder / "m.gguf"
    shutil.copy(TARGET, copy)
    put(folder / "draft.gguf", DRAFT)
    first, _ = found(folder)
    opened: list[Path] = []
    read = headers.read_header

    def counted(path: Path, *, folder: bool = False) -> headers.ModelHeader | None:
        opened.append(path)
        return read(path, folder=folder)

    monkeypatch.setattr("dflash_tui.application.hub.find.read_header", counted)
    monkeypatch.setattr(find, "open_model", lambda path: pytest.fail("opened again"))
    assert found(folder)[0] == first
    assert opened == []
    monkeypatch.setattr(find, "open_model", lambda path: (_ for _ in ()).throw(OSError("only now")))
    os.utime(copy, (1, 1))
    found(folder)
    assert opened == [copy]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[[[",
        '{"version": 0}',
        '{"version": 1, "headers": {"\udcff": 3}}',
        '{"version": 1, "headers": {"a": 3}, "pairs": {}}',
    ],
)
def test_a_damaged_shelf_costs_time_and_nothing_else(home: Path, text: str) -> None:
    path = home / "cache.json"
    path.write_text(text, errors="surrogateescape")
    cache = HeaderCache(path)
    assert cache.headers == {}
    cache.pairs["a"] = ""
    cache.save()
    assert HeaderCache(path).pairs == {"a": ""}


def test_looking_can_be_left(home: Path) -> None:
    put(home / "many" / "a.gguf")
    put(home / "many" / "b.gguf")
    stop = threading.Event()
    seen = []
    for one in look([Place("there", home / "many")], HeaderCache(), stop.is_set):
        seen.append(one)
        stop.set()
    assert len(seen) == 1


def test_a_file_that_moved_is_found_by_its_name(home: Path) -> None:
    there = put(home / "elsewhere" / "deep" / "m.gguf")
    assert of_name("m.gguf", [Place("there", home / "elsewhere")]) == there
    assert of_name("n.gguf", [Place("there", home / "elsewhere")]) is None


@pytest.mark.parametrize(("memory", "says"), [(80, "fits, "), (24, "fits, "), (12, "does not fit, ")])
def test_room_is_that_of_a_plan(memory: int, says: str) -> None:
    make: Callable[[LoadRequest], MemoryEstimator] = lambda request: estimator(memory << 30)  # noqa: E731
    room = fit_check(LoadRequest(), make=make)
    assert room.words.startswith(says)
    assert fit_check(LoadRequest(), 80 << 30, make).short == 0, "what the present pair gives back counts"
    long = fit_check(LoadRequest(context=262_144), make=make)
    if memory == 24:
        assert long.words.startswith("fits with ")
        assert 0 < long.context < long.wished == 262_144


def test_models_on_the_command_line(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put(home / "here" / "tiny.gguf")
    put(home / "here" / "tiny-dflash-draft.gguf", DRAFT)
    small(home / "here" / "mmproj.gguf", "clip")
    (home / "here" / "bad.gguf").write_bytes(b"GGUFgarbage")
    assert main(["models", "--json"]) == 0
    it = json.loads(capsys.readouterr().out)
    [model] = it["models"]
    assert model["name"] == "tiny.gguf"
    assert model["draft"] == str(home / "here" / "tiny-dflash-draft.gguf")
    assert model["fits"] is True
    assert {one["path"].rpartition("/")[2]: one["broken"] for one in it["passed_over"]} == {
        "mmproj.gguf": False, "bad.gguf": True,
    }  # fmt: skip
    assert {one["name"] for one in it["catalogue"]} >= {"qwen3-8b"}
    assert main(["models"]) == 0
    out = capsys.readouterr().out
    assert "tiny.gguf  (here)" in out
    assert "fits, " in out
    assert "not offered: 1 vision encoder" in out
    assert f"not read: {home / 'here' / 'bad.gguf'} is GGUF version" in out
