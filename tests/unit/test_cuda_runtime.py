"""Opening a card, binding and launching kernels, and the messages when that fails, on a simulated driver."""

from __future__ import annotations

import ctypes
import threading
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cuda.bindings")
from dflash_core import nvrtc
from dflash_core.backends.cuda import driver as cuda_driver
from dflash_core.backends.cuda.driver import find_driver, open_card
from dflash_core.backends.cuda.runtime import Event, Kernel, Pinned, Runtime
from dflash_core.errors import DeviceError, DFlashError, KernelError, OutOfMemoryError, UnsupportedError
from support.fake_cuda import FakeDriver, R, fake_torch


@pytest.fixture(autouse=True)
def compiler_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "version", lambda: (13, 0))


def refusal(api: FakeDriver, torch: Any = None, **environment: str) -> DFlashError:
    with pytest.raises(DFlashError) as caught:
        open_card(api, torch or fake_torch(), environment)
    assert "\n" not in str(caught.value)
    return caught.value


def test_a_fit_card_is_described() -> None:
    _, card = open_card(FakeDriver(), fake_torch(), {})
    assert (card.name, card.arch, card.capability) == ("A card", "sm_90a", (9, 0))
    assert (card.processors, card.shared_bytes, card.total) == (132, 232448, 80 << 30)
    assert card.overlaps


def test_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_driver, "LIBRARY", "libthat-is-not-there.so.1")
    with pytest.raises(DeviceError, match=r"^no NVIDIA driver \(libthat.*; install one$"):
        find_driver()


def test_no_gpu() -> None:
    assert "shows no GPU" in str(refusal(FakeDriver(cards=0)))
    none = FakeDriver()
    none.fails["cuInit"] = R.CUDA_ERROR_NO_DEVICE
    assert "shows no GPU" in str(refusal(none))
    none.fails["cuInit"] = R.CUDA_ERROR_SYSTEM_NOT_READY
    assert "does not start (CUDA_ERROR_SYSTEM_NOT_READY)" in str(refusal(none))


@pytest.mark.parametrize("value", ["", "-1"])
def test_every_gpu_hidden(value: str) -> None:
    message = str(refusal(FakeDriver(cards=0), CUDA_VISIBLE_DEVICES=value))
    assert message == f"CUDA_VISIBLE_DEVICES={value!r} hides every GPU; unset it"


def test_a_driver_too_old() -> None:
    message = str(refusal(FakeDriver(version=12040)))
    assert message.startswith("the NVIDIA driver is for CUDA 12.4, expected 13.0 or later")


def test_a_program_that_the_driver_refuses() -> None:
    runtime, api = opened()
    api.fails["cuModuleLoadData"] = R.CUDA_ERROR_NO_BINARY_FOR_GPU
    with pytest.raises(UnsupportedError, match=r"cannot run tree\.cu .*compiled with CUDA 13\.0; update the driver"):
        runtime.load(b"code", "tree.cu")


def test_a_card_too_old() -> None:
    error = refusal(FakeDriver(capability=(7, 0)))
    assert isinstance(error, UnsupportedError)
    assert str(error).startswith("A card: compute capability 7.0, expected 7.5")


def test_a_cpu_build_of_torch_beside_a_driver() -> None:
    message = str(refusal(FakeDriver(), fake_torch(None)))
    assert "torch 2.13.0+cpu is a CPU build, expected the CUDA 13.0 build" in message


def test_a_vgpu_limit_of_zero() -> None:
    assert "A card reports no memory (a vGPU limit of 0)" in str(refusal(FakeDriver(total=0)))


def test_torch_that_does_not_start() -> None:
    torch = fake_torch()

    def fail() -> None:
        raise RuntimeError("CUDA driver initialization failed\nand more")

    torch.cuda.init = fail
    assert "torch cannot use A card (CUDA driver initialization failed)" in str(refusal(FakeDriver(), torch))


def opened(**facts: Any) -> tuple[Runtime, FakeDriver]:
    api = FakeDriver(**facts)
    torch = fake_torch()
    return Runtime(*open_card(api, torch, {}), torch), api


def a_kernel(runtime: Runtime) -> Kernel:
    return runtime.load(b"code", "file.cu").kernel("scale")


class Somewhere:
    address = 0x1234


