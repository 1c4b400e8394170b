"""A driver and a torch that record what they are asked and fail where a test wants it. No GPU behind them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from cuda.bindings import driver as real

R = real.CUresult
OK = R.CUDA_SUCCESS


class FakeDriver:
    """The part of cuda.bindings.driver that the project uses. `fails[function]` is the status it returns."""

    CUresult = R
    CUdevice_attribute = real.CUdevice_attribute
    CUfunction_attribute = real.CUfunction_attribute
    CUlaunchConfig = real.CUlaunchConfig
    CUlaunchAttribute = real.CUlaunchAttribute
    CUlaunchAttributeID = real.CUlaunchAttributeID
    CUstreamCaptureMode = real.CUstreamCaptureMode
    CU_MEMHOSTREGISTER_PORTABLE = real.CU_MEMHOSTREGISTER_PORTABLE
    CU_MEMHOSTALLOC_PORTABLE = real.CU_MEMHOSTALLOC_PORTABLE
    CU_MEMHOSTALLOC_DEVICEMAP = real.CU_MEMHOSTALLOC_DEVICEMAP

    def __init__(
        self,
        *,
        cards: int = 1,
        capability: tuple[int, int] = (9, 0),
        version: int = 13000,
        total: int = 80 << 30,
        parameters: Sequence[int] = (8, 4),
    ) -> None:
        self.cards, self.capability, self.version, self.total = cards, capability, version, total
        self.parameters = tuple(parameters)
        self.own_shared = 0  # bytes that a kernel declares itself
        self.fails: dict[str, Any] = {}
        self.calls: list[tuple[Any, ...]] = []
        self._memory: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cu"):
            raise AttributeError(name)

        def function(*args: Any) -> tuple[Any, ...]:
            self.calls.append((name, *args))
            status = self.fails.get(name, OK)
            values = getattr(self, f"_{name}", lambda *_: ())(*args) if int(status) == 0 else ()
            if isinstance(values, real.CUresult):
                return values, None, None
            return (status, *values) if values or int(status) == 0 else (status, None)

        return function

    def called(self, name: str) -> list[tuple[Any, ...]]:
        """Arguments of every call of a function."""
        return [args for called, *args in self.calls if called == name]

    def _cuDeviceGetCount(self) -> tuple[int]:  # noqa: N802
        return (self.cards,)

    def _cuDriverGetVersion(self) -> tuple[int]:  # noqa: N802
        return (self.version,)

    def _cuDeviceGet(self, index: int) -> tuple[int]:  # noqa: N802
        return (index,)

    def _cuDeviceGetName(self, size: int, device: int) -> tuple[bytes]:  # noqa: N802
        return (b"A card\0\0\0",)

    def _cuDeviceGetPCIBusId(self, size: int, device: int) -> tuple[bytes]:  # noqa: N802
        return (b"0000:1a:00.0\0\0",)

    def _cuDevicePrimaryCtxRetain(self, device: int) -> tuple[int]:  # noqa: N802
        return (1,)

    def _cuMemGetInfo(self) -> tuple[int, int]:  # noqa: N802
        return self.total // 2, self.total

    def _cuDeviceGetAttribute(self, attribute: Any, device: int) -> tuple[int]:  # noqa: N802
        name = attribute.name.removeprefix("CU_DEVICE_ATTRIBUTE_")
        major, minor = self.capability
        values = {"COMPUTE_CAPABILITY_MAJOR": major, "COMPUTE_CAPABILITY_MINOR": minor, "MULTIPROCESSOR_COUNT": 132}
        return (values.get(name, 232448),)

    def _cuModuleLoadData(self, code: bytes) -> tuple[str]:  # noqa: N802
        return ("module",)

    def _cuModuleGetFunction(self, module: str, name: bytes) -> tuple[str]:  # noqa: N802
        return (name.decode(),)

    def _cuFuncGetParamInfo(self, function: str, index: int) -> Any:  # noqa: N802
        if index >= len(self.parameters):
            return R.CUDA_ERROR_INVALID_VALUE
        return sum(self.parameters[:index]), self.parameters[index]

    def _cuFuncGetAttribute(self, kind: Any, function: str) -> tuple[int]:  # noqa: N802
        return (self.own_shared,)

    def _cuStreamEndCapture(self, stream: int) -> tuple[str]:  # noqa: N802
        return ("graph",)

    def _cuGraphInstantiate(self, graph: str, flags: int) -> tuple[str]:  # noqa: N802
        return ("executable",)

    def _cuEventCreate(self, flags: int) -> tuple[str]:  # noqa: N802
        return ("event",)

    def _cuEventElapsedTime(self, start: str, end: str) -> tuple[float]:  # noqa: N802
        return (1.5,)

    def _cuMemHostAlloc(self, nbytes: int, flags: int) -> tuple[int]:  # noqa: N802
        self._memory.append(ctypes.create_string_buffer(b"\x7f" * nbytes, nbytes))
        return (ctypes.addressof(self._memory[-1]),)

    def _cuMemHostGetDevicePointer(self, host: int, flags: int) -> tuple[int]:  # noqa: N802
        return (host + (1 << 40),)


def fake_torch(cuda: str | None = "13.0") -> Any:
    """The part of torch that opening a card uses; without `cuda` it is a CPU build."""
    stream = SimpleNamespace(cuda_stream=77)
    module = SimpleNamespace(init=lambda: None, set_device=lambda index: None, Stream=lambda: stream)
    name = "2.13.0" + ("" if cuda else "+cpu")
    return SimpleNamespace(__version__=name, version=SimpleNamespace(cuda=cuda), cuda=module)
