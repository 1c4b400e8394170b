"""Messages where a card cannot hold a pair, fills up in mid-turn, or has failed: on simulated cards."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("cuda.bindings")
from dflash_core import loading
from dflash_core.backends.cuda import driver as cuda_driver
from dflash_core.backends.cuda import target
from dflash_core.backends.cuda.device import CudaDevice
from dflash_core.backends.cuda.driver import Driver
from dflash_core.backends.cuda.machine import CudaMachine
from dflash_core.backends.cuda.runtime import Module
from dflash_core.backends.cuda.target import CudaTarget
from dflash_core.cache_types import AUTO_PAIRS, F16, CachePair
from dflash_core.drafters.registry import open_draft
from dflash_core.engine import load_pair
from dflash_core.errors import DeviceError, DFlashError, KernelError, OutOfMemoryError, UnsupportedError
from dflash_core.fits import MIN_PREFILL_ROWS, CardOptions, Setup, requested_setup
from dflash_core.loading import load_target, open_target
from support.fake_cuda import FakeDriver, R
from support.golden import golden
from support.made_up_card import MadeUpCard
from support.mtp_files import with_head

TARGET, DRAFT = golden("tiny-F16.gguf"), golden("tiny-dflash")


@pytest.fixture
def card_with(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Replaces the first card by one with the given free bytes; nothing can be loaded onto it."""
    monkeypatch.setattr(CudaMachine, "other_processes", lambda self: 3 << 30)

    def put(free: int) -> None:
        monkeypatch.setattr(target, "open_device", lambda index: MadeUpCard(free))

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("something was allocated")

    monkeypatch.setattr(target, "DeviceUpload", refuse)
    return put


def needs(context: int, kv: CachePair = F16) -> dict[str, int]:
    """Bytes by component of the tiny pair, with the fewest rows of a prompt at once."""
    opened = CudaTarget(TARGET, device=MadeUpCard(1 << 40))  # type: ignore[arg-type]
    draft = open_draft(DRAFT, opened)
    opened.footprint.add_draft(draft.file, draft.config)
    held = {"target": opened.footprint.target_bytes, "drafter": opened.footprint.draft_bytes}
    setup = Setup(context, str(kv), rows=MIN_PREFILL_ROWS)
    components = opened.footprint.sequence(setup, drafted=True)
    return held | {one.name: one.bytes for one in components}


def refusal(draft: Any = DRAFT, context: int | None = None, **options: Any) -> str:
    with pytest.raises(OutOfMemoryError) as caught:
        load_pair(TARGET, draft, "cuda", context_length=context, card=CardOptions(**options))
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith("needs ")
    assert "on A card (" in message
    return message


def test_keys_and_values_that_do_not_fit_are_refused_before_anything_is_read(card_with: Any) -> None:
    free = min(sum(needs(4096, kv).values()) for kv in AUTO_PAIRS) - 1
    card_with(free)
    message = refusal(context=8192)
    said = int(message.split("a context of ")[1].split(" ")[0].replace(",", ""))
    assert 512 <= said < 4096
    assert sum(needs(said).values()) <= free < sum(needs(said + 512).values())
    assert "other programs on the card hold 3.0 GiB: close them, or run it on the CPU" in message


def test_a_drafter_that_does_not_fit_is_refused_before_the_target_is_read(card_with: Any) -> None:
    # The allocator takes memory in segments, so a little more context may take a little less.
    contexts = range(512, 4097, 512)
    card_with(min(sum(needs(context, kv).values()) for context in contexts for kv in AUTO_PAIRS) - 1)
    assert "drafter" in refusal()
    assert "pack the drafter as q8_0, or take no drafter, or a smaller model" in refusal()


def test_weights_that_do_not_fit_say_what_would(card_with: Any) -> None:
    card_with(1 << 20)
    message = refusal(None)
    assert "but 1.0 MiB is free; take a model of at most" in message
    with pytest.raises(OutOfMemoryError, match=r"^needs .* on A card \(.*target .*\) but 1\.0 MiB is free; take a mod"):
        load_target(TARGET, device="cuda")