@pytest.mark.parametrize(("scalar", "kind"), [(np.float32(1.5), ctypes.c_float), (-3, ctypes.c_int32)])
def test_a_launch_passes_what_was_bound(scalar: Any, kind: Any) -> None:
    runtime, api = opened()
    launch = a_kernel(runtime).bind((3, 2), 128, [Somewhere(), scalar])
    launch()
    [(config, function, pointers, extra)] = api.called("cuLaunchKernelEx")
    assert (config.gridDimX, config.gridDimY, config.gridDimZ, config.blockDimX) == (3, 2, 1, 128)
    assert (function, extra, int(config.hStream)) == ("scale", 0, 77)
    assert config.numAttrs == 1
    assert config.attrs[0].value.programmaticStreamSerializationAllowed == 1
    first, second = (ctypes.c_void_p * 2).from_address(pointers)
    assert ctypes.c_uint64.from_address(first).value == 0x1234
    assert kind.from_address(second).value == scalar


@pytest.mark.parametrize(("capability", "overlaps"), [((8, 9), False), ((9, 0), True)])
def test_launches_overlap_where_the_card_can(capability: tuple[int, int], overlaps: bool) -> None:
    runtime, api = opened(capability=capability)
    assert runtime.card.overlaps == overlaps
    a_kernel(runtime).bind(1, 32, [Somewhere(), np.int32(1)])()
    [(config, *_)] = api.called("cuLaunchKernelEx")
    assert config.numAttrs == overlaps


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ([Somewhere()], "scale takes 2 arguments of 8, 4 bytes, got 1 arguments of 8 bytes"),
        ([Somewhere(), np.float64(1)], "got 2 arguments of 8, 8 bytes"),
        ([Somewhere(), np.int32(1), np.int32(2)], "got 3 arguments of 8, 4, 4 bytes"),
        ([Somewhere(), 1.5], "scale got a float"),
        ([Somewhere(), None], "scale got a NoneType"),
    ],
)
def test_arguments_are_checked_when_bound(args: list[Any], words: str) -> None:
    runtime, _ = opened()
    with pytest.raises(KernelError, match=words):
        a_kernel(runtime).bind(1, 32, args)


def test_shared_memory_above_48_kb_is_asked_for_once() -> None:
    runtime, api = opened()
    kernel = a_kernel(runtime)
    for shared in (48 << 10, 100_000, 60_000, 100_000, 200_000):
        kernel.bind(1, 32, [Somewhere(), np.int32(1)], shared=shared)()
    assert [call[2] for call in api.called("cuFuncSetAttribute")] == [100_000, 200_000]
    with pytest.raises(UnsupportedError, match="needs 300,000 bytes of shared memory, but A card has 232,448"):
        kernel.bind(1, 32, [Somewhere(), np.int32(1)], shared=300_000)


def test_blocks_are_kept_apart_by_shared_memory() -> None:
    runtime, api = opened()
    whole = 228 << 10
    for per_sm in (1, 2):
        kernel = a_kernel(runtime)
        api.calls.clear()
        kernel.bind(1, 32, [Somewhere(), np.int32(1)], per_sm=per_sm)()
        part, size = (call[2] for call in api.called("cuFuncSetAttribute"))
        taken = size + 1024
        assert per_sm * taken <= whole * part / 100 <= 164 << 10
        assert (per_sm + 1) * taken > whole
        assert api.called("cuLaunchKernelEx")[0][0].sharedMemBytes == size
    kernel.bind(1, 32, [Somewhere(), np.int32(1)], shared=200_000, per_sm=2)()
    assert api.called("cuLaunchKernelEx")[-1][0].sharedMemBytes == 200_000


def test_shared_memory_of_the_kernels_own_counts() -> None:
    runtime, api = opened()
    api.own_shared = 2048
    kernel = a_kernel(runtime)
    for shared in (46 << 10, 47 << 10):
        kernel.bind(1, 32, [Somewhere(), np.int32(1)], shared=shared)
    assert [call[2] for call in api.called("cuFuncSetAttribute")] == [47 << 10]
    with pytest.raises(UnsupportedError, match="needs 234,496 bytes of shared memory"):
        kernel.bind(1, 32, [Somewhere(), np.int32(1)], shared=232448)


def test_an_error_names_the_kernel_and_leaves_the_rest_usable() -> None:
    runtime, api = opened()
    launch = a_kernel(runtime).bind(1, 32, [Somewhere(), np.int32(1)])
    api.fails["cuLaunchKernelEx"] = R.CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES
    with pytest.raises(KernelError, match=r"^scale failed \(launch out of resources\)$") as caught:
        launch()
    assert not caught.value.reload
    del api.fails["cuLaunchKernelEx"]
    launch()
    runtime.synchronize()


