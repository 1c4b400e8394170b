"""Kernels, graphs, events and pinned memory on one stream of one card, in the context that torch uses.

torch allocates the memory. A launch is bound once: its arguments are packed and checked against the kernel's list of
parameters; then each launch is a single driver call. Buffers never move, so addresses are bound too.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from dflash_core.backends.cuda.driver import CardFacts, Driver, find_driver, open_card
from dflash_core.backends.cuda.launch import Argument, Size
from dflash_core.errors import KernelError, cpu_only

RESERVED = 1 << 10  # bytes of shared memory that the system reserves for every thread block
STATIC_LIMIT = 48 << 10  # bytes of shared memory that a kernel may use without opting in


class Runtime:
    """One card and the stream that all kernels run on. Raises DeviceError if there is no card."""

    def __init__(self, driver: Driver, card: CardFacts, torch: Any) -> None:
        self.driver, self.card = driver, card
        self.torch_stream = torch.cuda.Stream()
        self.stream = int(self.torch_stream.cuda_stream)

    @classmethod
    def open(cls, index: int = 0) -> Runtime:
        """Open the visible card number `index`, in the driver's order."""
        api = find_driver()
        driver, card = open_card(api, torch, index=index)
        return cls(driver, card, torch)

    def load(self, code: bytes, name: str) -> Module:
        """Load a compiled program. Raises UnsupportedError if the driver or the card cannot run it."""
        api = self.driver.api
        return Module(self, self.driver.call(name, api.cuModuleLoadData, code), name)

    def synchronize(self) -> None:
        """Wait for all launches. If one of them failed, its error is raised here."""
        where = self.driver.launched or "the GPU"
        self.driver.call(where, self.driver.api.cuStreamSynchronize, self.stream)

    @contextmanager
    def capture(self, name: str) -> Iterator[Graph]:
        """Record what the body launches, without running it; the graph is ready after the body.

        The body must not allocate memory, wait, or load a kernel.
        """
        api = self.driver.api
        graph = Graph(self, name)
        mode = api.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        self.driver.call(name, api.cuStreamBeginCapture, self.stream, mode)
        try:
            yield graph
        except BaseException:
            status, recorded = api.cuStreamEndCapture(self.stream)
            if int(status) == 0:
                api.cuGraphDestroy(recorded)
            raise
        recorded = self.driver.call(name, api.cuStreamEndCapture, self.stream)
        try:
            graph.handle = self.driver.call(name, api.cuGraphInstantiate, recorded, 0)
        finally:
            api.cuGraphDestroy(recorded)
        self.driver.call(name, api.cuGraphUpload, graph.handle, self.stream)

    def lock(self, address: int, nbytes: int) -> None:
        """Page-lock memory. Raises DFlashError if the system refuses."""
        api = self.driver.api
        self.driver.call("page-locking memory", api.cuMemHostRegister, address, nbytes, api.CU_MEMHOSTREGISTER_PORTABLE)

    def unlock(self, address: int) -> None:
        """Undo `lock`."""
        self.driver.release(self.driver.api.cuMemHostUnregister, address)

    def memory(self) -> tuple[int, int]:
        """Free and total bytes of the card."""
        free, total = self.driver.call("the card's memory", self.driver.api.cuMemGetInfo)
        return int(free), int(total)


class _Owned:
    """An object of the driver, which is freed with this one by the driver's function `free`."""

    free: str
    handle: Any = None

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime

    def __del__(self) -> None:
        if self.handle is not None:
            driver = self.runtime.driver
            driver.release(getattr(driver.api, self.free), self.handle)


class Module(_Owned):
    """A loaded program; it stays loaded as long as this object or one of its kernels."""

    free = "cuModuleUnload"

    def __init__(self, runtime: Runtime, handle: Any, name: str) -> None:
        super().__init__(runtime)
        self.handle, self.name = handle, name

    def kernel(self, name: str) -> Kernel:
        """A kernel of the program. Raises KernelError if there is none of this name."""
        driver = self.runtime.driver
        return Kernel(self, name, driver.call(name, driver.api.cuModuleGetFunction, self.handle, name.encode()))


