"""The plan of a run: its arrays, and the values that are written, each of which names its write."""

import random
import struct
from dataclasses import dataclass, field
from datetime import timedelta
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal

from obstore.store import LocalStore, S3Store
from zarr.core.buffer import default_buffer_prototype

import parts_store as ps
from integration.server import Server
from parts_store import SHARD_INDEX, Part, PartsStore
from parts_store.errors import AmbiguousWriteError, ConcurrentWriteError, StorageError
from parts_store.store.options import Concurrency
from parts_store.transactions.server import Features

ROOT = Path(__file__).parent.parent.parent
PROTOTYPE = default_buffer_prototype()
type Kind = Literal["blind", "compared", "created", "deleted", "shard", "inner"]


"""How a lane's values are written: over anything; over what was read; each under a new key; now and then deleted; and
through zarr, as a whole shard, over anything; some inner chunks of one, over what was read.
"""


# How many numbers a lane has at most.
NUMBERS = 1 << 16
SLOTS, SLOT_ITEMS = 8, 4
SHARD_ITEMS = SLOTS * SLOT_ITEMS
RAW_SUFFIXES = (".head", "", ".sum")
SHARD_SUFFIXES = (".head", "", ".index")
# The errors that a broken network or another writer may cause: never damage.
ALLOWED = (ConcurrentWriteError, AmbiguousWriteError, StorageError)


# The lanes at each level. A delete may come just before a write at the level "full" only.
LANES: dict[Concurrency, tuple[Kind, ...]] = {
    "exclusive": ("blind", "compared", "created", "shard", "inner"),
    "writers": ("blind", "compared", "created", "shard", "inner"),
    "full": ("blind", "deleted", "created", "shard", "inner"),
}


@dataclass(frozen=True, slots=True)
class Lane:
    """A chunk, or a row of them, and how it is written."""

    number: int
    kind: Kind

    def key(self, number: int) -> str:
        if self.kind == "created":
            return f"created/c/{number}"
        return f"sharded/c/{self.number}" if self.is_sharded else f"raw/c/{self.number}"

    def is_delete(self, number: int) -> bool:
        return self.kind == "deleted" and number % 3 == 0

    @property
    def is_blind(self) -> bool:
        return self.kind in ("blind", "deleted", "shard")

    @property
    def is_sharded(self) -> bool:
        return self.kind in ("shard", "inner")

    @property
    def items(self) -> slice:
        """Where its shard is."""
        return self.items_of(0, SLOTS)

    def items_of(self, first: int, last: int) -> slice:
        """Where these slots of its shard are."""
        start = self.number * SHARD_ITEMS
        return slice(start + first * SLOT_ITEMS, start + last * SLOT_ITEMS)

    def slots(self, number: int) -> tuple[int, ...]:
        """What a number's write makes of a shard: all slots the same, or what many have made of it."""
        return slots_of(number) if self.kind == "inner" else (number,) * SLOTS


@dataclass(frozen=True, slots=True)
class Plan:
    """Where, by whom and how long."""

    # A folder, or a bucket, with obstore's options for it.
    address: str
    options: dict[str, Any]
    level: Concurrency
    lanes: tuple[Kind, ...]
    # How many writers are killed, and how long it takes at most; without kills, how long it takes.
    kills: int
    seconds: float
    seed: int
    # How long a lane rests after its writer was killed: what it had sent has arrived by then.
    pause: float = 0.0
    # How long a writer lives after its first write has begun or ended, at least and at most, before it is killed.
    life: tuple[float, float] = (0.02, 0.25)
    # In place of the other options when all is over, if any.
    direct: dict[str, Any] = field(default_factory=dict)
    # How many reads, writes, unresolved writes and unanswered requests there are at least, however long it takes.
    least: dict[str, int] = field(default_factory=dict)

    def objects(self, *, is_direct: bool = False) -> Any:
        if not self.options:
            return LocalStore(self.address, automatic_cleanup=True)
        options = dict(self.direct if is_direct and self.direct else self.options)
        if retry := options.get("retry_config"):
            seconds = timedelta(seconds=retry["retry_timeout"])
            backoff = {"init_backoff": timedelta(milliseconds=10), "max_backoff": timedelta(milliseconds=50), "base": 2}
            options["retry_config"] = retry | {"retry_timeout": seconds, "backoff": backoff}
        return S3Store(self.address, **options)

    def store(self) -> PartsStore:
        store = PartsStore(self.objects(), concurrency=self.level)
        if (server := store._operations.server) is not None:
            # MinIO supports everything. A writer that asked first would be killed before it writes.
            server.learn(Features(True, True, True, True))
        return store

    @staticmethod
    def options_of(server: Server, **options: Any) -> dict[str, Any]:
        """Obstore's options for a bucket there, and these beyond them."""
        client = {"allow_http": True, "timeout": "300s", **options.pop("client_options", {})}
        return {
            **server.options,
            "virtual_hosted_style_request": False,
            "client_options": client,
            **options,
        }

    @property
    def all_lanes(self) -> tuple[Lane, ...]:
        return tuple(Lane(number, kind) for number, kind in enumerate(self.lanes))


def create(plan: Plan) -> None:
    """Create the arrays of all lanes."""
    store = PartsStore(plan.objects(is_direct=True))
    raw = [Part(".head", size=16), Part(""), Part(".sum", size=16)]
    for name in ("raw", "created"):
        arguments: dict[str, Any] = {"shape": (NUMBERS,), "chunks": (1,), "dtype": "uint8", "compressors": None}
        ps.create_array(store, name, parts=raw, **arguments)
    shard = [Part(".head", size=16), Part(""), Part(".index", size=SHARD_INDEX)]
    shape = (len(plan.lanes) * SHARD_ITEMS,)
    layout: dict[str, Any] = {"shape": shape, "shards": (SHARD_ITEMS,), "chunks": (SLOT_ITEMS,), "dtype": "uint64"}
    ps.create_array(store, "sharded", parts=shard, **layout)


@lru_cache(maxsize=256)
def value_of(lane: int, number: int) -> bytes:
    """Return the value of a write: its number, filling of any length, and a digest."""
    source = random.Random(lane << 32 | number)
    body = source.randbytes(source.choice([0, 1, 100, 3000, 3000, 50_000]))
    head = struct.pack("<QQ", number, len(body))
    return head + body + blake2b(head + body, digest_size=16).digest()


def number_in(lane: int, value: bytes) -> int | None:
    """Return the number of the write of a value, or None if the value is torn."""
    number: int = struct.unpack_from("<Q", value)[0] if len(value) >= 32 else NUMBERS
    return number if number < NUMBERS and value == value_of(lane, number) else None


@lru_cache(maxsize=4096)
def slots_of(number: int) -> tuple[int, ...]:
    """Return the slots of a shard after some writes, each of one slot or, every fifth time, of the first six."""
    slots = [0] * SLOTS
    # Before that, every slot was written by something that came later.
    for each in range(max(0, number - 5 * SLOTS), number + 1):
        for slot in written_by(each):
            slots[slot] = each
    return tuple(slots)


def written_by(number: int) -> range:
    """Return the slots that a write sets."""
    return range(number % SLOTS, number % SLOTS + 1) if number % 5 else range(6)
