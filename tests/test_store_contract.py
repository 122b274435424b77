"""zarr's own conformance suite and state machines, on memory and on a local disk, with and without parts."""

import pickle
from pathlib import Path
from typing import Any, ClassVar

import obstore
import pytest
from obstore.store import LocalStore, MemoryStore
from zarr.core.buffer import Buffer, cpu
from zarr.testing.stateful import ZarrHierarchyStateMachine, ZarrStoreStateMachine
from zarr.testing.store import StoreTests

from parts_store import ConcatParts, Part, PartsStore
from parts_store.format.keys import ChunkKeyEncoding
from parts_store.format.metadata import ArrayRecord
from parts_store.store.catalog import Catalog
from tests.machines import ObjectStoreMachine, UnreservedKeys, run

# Parts that any value fits: zarr's suite writes some of four bytes, and empty ones.
PARTS = ConcatParts([Part(".head", size=0), "", Part(".tail", size=0)])


class Plainly(PartsStore):
    """A store whose keys are those of no array with parts."""

    suffixes: ClassVar[dict[str, bytes]] = {"": b""}


class InParts(PartsStore):
    """A store in which the keys that zarr's suite uses are chunks of arrays with parts, at the root and at `foo`."""

    suffixes: ClassVar[dict[str, bytes]] = {".head": b"", "": b"", ".tail": b""}

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        encodings = {"": ChunkKeyEncoding("default", "/", 1), "foo": ChunkKeyEncoding("v2", "/", 2)}
        records = {path: ArrayRecord({}, PARTS, encoding, None) for path, encoding in encodings.items()}
        self._operations.catalog = Catalog(self.protocol, records)


class Contract(StoreTests[PartsStore, cpu.Buffer]):
    buffer_cls = cpu.Buffer

    def is_chunk(self, store: PartsStore, key: str) -> bool:
        return isinstance(store, InParts) and key in {f"c/{number}" for number in range(1001)} | {"foo/0/0"}

    async def set(self, store: PartsStore, key: str, value: Buffer) -> None:
        if self.is_chunk(store, key):
            for suffix in (".head", ".tail"):
                obstore.put(store.store, key + suffix, b"")
        obstore.put(store.store, key, value.to_bytes())

    async def get(self, store: PartsStore, key: str) -> Buffer:
        return cpu.Buffer.from_bytes(bytes(obstore.get(store.store, key).bytes()))

    def test_store_repr(self, store: PartsStore) -> None:
        assert repr(store).startswith("PartsStore(")

    def test_store_supports_writes(self, store: PartsStore) -> None:
        assert store.supports_writes

    def test_store_supports_listing(self, store: PartsStore) -> None:
        assert store.supports_listing


class OnMemory(Contract):
    @pytest.fixture
    def store_kwargs(self) -> dict[str, Any]:
        return {"store": MemoryStore()}

    async def test_serializable_store(self, store: PartsStore) -> None:
        with pytest.raises(pickle.PicklingError, match="on memory cannot be pickled"):
            pickle.dumps(store)


class OnDisk(Contract):
    @pytest.fixture
    def store_kwargs(self, tmp_path: Path) -> dict[str, Any]:
        return {"store": LocalStore(tmp_path)}


class TestPlainlyOnMemory(OnMemory):
    store_cls = Plainly


class TestInPartsOnMemory(OnMemory):
    store_cls = InParts


class TestPlainlyOnDisk(OnDisk):
    store_cls = Plainly


class TestInPartsOnDisk(OnDisk):
    store_cls = InParts


EVERY_ARRAY_IN_PARTS = {"*": [Part(""), Part(".tail", size=0)]}


@pytest.mark.slow
@pytest.mark.parametrize("parts", [None, EVERY_ARRAY_IN_PARTS], ids=["plain", "parts"])
@pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning")
@pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning")
def test_zarrs_hierarchy_machine_finds_no_difference(place: Any, parts: Any) -> None:
    machine: Any = ObjectStoreMachine if place is MemoryStore else ZarrHierarchyStateMachine

    class Machine(machine):  # type: ignore[misc] # one of two classes
        def __init__(self) -> None:
            super().__init__(UnreservedKeys(place(), parts=parts))

    run(Machine, 15)


@pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning")
def test_zarrs_store_machine_finds_no_difference(place: Any) -> None:
    class Machine(ZarrStoreStateMachine):
        def __init__(self) -> None:
            super().__init__(UnreservedKeys(place()))

    run(Machine, 15)