class Kernel:
    """A kernel and the sizes of its parameters, in bytes."""

    def __init__(self, module: Module, name: str, handle: Any) -> None:
        self.module, self.name, self.handle = module, name, handle
        driver = module.runtime.driver
        driver.call(name, driver.api.cuFuncLoad, handle)  # a kernel cannot be loaded during a capture
        self.sizes = tuple(self._sizes())
        kind = driver.api.CUfunction_attribute.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES
        self._own = int(driver.call(name, driver.api.cuFuncGetAttribute, kind, handle))  # static, besides `shared`
        self._shared = STATIC_LIMIT - self._own

    def _sizes(self) -> Iterator[int]:
        api = self.module.runtime.driver.api
        for index in range(4096):
            status, *found = api.cuFuncGetParamInfo(self.handle, index)
            if int(status) != 0:
                return
            yield int(found[1])

    def bind(
        self, grid: Size, block: Size, args: Sequence[Argument], *, shared: int = 0, per_sm: int = 0
    ) -> BoundLaunch:
        """A launch with fixed arguments. `shared`: bytes of dynamic shared memory. `per_sm`: the most blocks per
        multiprocessor, 0 for as many as fit.

        Raises KernelError for wrong arguments, UnsupportedError for too much shared memory.
        """
        values = [pack(self.name, arg) for arg in args]
        found = tuple(map(len, values))
        if found != self.sizes:
            raise KernelError(f"{self.name} takes {describe(self.sizes)}, got {describe(found)}")
        if per_sm:
            shared = self._spread(shared, per_sm)
        self._allow(shared)
        return BoundLaunch(self, grid, block, values, list(args), shared)

    def _spread(self, shared: int, per_sm: int) -> int:
        """Bytes of shared memory per block such that per_sm + 1 blocks do not fit on a multiprocessor.

        Otherwise the blocks of a kernel that starts early would crowd into the few multiprocessors that are free first.
        """
        runtime = self.module.runtime
        whole = runtime.card.shared_bytes + RESERVED
        shared = max(shared, whole // (per_sm + 1))
        # Reserve no more of the SM's memory than that: the rest is L1, which the matmuls need.
        api = runtime.driver.api
        kind = api.CUfunction_attribute.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
        percent = min(100, math.ceil(100 * per_sm * (shared + RESERVED) / whole))
        runtime.driver.call(self.name, api.cuFuncSetAttribute, self.handle, kind, percent)
        return shared

    def _allow(self, shared: int) -> None:
        runtime = self.module.runtime
        if shared + self._own > runtime.card.shared_bytes:
            raise cpu_only(
                f"{self.name} needs {shared + self._own:,} bytes of shared memory, but {runtime.card.name} has "
                f"{runtime.card.shared_bytes:,} per block"
            )
        if shared > self._shared:
            api = runtime.driver.api
            kind = api.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            runtime.driver.call(self.name, api.cuFuncSetAttribute, self.handle, kind, shared)
            self._shared = shared


class BoundLaunch:
    """One kernel with its grid and arguments, launched by calling it. Keeps the arguments' memory alive."""

    def __init__(
        self,
        kernel: Kernel,
        grid: Size,
        block: Size,
        values: Sequence[bytes],
        args: Sequence[Argument],
        shared: int,
    ) -> None:
        self.kernel, self._args = kernel, args
        runtime = kernel.module.runtime
        api = runtime.driver.api
        self._buffers = [ctypes.create_string_buffer(value, len(value)) for value in values]
        self._pointers = (ctypes.c_void_p * max(len(values), 1))(*map(ctypes.addressof, self._buffers))
        config = api.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = _triple(grid)
        config.blockDimX, config.blockDimY, config.blockDimZ = _triple(block)
        config.sharedMemBytes = shared
        config.hStream = runtime.stream
        # A kernel may then start while earlier ones run: it calls pdl_wait before it uses their results.
        if runtime.card.overlaps:
            attribute = api.CUlaunchAttribute()
            attribute.id = api.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            attribute.value.programmaticStreamSerializationAllowed = 1
            config.attrs = [attribute]
            config.numAttrs = 1
        self._config = config

    def __call__(self) -> None:
        driver = self.kernel.module.runtime.driver
        name = driver.launched = self.kernel.name
        address = ctypes.addressof(self._pointers)
        driver.call(name, driver.api.cuLaunchKernelEx, self._config, self.kernel.handle, address, 0)


class Graph(_Owned):
    """Launches that Runtime.capture recorded; a call runs them all."""

    free = "cuGraphExecDestroy"

    def __init__(self, runtime: Runtime, name: str) -> None:
        super().__init__(runtime)
        self.name = name

    def __call__(self) -> None:
        driver = self.runtime.driver
        name = driver.launched = self.name
        driver.call(name, driver.api.cuGraphLaunch, self.handle, self.runtime.stream)


class Event(_Owned):
    """A point in the stream that can be waited for and timed."""

    free = "cuEventDestroy"

    def __init__(self, runtime: Runtime) -> None:
        super().__init__(runtime)
        self.handle = runtime.driver.call("an event", runtime.driver.api.cuEventCreate, 0)

    def record(self) -> None:
        """Record the event after everything launched so far."""
        driver = self.runtime.driver
        driver.call("an event", driver.api.cuEventRecord, self.handle, self.runtime.stream)

    def wait(self) -> None:
        """Make the host wait until the stream has reached this point."""
        driver = self.runtime.driver
        driver.call(driver.launched or "an event", driver.api.cuEventSynchronize, self.handle)

    def ms_since(self, earlier: Event) -> float:
        """Milliseconds since `earlier`; the stream must have reached both."""
        driver = self.runtime.driver
        return float(driver.call("an event", driver.api.cuEventElapsedTime, earlier.handle, self.handle))


class Pinned(_Owned):
    """Zeroed host memory mapped into the card: `array` for the host, `address` for kernels. The host sees a kernel's
    writes. The array's memory is freed with this object. Raises OutOfMemoryError."""

    free = "cuMemFreeHost"

    def __init__(self, runtime: Runtime, shape: Size, dtype: npt.DTypeLike) -> None:
        super().__init__(runtime)
        api = runtime.driver.api
        kind = np.dtype(dtype)
        sizes = (shape,) if isinstance(shape, int) else shape
        count = math.prod(sizes)
        nbytes = max(count * kind.itemsize, 1)
        flags = api.CU_MEMHOSTALLOC_PORTABLE | api.CU_MEMHOSTALLOC_DEVICEMAP
        where = f"{nbytes:,} bytes of pinned memory"
        self.handle = int(runtime.driver.call(where, api.cuMemHostAlloc, nbytes, flags))
        self.address = int(runtime.driver.call(where, api.cuMemHostGetDevicePointer, self.handle, 0))
        memory = (ctypes.c_uint8 * nbytes).from_address(self.handle)
        ctypes.memset(memory, 0, nbytes)
        self.array: npt.NDArray[Any] = np.frombuffer(memoryview(memory), kind, count).reshape(sizes)


def pack(kernel: str, arg: Any) -> bytes:
    """The bytes of one argument. Raises KernelError for a value without a definite size, such as a Python float."""
    if isinstance(arg, bytes):
        return arg
    if isinstance(arg, int):
        return np.int32(arg).tobytes()
    if isinstance(arg, np.generic):
        return arg.tobytes()
    if hasattr(arg, "data_ptr"):
        if not arg.is_cuda or not arg.is_contiguous():
            raise KernelError(f"{kernel} got a tensor that is strided or not on the GPU; expected a contiguous one")
        return int(arg.data_ptr()).to_bytes(8, "little")
    if hasattr(arg, "address"):
        return int(arg.address).to_bytes(8, "little")
    raise KernelError(f"{kernel} got a {type(arg).__name__}; expected a tensor, an address, an int or a numpy scalar")


def describe(sizes: Sequence[int]) -> str:
    """The number and the sizes of arguments, in words."""
    return f"{len(sizes)} arguments of {', '.join(map(str, sizes)) or 'no'} bytes"


def _triple(size: Size) -> tuple[int, int, int]:
    sizes = (size,) if isinstance(size, int) else size
    x, y, z = (*sizes, 1, 1)[:3]
    return x, y, z


def seconds_of(runtime: Runtime, work: Callable[[], object]) -> float:
    """Seconds that the device needs for the work that `work` queues, by its own clock. Waits for that work."""
    before, after = Event(runtime), Event(runtime)
    before.record()
    work()
    after.record()
    after.wait()
    return after.ms_since(before) / 1e3