def test_a_lost_context_says_where_and_to_reload_from_then_on() -> None:
    runtime, api = opened()
    launch = a_kernel(runtime).bind(1, 32, [Somewhere(), np.int32(1)])
    launch()
    api.fails["cuStreamSynchronize"] = R.CUDA_ERROR_ILLEGAL_ADDRESS
    with pytest.raises(
        KernelError, match=r"^the GPU gave up in scale \(illegal address\); reload the engine$"
    ) as caught:
        runtime.synchronize()
    assert caught.value.reload
    api.fails.clear()
    before = len(api.calls)
    for attempt in (launch, runtime.synchronize, runtime.memory, lambda: Pinned(runtime, 4, np.int32)):
        with pytest.raises(KernelError, match=r"gave up in scale .*reload the engine"):
            attempt()
    assert len(api.calls) == before  # the driver is left alone


def test_an_error_that_turns_up_later_names_what_ran_before() -> None:
    runtime, api = opened()
    a_kernel(runtime).bind(1, 32, [Somewhere(), np.int32(1)])()
    api.fails["cuMemGetInfo"] = R.CUDA_ERROR_LAUNCH_FAILED
    with pytest.raises(KernelError, match=r"gave up in the card's memory, after scale \(launch failed\)"):
        runtime.memory()


def test_out_of_memory_is_its_own_error() -> None:
    runtime, api = opened()
    api.fails["cuMemHostAlloc"] = R.CUDA_ERROR_OUT_OF_MEMORY
    with pytest.raises(OutOfMemoryError, match="no memory left for 4,096 bytes of pinned memory"):
        Pinned(runtime, (16, 64), np.int32)


def test_a_graph_is_recorded_once_and_launched_by_name() -> None:
    runtime, api = opened()
    launch = a_kernel(runtime).bind(1, 32, [Somewhere(), np.int32(1)])
    with runtime.capture("the step of 24 nodes") as graph:
        launch()
    graph()
    graph()
    assert api.called("cuGraphLaunch") == [["executable", 77]] * 2
    assert api.called("cuGraphDestroy") == [["graph"]]
    api.fails["cuGraphLaunch"] = R.CUDA_ERROR_ASSERT
    with pytest.raises(KernelError, match="gave up in the step of 24 nodes"):
        graph()


def test_a_recording_that_fails_is_ended() -> None:
    runtime, api = opened()
    with pytest.raises(ValueError, match="no"), runtime.capture("a step"):
        raise ValueError("no")
    assert len(api.called("cuStreamEndCapture")) == len(api.called("cuGraphDestroy")) == 1
    assert not api.called("cuGraphInstantiate")


def test_every_thread_enters_the_context_once() -> None:
    runtime, api = opened()
    runtime.memory()
    assert api.called("cuCtxSetCurrent") == [[1]]
    worker = threading.Thread(target=lambda: (runtime.memory(), runtime.synchronize()))
    worker.start()
    worker.join()
    assert api.called("cuCtxSetCurrent") == [[1]] * 2


def test_pinned_memory_is_an_array_and_an_address() -> None:
    runtime, api = opened()
    pinned = Pinned(runtime, (2, 3), np.float32)
    assert pinned.array.shape == (2, 3)
    assert not pinned.array.any()
    host = pinned.array.ctypes.data
    assert pinned.address == host + (1 << 40)
    ctypes.c_float.from_address(host + 20).value = 7
    assert pinned.array[1, 2] == 7
    del pinned
    assert api.called("cuMemFreeHost") == [[host]]


def test_events_time_what_lies_between() -> None:
    runtime, _ = opened()
    one, two = Event(runtime), Event(runtime)
    one.record()
    two.record()
    two.wait()
    assert two.ms_since(one) == 1.5


def test_memory_is_page_locked_and_given_back() -> None:
    made, api = opened()
    made.lock(4096, 8192)
    made.unlock(4096)
    assert api.called("cuMemHostRegister") == [[4096, 8192, api.CU_MEMHOSTREGISTER_PORTABLE]]
    assert api.called("cuMemHostUnregister") == [[4096]]
    api.fails["cuMemHostRegister"] = R.CUDA_ERROR_OPERATING_SYSTEM
    with pytest.raises(KernelError, match="page-locking memory failed"):
        made.lock(4096, 8192)
