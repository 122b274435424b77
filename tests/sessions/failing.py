"""Calls of an Icechunk session that fail at a chosen moment."""

import itertools
from collections.abc import Callable
from typing import Any

from icechunk import IcechunkError

import parts_store as ps
from parts_store.errors import SessionError

INJECTED = "injected"


class InjectedError(IcechunkError):
    """A fault that no real component can be made to show: one call of many fails."""


def fail_at(store: ps.PartsStore, failing: int, write: Callable[[ps.PartsStore], object]) -> bool:
    """Let the `failing`-th change that a write makes in a session fail; whether it made so many."""
    backend: Any = store._backend
    calls = itertools.count()
    inner = backend.icechunk

    class Failing:
        def __getattr__(self, name: str) -> Any:
            method = getattr(inner, name)
            if name not in ("set", "delete", "set_virtual_ref_async"):
                return method

            async def call(*arguments: Any, **named: Any) -> Any:
                if next(calls) == failing:
                    raise InjectedError(INJECTED)
                return await method(*arguments, **named)

            return call

    object.__setattr__(backend, "icechunk", Failing())
    try:
        write(store)
    except SessionError as error:
        # zarr takes its cause away from some.
        return error.problem == INJECTED
    finally:
        object.__setattr__(backend, "icechunk", inner)
    return False
