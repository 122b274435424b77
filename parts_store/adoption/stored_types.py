"""Record the types of the attributes of variables that xarray has written to a session: it writes JSON alone."""

import json
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import xarray as xr
from zarr.buffer import default_buffer_prototype

from parts_store._compat.zarr import sync
from parts_store.engine.steps import get_all
from parts_store.format.attribute_types import to_member, type_name
from parts_store.format.keys import DOCUMENT, join
from parts_store.store import PartsStore

# The members of an encoding that xarray writes as attributes.
_ENCODED: Final = ("scale_factor", "add_offset", "_FillValue", "missing_value")


def record_types(store: PartsStore, path: str, dataset: xr.Dataset) -> None:
    """Add the types of attributes to the metadata documents of variables of a group, if JSON does not keep them."""
    types = {join(join(path, str(name)), DOCUMENT): _types_of(each) for name, each in dataset.variables.items()}
    typed = {key: each for key, each in types.items() if each}
    documents = store.carry_out(get_all(list(typed), "the arrays that were written"))
    buffer = default_buffer_prototype().buffer
    for key, data in documents.items():
        if data is not None:
            document = {**json.loads(data), **to_member(typed[key])}
            sync(store.set(key, buffer.from_bytes(json.dumps(document).encode())))


def _types_of(variable: xr.Variable) -> dict[str, str]:
    encoded = {key: variable.encoding[key] for key in _ENCODED if key in variable.encoding}
    return _names({**encoded, **variable.attrs})


def _names(values: Mapping[Any, Any]) -> dict[str, str]:
    found = {
        str(key): type_name(each.dtype) for key, each in values.items() if isinstance(each, np.generic | np.ndarray)
    }
    return {key: name for key, name in found.items() if name is not None}
