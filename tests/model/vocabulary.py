"""The words that scenarios are made of: values, operations, and options."""

from typing import Any

from tests.model.clients import Operation
from tests.model.patched import Patch
from tests.model.scenario import Scenario
from tests.model.values import HEADED, SHARD

# The inner chunks have different lengths, so that every index is another one.
FIRST = SHARD.value(b"A", b"AA")
SECOND = SHARD.value(b"BBB", b"B")
THIRD = SHARD.value(b"CC", b"CCC")
# Other data, and the same index as `FIRST`.
SAME_INDEX = SHARD.value(b"D", b"DD")
# One of the two inner chunks is missing. The data of both shards is the same.
HOLE_AT_START = SHARD.value(None, b"HH")
HOLE_AT_END = SHARD.value(b"HH", None)
FIRST_HEADED = HEADED.value(b"A", b"AA")
SECOND_HEADED = HEADED.value(b"BBB", b"B")
THIRD_HEADED = HEADED.value(b"CC", b"CCC")

READ = Operation("read")
READ_BYTE = Operation("read", view="first byte")
EXISTS = Operation("read", view="exists")
SIZE = Operation("read", view="size")
READ_SHARD = Operation("read", view=(0, 1))
READ_SLOT_0 = Operation("read", view=(0,))
READ_SLOT_1 = Operation("read", view=(1,))
DELETE = Operation("delete")
REPAIR = Operation("repair")


def write(value: bytes) -> Operation:
    """Return a write that does not know whether the chunk exists."""
    return Operation("write", value)


def overwrite(value: bytes) -> Operation:
    """Return a write that has just found that the chunk exists."""
    return Operation("overwrite", value)


def write_if_absent(value: bytes) -> Operation:
    """Return a write that does nothing if the chunk exists."""
    return Operation("write if absent", value)


def change(mark: bytes) -> Operation:
    """Return a read-modify-write."""
    return Operation("change", mark=mark)


def make(name: str, *clients: list[Operation], **options: Any) -> Scenario:
    """Return the scenario in which each of the clients carries out its operations in order."""
    return Scenario(name, tuple(tuple(each) for each in clients), **options)


LATE_PUT: dict[str, Any] = {"faults": 1, "has_late_puts": True}
REPEATED_WRITE: dict[str, Any] = {"repeats_writes": True, "ends_tidy": False}
CONTENT_ETAGS: dict[str, Any] = {"has_unique_etags": False, "leaves_nothing": False}
# At rest there are the copies of the dead writer and of the last writer, and the marks of the last two writers.
# The next writer adds two objects before it removes two.
BOUNDED_LEFTOVERS: dict[str, Any] = CONTENT_ETAGS | {"most_beside": 6, "most_beside_at_rest": 4}
EMBEDDED_CONTENT: dict[str, Any] = CONTENT_ETAGS | {"embeds": True}
FULL: dict[str, Any] = {"level": "full", "allows_damage": True}
# The callers break their promise, and a delete may damage a chunk that is created at the same time.
BROKEN_PROMISE: dict[str, Any] = {"allows_damage": True, "allows_lasting_damage": True}
EXCLUSIVE: dict[str, Any] = {"level": "exclusive"}
LOCAL: dict[str, Any] = {"is_local": True, "has_conditions": False}
# A reader of a local disk makes many attempts, each of which multiplies the number of states.
FEWER_ATTEMPTS = Patch("read_journaled", "attempts = 4 * least", "attempts = least + 1")
LOCAL_FEWER_ATTEMPTS: dict[str, Any] = LOCAL | {"patches": (FEWER_ATTEMPTS,)}
