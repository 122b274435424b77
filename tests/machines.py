"""A store for zarr's state machines, which draw any key there is, those that are reserved here among them."""

from typing import Never, override

from hypothesis.errors import UnsatisfiedAssumption
from zarr.core.buffer import Buffer

from parts_store import PartsStore
from parts_store.format.keys import is_protocol_key


class UnreservedKeys(PartsStore):
    """Gives up an example that writes to the folder of the write protocol, which other stores have no name for.

    Hypothesis does come upon it: it looks for constants in the code under test.
    """

    @override
    async def set(self, key: str, value: Buffer) -> None:
        if is_protocol_key(key):
            _reject(key)
        await super().set(key, value)

    @override
    async def set_if_not_exists(self, key: str, value: Buffer) -> None:
        if is_protocol_key(key):
            _reject(key)
        await super().set_if_not_exists(key, value)


def _reject(key: str) -> Never:
    # zarr calls us in a thread of its own, where `hypothesis.reject` takes itself to be outside of any test.
    raise UnsatisfiedAssumption(f"{key!r} is reserved")
