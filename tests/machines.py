"""How state machines are run, and what those of zarr need to compare our stores with the model of zarr."""

from typing import Never, override

from hypothesis import HealthCheck, settings
from hypothesis.errors import UnsatisfiedAssumption
from hypothesis.stateful import RuleBasedStateMachine, invariant, run_state_machine_as_test
from zarr.core.buffer import Buffer, default_buffer_prototype
from zarr.testing.stateful import ZarrHierarchyStateMachine

from parts_store import PartsStore
from parts_store.format.keys import is_protocol_key
from tests.effort import examples


def run(machine: type[RuleBasedStateMachine], count: int, *, steps: int = 25) -> None:
    """Run a state machine with so many examples, or the share of them that is run."""
    suppressed = list(HealthCheck)
    run_state_machine_as_test(
        machine,
        settings=settings(max_examples=examples(count), stateful_step_count=steps, suppress_health_check=suppressed),
    )


class UnreservedKeys(PartsStore):
    """Gives up an example that writes to the folder of the write protocol, which other stores have no name for.

    The machines draw any key there is, and hypothesis does come upon this one: it looks for constants in the code
    under test.
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


class ObjectStoreMachine(ZarrHierarchyStateMachine):
    """zarr's machine, for object stores, which have no conditional delete.

    There, a partial write that leaves nothing but fill values stores a shard without inner chunks; zarr's stores delete
    the shard.
    """

    @invariant()
    def check_list_prefix_from_root(self) -> None:
        expected = set(self._sync_iter(self.model.list_prefix("")))
        for key in set(self._sync_iter(self.store.list_prefix(""))) - expected:
            stored = self._sync(self.store.get(key, default_buffer_prototype()))
            assert stored is not None
            assert is_empty_shard(stored.to_bytes()), key
            self._sync(self.store.delete(key))
        super().check_list_prefix_from_root()


def is_empty_shard(shard: bytes) -> bool:
    """Return whether a shard is an index in which every inner chunk is missing, with or without a checksum."""
    nbytes = len(shard) // 16 * 16
    return nbytes > 0 and len(shard) - nbytes in (0, 4) and shard[:nbytes] == b"\xff" * nbytes
