"""The host's lead over the card in a long prompt, whose parts it queues one after the other."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from dflash_core.backends.cuda.launch import Device, Run

AHEAD = 2  # parts that are queued while the host waits for an earlier one


class PartsAhead:
    """Limits the lead, so that `cancelled`, if there is one, is asked while there is still something to leave out."""

    def __init__(self, device: Device, cancelled: Callable[[], bool] | None) -> None:
        self._device, self._cancelled = device, cancelled
        self._marks: deque[Run] = deque()

    def given_up(self) -> bool:
        """Whether the rest of the prompt is left out. To be called before a part is queued."""
        if self._cancelled is None:
            return False
        self._marks.append(self._device.mark())
        if len(self._marks) > AHEAD:
            self._marks.popleft()()
        return self._cancelled()
