"""A forked child of the server: the descriptors that it must not keep.

`os.fork` copies every descriptor, whatever its flags. A child that a tool leaves behind would keep the address of the
server and the connections of its clients open after the server has closed them. A program that is started is no such
child: no descriptor of the server is inheritable.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress

_actions: list[Callable[[], object]] = []


def in_forked_children(action: Callable[[], object]) -> Callable[[], None]:
    """Run `action` in every child that this process forks from now on; returns a function that ends this.

    Covers `os.fork` and what is built on it, such as `multiprocessing`. A fork in C code runs no action.
    """
    _actions.append(action)

    def undo() -> None:
        with suppress(ValueError):
            _actions.remove(action)

    return undo


def drop(*descriptors: int) -> None:
    """Let go of what the descriptors refer to, and keep their numbers in use.

    The objects that own the numbers still close them one day, and must not close something opened since.
    """
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in descriptors:
        if descriptor >= 0:
            os.dup2(nothing, descriptor, inheritable=False)
    os.close(nothing)


def _run_actions() -> None:
    actions = _actions.copy()
    _actions.clear()  # The child's own servers, if it has any, add theirs.
    for action in actions:
        with suppress(Exception):  # The child is somebody else's code by now: there is nobody to tell.
            action()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_run_actions)
