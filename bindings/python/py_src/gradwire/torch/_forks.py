"""What becomes of hooks where their process forks, as it does for the workers of a `DataLoader`.

The child has the memory of the hook, but neither its threads nor its connections, and a lock that another thread held at that
moment stays locked there for ever.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Forks(Protocol):
    """What a hook does around a fork."""

    def before_fork(self) -> None:
        """In the process that forks."""

    def after_fork(self, is_child: bool) -> None:
        """In both processes."""


#: Those that are told of forks, as long as they live.
known: weakref.WeakSet[Forks] = weakref.WeakSet()


def _before() -> None:
    for one in list(known):
        one.before_fork()


def _after(is_child: bool) -> None:
    for one in list(known):
        one.after_fork(is_child)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=lambda: _after(False), after_in_child=lambda: _after(True))
