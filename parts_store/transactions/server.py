"""What is known in this process of the servers behind its stores, by bucket and prefix."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass

from parts_store.engine.steps import Steps, Wait
from parts_store.transactions.server_probe import Features, probe

_known: dict[Hashable, Features] = {}
# The servers that were asked twice.
_confirmed: set[Hashable] = set()
_asking: dict[Hashable, object] = {}
# How often an operation looks whether another one has found out, every 80 ms, before it asks by itself.
_MAX_LOOKS = 200


@dataclass(frozen=True, slots=True)
class Server:
    """The server behind a store, which is asked once what it supports."""

    # Equal for all stores on the same bucket and prefix that send the same kind of requests.
    key: Hashable
    # As errors show it, without secrets.
    address: str
    # Whether conditional PUTs may be sent.
    has_conditions: bool

    @property
    def known(self) -> Features | None:
        """What the server supports, None if it was not asked yet."""
        return _known.get(self.key)

    def learn(self, features: Features) -> None:
        """Remember what the server supports."""
        _known[self.key] = features

    def forget(self, features: Features) -> None:
        """Ask again before the next write, unless another operation has done so since it found these features."""
        if _known.get(self.key) is features:
            del _known[self.key]

    @property
    def is_confirmed(self) -> bool:
        """Whether the server was asked a second time, because of what it lacked the first time."""
        return self.key in _confirmed

    def confirm(self) -> None:
        """Know that the server was asked a second time."""
        _confirmed.add(self.key)

    def features(self, new_generation: Callable[[], str], path: str) -> Steps[Features]:
        """Return what the server supports, and ask it if nothing in this process did, with an object below a path."""
        me = object()
        for repeat in range(1, _MAX_LOOKS + 1):
            if (known := self.known) is not None:
                return known
            # Of several threads, one gets to ask.
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
