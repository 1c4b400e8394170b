"""When the next frame of a running answer may be drawn: the decoder is blocked for most of a frame's time."""

from __future__ import annotations

FIRST_S = 0.25  # seconds before the first text is drawn: a shorter answer is drawn once, at its end
SLOWEST_S = 0.5  # the maximum of seconds before later text is drawn
SHARE = 0.06  # the share of the time that the app may use
LOOK_S = 0.05  # how often the flow reads from the decoder's thread
SOON_S = 1 / 60  # the minimum wait before checking again for a frame that is almost due


def next_look(wait: float) -> float:
    """Seconds until the next check, if the next frame is due in `wait` seconds."""
    return min(max(wait, SOON_S), LOOK_S)


class Frames:
    """Belongs to one turn. `now` and `cpu` are seconds: clock time, and processor time used by the app.

    After a frame it waits until the app's processor time since the previous frame is within `SHARE` of the clock.
    """

    def __init__(self, now: float, cpu: float) -> None:
        self._at, self._cpu = now, cpu  # clock and processor time at the start of the last frame
        self._first = False  # whether the first text is waiting
        self._shown = False

    def arrived(self, now: float, cpu: float) -> None:
        """Text has arrived that is not on the screen."""
        if not (self._shown or self._first):
            self._first = True
            self._at, self._cpu = now, cpu

    def wait(self, now: float, cpu: float) -> float:
        """Seconds until a frame may be drawn, if the app stays idle until then; 0 or less: now."""
        waited = now - self._at
        if self._first and not self._shown:
            return FIRST_S - waited
        return min((cpu - self._cpu) / SHARE, SLOWEST_S) - waited

    def drawn(self, now: float, cpu: float) -> None:
        """A frame begins."""
        self._shown = self._first
        self._at, self._cpu = now, cpu
