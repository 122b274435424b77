"""What this process has found out about the servers of its stores, by bucket and prefix."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass

from parts_store.engine.steps import Steps, Wait
from parts_store.transactions.server_probe import Features, probe

_known: dict[Hashable, Features] = {}
# The servers that were probed twice.
_confirmed: set[Hashable] = set()
_asking: dict[Hashable, object] = {}
# How often an operation waits 80 ms for the result of another operation, before it probes the server itself.
_MAX_LOOKS = 200


@dataclass(frozen=True, slots=True)
class Server:
    """The server of a store, which is probed once for what it supports."""

    # Equal for all stores on the same bucket and prefix that send the same kind of requests.
    key: Hashable
    # For error messages, without secrets.
    address: str
    # Whether conditional PUTs may be sent.
    has_conditions: bool

    @property
    def known(self) -> Features | None:
        """Return what the server supports, None if it was not probed yet."""
        return _known.get(self.key)

    def learn(self, features: Features) -> None:
        """Remember what the server supports."""
        _known[self.key] = features

    def forget(self, features: Features) -> None:
        """Probe again before the next write, unless another operation has probed the server since."""
        if _known.get(self.key) is features:
            del _known[self.key]

    @property
    def is_confirmed(self) -> bool:
        """Return whether the server was probed a second time, because it lacked a feature the first time."""
        return self.key in _confirmed

    def confirm(self) -> None:
        """Remember that the server was probed a second time."""
        _confirmed.add(self.key)

    def features(self, new_generation: Callable[[], str], path: str) -> Steps[Features]:
        """Return what the server supports; probe it with an object below a path, unless this process already did."""
        me = object()
        for repeat in range(1, _MAX_LOOKS + 1):
            if (known := self.known) is not None:
                return known
            # Only one of several threads probes the server.
            if _asking.setdefault(self.key, me) is me:
                break
            yield (Wait(min(repeat, 4)),)
        try:
            found = yield from probe(new_generation, has_conditions=self.has_conditions, path=path)
        finally:
            if _asking.get(self.key) is me:
                del _asking[self.key]
        self.learn(found)
        return found
