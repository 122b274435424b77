"""Small arrays of references, as arguments of tests."""

from typing import Any

import numpy as np
from hypothesis import settings
from numpy.typing import NDArray
from virtualizarr.manifests.utils import create_v3_array_metadata

from parts_store.manifests import PartsArray
from tests.effort import examples
from tests.manifests.making import Files, Kind, make, random_values

FEW = settings(max_examples=examples(40))
PLAIN = Kind("<i4", "plain", 2, (2, 3))


def simple(shape: tuple[int, ...] = (6, 6), kind: Kind = PLAIN, *, seed: int = 0) -> tuple[PartsArray, NDArray[Any]]:
    """An array that is bound to the files that it refers to, and its values."""
    files = Files(np.random.default_rng(seed))
    array, values = make(random_values(shape, kind, files.rng), kind, files)
    return array.with_registry(files.registry()), values


def entry(offset: int = 0, length: int = 4, path: str = "s3://b/f") -> dict[str, Any]:
    return {"path": path, "offset": offset, "length": length}


def metadata(shape: tuple[int, ...] = (4,), chunks: tuple[int, ...] = (2,), **others: Any) -> Any:
    return create_v3_array_metadata(shape=shape, data_type=np.dtype("u2"), chunk_shape=chunks, **others)


GOOD = [{"0": entry(), "1": entry()}]
