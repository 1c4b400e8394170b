"""Times in the past, in everyday form."""

from __future__ import annotations

from datetime import datetime


def ago(seconds: float, now: float) -> str:
    """A time in the past in everyday form: 5 min ago, 3 h ago, yesterday 14:05, Tue 09:30, 2026-01-31."""
    past = now - seconds
    if past < 0 or past >= 7 * 86_400:
        return datetime.fromtimestamp(seconds).strftime("%Y-%m-%d")
    if past < 3600:
        return f"{int(past // 60)} min ago" if past >= 60 else "just now"
    there, here = datetime.fromtimestamp(seconds), datetime.fromtimestamp(now)
    if there.date() == here.date():
        return f"{int(past // 3600)} h ago"
    if (here.date() - there.date()).days == 1:
        return f"yesterday {there:%H:%M}"
    return f"{there:%a %H:%M}"
