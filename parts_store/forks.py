"""Refuse to use a store in a forked process: the threads of obstore do not survive a fork, and requests would hang."""

import os

from parts_store.errors import StoreConfigError


class _Process:
    """The state of this process: whether it has used a store, or was forked from a process that had."""

    is_used = False
    is_fork = False


def require_own_process() -> None:
    """Raise `StoreConfigError` if this process was forked from one that had used a store; note that this one does."""
    if _Process.is_fork:
        expected = "a process started with the method 'spawn' or 'forkserver' of multiprocessing"
        found = "a process that was forked after a store had been used, without the threads of obstore"
        raise StoreConfigError("process", expected, found)
    _Process.is_used = True


def _after_fork_in_child() -> None:
    _Process.is_fork = _Process.is_used


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
