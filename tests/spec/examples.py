"""What the tests of the specifications' examples share: places to store a document as it is printed, and encoders."""

import gzip
import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import icechunk
import numpy as np
import zarr
from numcodecs import Zstd
from obstore.store import LocalStore, MemoryStore
from zarr.core.buffer import cpu
from zarr.core.sync import sync

import parts_store as ps

OBJECTS = ["memory", "disk"]
PLACES = [*OBJECTS, "session"]


@dataclass(frozen=True)
class Place:
    """A store, written and read by means that know nothing of this package."""

    # obstore's, or Icechunk's.
    plain: Any

    @classmethod
    def new(cls, kind: str, folder: Path) -> "Place":
        match kind:
            case "memory":
                return cls(MemoryStore())
            case "disk":
                return cls(LocalStore(folder))
            case _:
                return cls(icechunk.Repository.create(icechunk.in_memory_storage()).writable_session("main"))

    @property
    def is_session(self) -> bool:
        return isinstance(self.plain, icechunk.Session)

    def store(self) -> ps.PartsStore:
        """A store that knows nothing yet."""
        return ps.PartsStore.from_session(self.plain) if self.is_session else ps.PartsStore(self.plain)

    def put(self, key: str, data: bytes) -> None:
        if self.is_session:
            sync(self.plain.store.set(key, cpu.Buffer.from_bytes(data)))
        else:
            self.plain.put(key, data)

    def get(self, key: str) -> bytes:
        if self.is_session:
            found: bytes = sync(self.plain.store.get(key, cpu.buffer_prototype)).to_bytes()
            return found
        return bytes(self.plain.get(key).bytes())

    def keys(self) -> set[str]:
        """The keys of everything but documents."""
        if self.is_session:

            async def listed() -> set[str]:
                return {key async for key in self.plain.store.list()}

            found = sync(listed())
        else:
            found = {entry["path"] for batch in self.plain.list() for entry in batch}
        return {key for key in found if not key.endswith("zarr.json")}


def opened(place: Place, path: str = "a", mode: Any = "r") -> Any:
    """Open the array with a new store."""
    return zarr.open_array(place.store(), path=path, mode=mode)


def around(codecs: str, **members: Any) -> str:
    """Return a whole document around codecs, which stay as they are printed."""
    document = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [512, 512],
        "data_type": "uint16",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [256, 256]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        **members,
    }
    return json.dumps(document)[:-1] + ", " + codecs.strip()[1:]


def zstd_frame(data: bytes) -> bytes:
    """Return data as a Zstandard frame (RFC 8878) of raw blocks, which every decoder reads."""
    frame = struct.pack("<IBI", 0xFD2FB528, 0b10100000, len(data))
    blocks = [data[at : at + (1 << 17)] for at in range(0, len(data), 1 << 17)]
    for number, block in enumerate(blocks):
        frame += struct.pack("<I", (len(block) << 3) | (number == len(blocks) - 1))[:3] + block
    return frame


def unzstd(frame: bytes) -> bytes:
    return bytes(Zstd().decode(frame))


def ungzip(data: bytes) -> bytes:
    return gzip.decompress(data)


def pixels(shape: tuple[int, ...], dtype: str) -> Any:
    """Return random values, so that all rows and columns differ."""
    return np.random.default_rng(7).integers(1, np.iinfo(dtype).max, shape, dtype)


def require_document_kept(place: Place, text: str, path: str = "a") -> None:
    """Check that writing chunks leaves the document byte for byte, and that zarr's changes change nothing else."""
    assert place.get(f"{path}/zarr.json") == text.encode()
    printed = json.loads(text)
    array = opened(place, path, "r+")
    array.attrs["units"] = "m"
    assert json.loads(place.get(f"{path}/zarr.json")) == printed | {"attributes": {"units": "m"}}
    # Not only the members: their order and the codecs within are the writer's.
    assert list(json.loads(place.get(f"{path}/zarr.json"))) == [*printed, "attributes"]
    array.resize((array.shape[0] // 2, array.shape[1]))
    expected = printed | {"attributes": {"units": "m"}, "shape": list(array.shape)}
    assert json.loads(place.get(f"{path}/zarr.json")) == expected


def require_consolidated(place: Place, text: str, values: Any, selection: Any) -> None:
    """Check that the document, as a member of consolidated metadata, opens, and is put back as it is printed."""
    member = json.loads(text)
    group = {
        "zarr_format": 3,
        "node_type": "group",
        "attributes": {},
        "consolidated_metadata": {"kind": "inline", "must_understand": False, "metadata": {"a": member}},
    }
    place.put("zarr.json", json.dumps(group).encode())
    root: Any = zarr.open_consolidated(place.store())
    assert np.array_equal(root["a"][selection], values)
    again = zarr.open_group(place.store(), mode="r+")
    again.attrs["title"] = "x"
    stored = json.loads(place.get("zarr.json"))
    assert stored == group | {"attributes": {"title": "x"}}
