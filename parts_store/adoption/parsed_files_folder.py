"""ParsedFilesFolder: keep what was parsed in a folder, so that an interrupted adoption does not parse it again.

Each file has one archive of NumPy arrays there. Its name depends on the URL and the parser, and it contains the state
of the file when it was parsed: its size, and its ETag or time.
"""

import base64
import hashlib
import json
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from parts_store._compat.zarr import ArrayV3Metadata
from parts_store.adoption.described_group import nest
from parts_store.adoption.parsed_file import ParsedFile
from parts_store.adoption.report import Skipped
from parts_store.errors import StoreConfigError, describe
from parts_store.manifests import checksums
from parts_store.manifests.array import PartsArray
from parts_store.manifests.array_references import References, document_of
from parts_store.manifests.entries import Columns
from parts_store.manifests.group import PartsGroup
from parts_store.manifests.path_numbers import number_paths

_VERSION: Final = 2
_HEADER: Final = "header"
# What a damaged or foreign archive raises.
_DAMAGED: Final = (OSError, ValueError, LookupError, TypeError, EOFError, NotImplementedError, zipfile.BadZipFile)


@dataclass(frozen=True, slots=True)
class ParsedFilesFolder:
    """A folder with what was parsed of files. `purpose` says how they were parsed: with other parsers, they differ."""

    folder: Path
    purpose: str

    @classmethod
    def open(cls, folder: str | Path, purpose: str) -> "ParsedFilesFolder":
        """Return the folder at a path of this machine, which is created if there is none."""
        try:
            path = Path(folder)
            path.mkdir(parents=True, exist_ok=True)
        except (OSError, TypeError) as error:
            raise StoreConfigError("resume", "a folder of this machine", describe(folder)) from error
        return cls(path, purpose)

    def read(self, location: str) -> ParsedFile | None:
        """Return what was parsed of a file, None if there is nothing, or it cannot be read."""
        try:
            with np.load(self._place(location), allow_pickle=False) as archive:
                header = json.loads(archive[_HEADER].tobytes())
                if header["version"] != _VERSION or header["location"] != location:
                    return None
                return _from_header(header, archive)
        except _DAMAGED:
            return None

    def write(self, parsed: ParsedFile) -> None:
        """Keep what was parsed of a file. The archive appears as a whole, or not at all."""
        header, arrays = _to_header(parsed)
        arrays[_HEADER] = np.frombuffer(json.dumps(header).encode(), np.uint8)
        with tempfile.NamedTemporaryFile(dir=self.folder, suffix=".part", delete=False) as file:
            np.savez(file, allow_pickle=False, **arrays)
        Path(file.name).replace(self._place(parsed.location))

    def _place(self, location: str) -> Path:
        digest = hashlib.sha256(f"{self.purpose}\n{location}".encode()).hexdigest()
        return self.folder / f"{digest[:40]}.npz"


def _to_header(parsed: ParsedFile) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Return a JSON object, and the columns of the arrays."""
    groups: dict[str, Any] = {}
    described: list[dict[str, Any]] = []
    arrays: dict[str, NDArray[Any]] = {}
    for path, node in parsed.group.nodes():
        if isinstance(node, PartsGroup):
            groups[path] = node.attributes
            continue
        (columns,) = node.references.columns()
        locations, numbers = number_paths(columns.paths)
        at = len(described)
        arrays |= {
            f"n{at}": numbers.reshape(-1).astype(np.uint32),
            f"o{at}": columns.offsets,
            f"l{at}": columns.lengths,
        }
        inlined = [[list(index), base64.b64encode(data).decode()] for index, data in columns.inlined.items()]
        described.append(
            {
                "path": path,
                "metadata": document_of(node.metadata),
                "locations": locations,
                "inlined": inlined,
                "checksums": checksums.to_json(node.checksums),
            }
        )
    header = {
        "version": _VERSION,
        "location": parsed.location,
        "format": parsed.format,
        "state": parsed.state,
        "skipped": [asdict(each) for each in parsed.skipped],
        "notes": dict(parsed.notes),
        "loaded": dict(parsed.loaded),
        "groups": groups,
        "arrays": described,
    }
    return header, arrays


def _from_header(header: Mapping[str, Any], archive: Mapping[str, NDArray[Any]]) -> ParsedFile:
    made = {}
    for at, each in enumerate(header["arrays"]):
        offsets, lengths = archive[f"o{at}"], archive[f"l{at}"]
        known = np.array(each["locations"], np.dtypes.StringDType())
        paths = known[archive[f"n{at}"]].reshape(offsets.shape)
        inlined = {tuple(index): base64.b64decode(data) for index, data in each["inlined"]}
        columns = Columns(paths, offsets, lengths, inlined)
        metadata = ArrayV3Metadata.from_dict(each["metadata"])
        known_checksums = checksums.from_json(each["checksums"], "checksums")
        references = References.checked(metadata, [columns.manifest()], known_checksums)
        made[each["path"]] = PartsArray.of(references, None, ())
    skipped = tuple(Skipped(**each) for each in header["skipped"])
    group = nest(header["groups"], made)
    state, notes, loaded = tuple(header["state"]), header["notes"], header["loaded"]
    return ParsedFile(header["location"], header["format"], state, group, skipped, notes, loaded)
