"""What all tests share: the long grids run only where they are asked for, with `pytest -m full`."""

from __future__ import annotations

import gc
import math
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Generator
from pathlib import Path

# Read by torch when it is imported, here and in the programs that tests start. Models are tiny: more threads bring
# nothing, and those of several workers would wait for each other in every operation.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# No test reaches a hub: requests, such as those of keys pressed at random, end at a closed port of this machine.
os.environ["HF_ENDPOINT"] = "http://127.0.0.1:9"

import pytest
from hypothesis import HealthCheck, settings

from support import environment, seeds

environment.take_over()

# Examples have no deadline: on a busy machine any of them may be delayed.
settings.register_profile("unhurried", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("the same", settings.get_profile("unhurried"), derandomize=True)

pytest_plugins = ["support.failures"]

EXAMPLES = 0.4  # of those of a long run
MAX_WORKERS = 4  # each loads torch
MANY_MODULES = 100  # a tenth of torch
_FROZEN = pytest.StashKey[int]()  # number of modules when existing objects were last frozen for the collector
# `make quick` runs these folders, without the files that start programs, compile kernels, decode for long or
# draw large samples.
QUICK = ("unit", "golden")
NOT_QUICK = frozenset(
    f"test_{name}"
    for name in (
        "attention_window",
        "bench",
        "block_drafters",
        "cache_types_kl",
        "cli_ask",
        "cli_damage",
        "cuda_runtime",
        "current_conversation",
        "demo_export",
        "demo_net",
        "demo_numerics",
        "demo_pair",
        "demo_recipe",
        "distribution",
        "doctor",
        "engine",
        "file_shrinks",
        "fits",
        "guards",
        "host_drafters",
        "hostile_lines",
        "hub",
        "hugging_face",
        "input_files",
        "interrupt",
        "journal",
        "kernels_compile",
        "launch_lists",
        "lossless",
        "mid_turn",
        "mtp",
        "one_failing_test",
        "packaging",
        "pasting",
        "policy_replay",
        "redraft",
        "render_process",
        "sampling",
        "snapshots",
        "store_damage",
        "sweep",
        "text_reasoning",
        "text_template",
        "text_tokenizer",
        "turn_check",
        "whatif",
    )
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--slow-threads", type=float, metavar="SECONDS", help="every thread of the app begins its work so much later"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Examples are drawn at random where the long grids run; else they are the same each time.

    Late threads, as on a busy machine, make a test fail that relies on a thread of the app being done.
    """
    settings.load_profile("unhurried" if seeds.fresh(config) else "the same")
    if seeds.fresh(config):
        os.environ.pop("PYTHONHASHSEED", None)
    if (seconds := config.getoption("--slow-threads")) is None:
        return
    from dflash_tui.application.background import Background

    run = Background._run

    def late(self: Background) -> None:
        time.sleep(seconds)
        run(self)

    Background._run = late  # type: ignore[method-assign]


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Two more than there are cores, as tests of the app wait for a screen, others for a terminal. Quick tests do not
    wait, and a worker takes seconds to start."""
    more = 0 if config.getoption("-m") == "quick" else 2
    return min(len(os.sched_getaffinity(0)) + more, MAX_WORKERS)


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Collecting leaves next to no garbage, but ten thousand tests that each collection would go through."""
    gc.disable()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Freeze the collected tests and their imports, so that later garbage collections skip them."""
    _freeze(session.config)
    gc.enable()
    gc.set_threshold(50_000, 20, 10)  # Python's own 700 comes round in every frame of the app


@pytest.hookimpl(wrapper=True, tryfirst=True)  # around all others: by then nothing of the test is left
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    """Freeze late imports of a test too."""
    result = yield
    if len(sys.modules) > item.config.stash.get(_FROZEN, 0) + MANY_MODULES:
        _freeze(item.config)
    return result


def _freeze(config: pytest.Config) -> None:
    gc.collect()
    gc.freeze()
    config.stash[_FROZEN] = len(sys.modules)


def _draw_fewer(item: pytest.Item) -> None:
    """Examples that are the same in each run find nothing new: here every test draws a part of those of a long run."""
    function = getattr(item, "function", None)
    if (given := getattr(function, "_hypothesis_internal_use_settings", None)) is not None:
        few = math.ceil(given.max_examples * EXAMPLES)
        function._hypothesis_internal_use_settings = settings(given, max_examples=few)  # type: ignore[union-attr]


@pytest.hookimpl(tryfirst=True)  # before pytest looks at the marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not seeds.fresh(config):
        drawn = {id(getattr(item, "function", None)): item for item in items}  # cases of one test share its function
        for item in drawn.values():
            _draw_fewer(item)
    for item in items:
        if item.path.parent.name in QUICK and item.path.stem not in NOT_QUICK and not item.get_closest_marker("full"):
            item.add_marker(pytest.mark.quick)
    if config.getoption("-m"):
        return
    # All screens and pictures that are recorded are recorded together.
    recording = config.getoption("--update-snapshots", default=False)

    def is_long(item: pytest.Item) -> bool:
        # Not `item.keywords`: those hold the names of folders too, and a checkout may lie in one called "full".
        recorded = "snapshot" in getattr(item, "fixturenames", ()) or item.name.startswith("test_picture")
        return item.get_closest_marker("full") is not None and not (recording and recorded)

    config.hook.pytest_deselected(items=[item for item in items if is_long(item)])
    items[:] = [item for item in items if not is_long(item)]
    # The longest test begins with the run, so that no worker waits for it at the end.
    items.sort(key=lambda item: item.path.stem != "test_kernels_compile")


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Generator[None, object, object]:
    """A worker sends its reports, with what a test has logged, as UTF-8. Lone surrogates of hostile text cannot be
    sent, and a report that cannot be sent ends the whole run, so they are escaped."""
    return _sendable((yield))


def _sendable(data: object) -> object:
    if isinstance(data, str):
        return data.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(data, dict):
        return {_sendable(key): _sendable(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return type(data)(map(_sendable, data))
    return data


@pytest.fixture(scope="session")
def fresh_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Makes a folder, numbered as pytest's own are. pytest looks through the folders of all earlier tests for a free
    number, which takes milliseconds after a thousand tests."""
    made = Counter[str]()

    def make(name: str) -> Path:
        while True:
            folder = tmp_path_factory.getbasetemp() / f"{name}{made[name]}"
            made[name] += 1
            if not folder.exists():
                folder.mkdir(mode=0o700)
                return folder

    return make


@pytest.fixture
def templates_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chat templates render in this process: a worker takes a tenth of a second of the processor to start. What it adds
    is tested in test_render_process and test_text_template."""
    from dflash_core.text.sandbox import Compiled

    monkeypatch.setattr("dflash_core.text.template.RenderProcess", Compiled)


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, fresh_folder: Callable[[str], Path]) -> Path:
    """In place of pytest's own, by the same name."""
    return fresh_folder(re.sub(r"\W", "_", request.node.name)[:30])


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch, fresh_folder: Callable[[str], Path]) -> Path:
    """Tests use neither the user's settings nor the user's log, and list no model of an installed package."""
    monkeypatch.setattr("dflash_tui.application.smollm2.folder", lambda: None)
    folder = fresh_folder("home")
    for kind in ("CONFIG", "STATE"):
        monkeypatch.setenv(f"XDG_{kind}_HOME", str(folder / kind.lower()))
    return folder
