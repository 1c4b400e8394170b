"""When the next frame of a running answer may be drawn: the decoder waits for most of its time."""

from __future__ import annotations

FIRST_S = 0.25  # the first text is on the screen this much later: what is complete sooner is drawn once, at its end
SLOWEST_S = 0.5  # all that follows is, at most this much later
SHARE = 0.06  # the part of the time that the app may take
LOOK_S = 0.05  # how often the flow reads from the decoder's thread
SOON_S = 1 / 60  # before a look for a frame that is almost due


def next_look(wait: float) -> float:
    """Seconds until the next look, where the next frame is due in `wait` seconds."""
    return min(max(wait, SOON_S), LOOK_S)


class Frames:
    """Belongs to one turn. `now` and `cpu` are seconds: by the clock, and of processor time that the app has used.

    A frame is paid for by waiting until what the app has used since the one before is within its `SHARE`.
    """

    def __init__(self, now: float, cpu: float) -> None:
        self._at, self._cpu = now, cpu  # when the last frame began, by both
        self._first = False  # the first text waits
        self._shown = False

    def arrived(self, now: float, cpu: float) -> None:
        """There is text that is not on the screen."""
        if not (self._shown or self._first):
            self._first = True
            self._at, self._cpu = now, cpu

    def wait(self, now: float, cpu: float) -> float:
        """Seconds until a frame may be drawn, where the app uses no more until then; 0 or less: now."""
        waited = now - self._at
        if self._first and not self._shown:
            return FIRST_S - waited
        return min((cpu - self._cpu) / SHARE, SLOWEST_S) - waited

    def drawn(self, now: float, cpu: float) -> None:
        """A frame begins."""
        self._shown = self._first
        self._at, self._cpu = now, cpu