def test_what_torch_only_keeps_is_free(card_with: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A deleted engine has returned its memory to the allocator, not to the driver."""
    free = [1 << 20]
    made = MadeUpCard(0)
    made.runtime.memory = lambda: (free[-1], 80 << 30)
    opened = CudaTarget(TARGET, device=made)  # type: ignore[arg-type]
    with pytest.raises(OutOfMemoryError):
        opened.check_memory(None, 512)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: free.append(1 << 40))
    opened.check_memory(None, 512)
    assert requested_setup(opened.estimator(None), None, "f16").context == 4096


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> CudaDevice:
    """A device with dummy streams, on a driver that knows the newest kernel."""
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    made = CudaDevice.__new__(CudaDevice)
    driver = Driver(FakeDriver())
    driver.launched = "gdn_recurrence"
    facts = {"card": SimpleNamespace(name="A card"), "memory": lambda: (1 << 20, 80 << 30)}
    made.runtime = SimpleNamespace(driver=driver, torch_stream=contextlib.nullcontext(), **facts)  # type: ignore[assignment]
    return made


def test_torch_out_of_memory_is_one_line_and_loses_nothing(device: CudaDevice) -> None:
    said = r"^A card is full: 1\.0 MiB of 80\.0 GiB free; shorten the context"
    with pytest.raises(OutOfMemoryError, match=said), device.stream():
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB\nand more")
    assert device.runtime.driver.lost is None


def test_an_error_that_torch_hears_of_names_the_kernel_and_asks_for_a_reload(device: CudaDevice) -> None:
    said = r"^the GPU gave up in gdn_recurrence \(an illegal memory access"
    with pytest.raises(KernelError, match=said) as caught, device.stream():
        raise RuntimeError("CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be")
    assert caught.value.reload
    with pytest.raises(KernelError, match=r"gave up in gdn_recurrence .*reload the engine"):
        device.runtime.driver.call("anything", lambda: (R.CUDA_SUCCESS, None))
    with pytest.raises(RuntimeError, match=r"^shapes"), device.stream():
        raise RuntimeError("shapes do not match")


def test_nothing_is_given_back_to_a_driver_that_is_gone() -> None:
    api = FakeDriver()
    driver = Driver(api)
    runtime: Any = SimpleNamespace(driver=driver)
    Module(runtime, "one", "a.cu")
    assert api.called("cuModuleUnload") == [["one"]]
    driver._ending = lambda: True
    Module(runtime, "two", "a.cu")
    driver._ending = lambda: False
    driver.lose("scale", "launch failed")
    Module(runtime, "three", "a.cu")
    assert api.called("cuModuleUnload") == [["one"]]


def test_auto_takes_the_card_where_it_can_be_used(card_with: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "find_driver", lambda: None)
    card_with(1 << 40)
    opened = open_target(TARGET, "auto")
    assert isinstance(opened, CudaTarget)
    assert not opened.notes
    assert opened.machine.name == "A card"


@pytest.mark.parametrize("error", [DeviceError("the NVIDIA driver is for CUDA 12.4"), UnsupportedError("A card: 7.0")])
def test_auto_says_why_a_card_is_not_used(error: DFlashError, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(index: int) -> None:
        raise error

    monkeypatch.setattr(loading, "find_driver", lambda: None)
    monkeypatch.setattr(target, "open_device", fail)
    opened = open_target(TARGET, "auto")
    assert not isinstance(opened, CudaTarget)
    assert opened.notes == (f"the GPU is not used: {error}",)
    with pytest.raises(type(error), match=str(error)):
        open_target(TARGET, "cuda")


def test_auto_is_silent_where_there_is_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_driver, "LIBRARY", "libthat-is-not-there.so.1")
    opened = open_target(TARGET, "auto")
    assert not isinstance(opened, CudaTarget)
    assert not opened.notes


def test_a_card_in_exclusive_use() -> None:
    from dflash_core.backends.cuda.driver import open_card
    from support.fake_cuda import fake_torch

    api = FakeDriver()
    api.fails["cuDevicePrimaryCtxRetain"] = R.CUDA_ERROR_DEVICE_UNAVAILABLE
    with pytest.raises(DeviceError, match=r"^A card is used by another program \(compute mode exclusive\); end it"):
        open_card(api, fake_torch(), {})


def test_a_file_with_an_mtp_head_drafts_by_itself(tmp_path: Path) -> None:
    """And several drafters at once are refused before anything is loaded."""
    opened = CudaTarget(with_head(tmp_path / "whole.gguf"), device=MadeUpCard(1 << 40))  # type: ignore[arg-type]
    assert opened.own_draft == "mtp"
    head = open_draft("mtp", opened)
    opened.check_memory(head, None)
    components = opened.estimator(head).components(Setup(512))
    assert {one.name for one in components if one.bytes} >= {"drafter", "drafter KV"}
    with pytest.raises(UnsupportedError, match=r"^2 drafters at once \(mtp\+ngram\) on a card, expected one; load"):
        opened.check_memory(open_draft("mtp+ngram", opened), None)
