"""Make the arrays of the kit and the list of its cases: `python -m conformance.make`.

The same files come out on every machine. Only the HDF5 files, and their indexes, depend on the version of HDF5.
"""

import io
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from conformance.cases import DATA, FOLDER, MANIFEST
from conformance.generator.arrays import Made
from conformance.generator.codec_cases import codec_cases
from conformance.generator.damaged_cases import damaged_cases
from conformance.generator.encoding import Values
from conformance.generator.example_cases import example_cases
from conformance.generator.file_cases import file_cases
from conformance.generator.part_cases import part_cases
from conformance.generator.shard_cases import shard_cases

ERRORS = {
    "missing-part": "a part is missing, and the part that decides about the existence of the chunk is there",
    "wrong-size": "a part has another size than the document says",
    "bad-checksum": "a checksum of a chunk, or of the index of a shard, does not fit",
    "bad-data": "bytes of a chunk or of an index cannot be decoded: they are too few, too many, or not in their format",
    "changed-file": "another program has changed a file that is a shard",
    "bad-configuration": "the configuration of concat-parts or of a codec is wrong",
    "unknown-transformer": "a storage transformer is unknown, or there is more than one",
    "unknown-extension": "a codec, or a member of the document that must be understood, is unknown",
}


def all_cases() -> Iterator[Made]:
    """Yield the cases of the kit in the order of the list."""
    for cases in (part_cases, shard_cases, codec_cases, file_cases, example_cases, damaged_cases):
        yield from cases()


def npy(values: Values) -> bytes:
    """Return values as the bytes of a `.npy` file."""
    stream = io.BytesIO()
    np.save(stream, values, allow_pickle=False)
    return stream.getvalue()


def files_of(made: Made) -> dict[str, bytes]:
    """Return the files of a case by their paths in the folder of the kit."""
    files = {f"{DATA}/{made.name}/{key}": data for key, data in made.files.items()}
    if made.regions:
        values = {_region_path(made, number): each.values for number, each in enumerate(made.regions)}
    else:
        values = {} if made.values is None else {f"{DATA}/{made.name}.npy": made.values}
    return files | {path: npy(each) for path, each in values.items()}


def _region_path(made: Made, number: int) -> str:
    return f"{DATA}/{made.name}.{number}.npy"


def entry_of(made: Made) -> dict[str, Any]:
    """Return the entry of a case in the list."""
    expect: dict[str, Any] = {"error": made.error}
    if made.values is not None:
        expect = {"values": f"{DATA}/{made.name}.npy"}
    if made.values is not None and made.regions:
        regions = [
            {"start": each.start, "stop": each.stop, "values": _region_path(made, number)}
            for number, each in enumerate(made.regions)
        ]
        kind = {"shape": made.values.shape, "dtype": made.values.dtype.name, "fill": made.fill}
        expect = {**kind, "regions": regions}
    return {
        "name": made.name,
        "folder": f"{DATA}/{made.name}",
        "array": made.array,
        "checks": made.checks,
        "basis": "specification" if made.is_specified else "decision",
        "features": sorted({*made.features}),
        "expect": expect,
    }


def manifest(cases: list[Made]) -> bytes:
    """Return the list of the cases."""
    entries = [json.dumps(entry_of(made)) for made in cases]
    errors = json.dumps(ERRORS, indent=1).replace("\n", "\n ")
    return f'{{\n "version": 1,\n "errors": {errors},\n "cases": [\n  {",\n  ".join(entries)}\n ]\n}}\n'.encode()


def make(folder: Path) -> None:
    """Write the arrays and the list into a folder, in place of those that are there."""
    cases = list(all_cases())
    shutil.rmtree(folder / DATA, ignore_errors=True)
    for made in cases:
        for path, data in files_of(made).items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(data)
    (folder / MANIFEST).write_bytes(manifest(cases))
    print(f"{len(cases)} cases")


if __name__ == "__main__":
    make(FOLDER)
