"""The journal of a write on a local disk: one file beside the chunk that names the write in progress."""

import json
import re
from dataclasses import dataclass
from typing import Final

from parts_store.engine.steps import Found
from parts_store.format.keys import Chunk

_GENERATION: Final = re.compile("[0-9a-f]{32}")
JOURNAL: Final = ".journal"
# The name of a journal in a folder beside the chunk, which is not understood any more.
_EARLIER: Final = "journal"
NOT_VALID: Final = "its journal was not written by parts_store, or is damaged; write the chunk again"


def journal_key(chunk: Chunk) -> str:
    """Return the key of the journal. While it exists, the chunk is what its write has staged."""
    return f"{chunk.side_folder}{JOURNAL}"


def is_journal(key: str) -> bool:
    """Return whether an object of the write protocol is a journal, also one of an earlier version of this library."""
    name = key.rpartition("/")[2]
    return name == _EARLIER or name.endswith(JOURNAL)


def staged_keys(chunk: Chunk, generation: str) -> tuple[str, ...]:
    """Return the keys at which a write stages the parts, in their order.

    Every write has keys of its own, because requests of a cancelled write may still be carried out. They are in the
    folder of all chunks: to make and remove a folder takes longer than to write a small chunk.
    """
    return tuple(f"{chunk.side_folder}.{generation}.{part}" for part in range(len(chunk.part_keys)))


@dataclass(frozen=True, slots=True)
class Journal:
    """The content of a journal: the chunk, relative to its array, is the write of this generation."""

    key: str
    generation: str
    sizes: tuple[int, ...]

    @classmethod
    def parse(cls, found: Found | None, chunk: Chunk | None = None) -> "Journal | None":
        """Return the journal in a file; None if there is no file, or it is not a valid journal of this chunk.

        The file may be damaged or written by other software, and file names are made from its content.
        """
        try:
            data = None if found is None else json.loads(bytes(memoryview(found.data)))
        except (ValueError, RecursionError):
            return None
        journal = cls._from_json(data)
        if journal is None or chunk is None:
            return journal
        is_of_chunk = journal.key == chunk.relative and len(journal.sizes) == len(chunk.part_keys)
        return journal if is_of_chunk else None

    @classmethod
    def _from_json(cls, data: object) -> "Journal | None":
        if not isinstance(data, dict):
            return None
        key, generation, sizes = data.get("key"), data.get("gen"), data.get("sizes")
        if not isinstance(key, str) or not isinstance(generation, str) or _GENERATION.fullmatch(generation) is None:
            return None
        if not isinstance(sizes, list) or not all(type(size) is int and size >= 0 for size in sizes):
            return None
        return cls(key, generation, tuple(sizes))

    def dump(self) -> bytes:
        """Return the bytes of the journal."""
        return json.dumps({"key": self.key, "gen": self.generation, "sizes": list(self.sizes)}).encode()
