"""Forked processes: obstore's threads do not survive a fork, and requests would wait for them for ever."""

import os

from parts_store.errors import StoreConfigError


class _Process:
    """What is known of this process: whether it has used a store, or is a fork of one that had."""

    is_used = False
    is_fork = False


def require_own_process() -> None:
    """Raise if this process is a fork of one that has used a store; remember that this one does."""
    if _Process.is_fork:
        expected = "one that was started with the method 'spawn' or 'forkserver' of multiprocessing"
        found = "one that was forked after a store had been used, and has none of the threads that do the work"
        raise StoreConfigError("process", expected, found)
    _Process.is_used = True


def _after_fork_in_child() -> None:
    _Process.is_fork = _Process.is_used


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
