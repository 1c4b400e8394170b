"""Who uses the decoder: the chat, a measurement or a request of the server. One at a time, first come, first served."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LOOK_S = 0.05
"""How often a user that waits checks whether it has given up."""


class _User:
    def __init__(self, name: str) -> None:
        self.name = name


class DecoderUse:
    """The queue before the decoder. Usable from any thread."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._users: deque[_User] = deque()

    @property
    def used_by(self) -> str:
        """What the present user does; "" while the decoder is free."""
        with self._condition:
            return self._users[0].name if self._users else ""

    @contextmanager
    def using(self, name: str, given_up: Callable[[], bool] = lambda: False) -> Iterator[bool]:
        """Wait for the decoder and use it within the block. False: the user has given up and must not use it."""
        user = _User(name)
        with self._condition:
            self._users.append(user)
        try:
            with self._condition:
                while self._users[0] is not user and not given_up():
                    self._condition.wait(LOOK_S)
                first = self._users[0] is user
            yield first and not given_up()
        finally:
            with self._condition:
                self._users.remove(user)
                self._condition.notify_all()
