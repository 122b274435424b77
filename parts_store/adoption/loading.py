"""Load values of variables of files. An error names the file and the variable."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import xarray as xr
from numpy.typing import NDArray

from parts_store._compat.xarray import FillValueCoder
from parts_store.errors import AdoptionError, PartsStoreError, raise_translated
from parts_store.format.attribute_types import BYTES, types_in, with_types
from parts_store.manifests.array import PartsArray
from parts_store.manifests.reading import ReadSettings, carry_out, load_all
from parts_store.redaction import hide_secrets

DEFAULT_MAX_LOADED: Final = 64 << 20
"""Variables that have to be loaded, or compared, have at most this number of bytes."""


@dataclass(frozen=True, slots=True)
class Origin:
    """The file that a variable is from, and the name of the variable."""

    location: str
    name: str


def load_arrays(arrays: Sequence[PartsArray], origins: Sequence[Origin]) -> list[NDArray[Any]]:
    """Return the values of arrays, all of which are read at the same time.

    Raises `AdoptionError` for the first array whose values cannot be read.
    """
    try:
        return _load(arrays)
    except Exception:
        # Which of them cannot be read is only known after each was read by itself.
        return [_load_one(array, origin) for array, origin in zip(arrays, origins, strict=True)]


def _load(arrays: Sequence[PartsArray]) -> list[NDArray[Any]]:
    registries = tuple({id(each): each for array in arrays for each in array.registries_for(None)}.values())
    return carry_out(load_all([each.references for each in arrays], registries, ReadSettings()))


def _load_one(array: PartsArray, origin: Origin) -> NDArray[Any]:
    try:
        return _load([array])[0]
    except Exception as error:
        said = str(error) if isinstance(error, PartsStoreError) else f"{type(error).__name__}: {error}"
        problem = f"its values cannot be read: {hide_secrets(said.strip().partition('\n')[0])[:300]}"
        raise_translated(AdoptionError(origin.location, ((f"variable {origin.name!r}", problem),)), error)


def load_variables(variables: Sequence[xr.Variable], origins: Sequence[Origin]) -> list[xr.Variable]:
    """Return variables with their stored values. The values of all that are virtual are read at the same time."""
    virtual = [number for number, each in enumerate(variables) if isinstance(each.data, PartsArray)]
    values = load_arrays([variables[number].data for number in virtual], [origins[number] for number in virtual])
    loaded = dict(zip(virtual, values, strict=True))
    return [_with_values(each, loaded[at]) if at in loaded else each for at, each in enumerate(variables)]


def _with_values(variable: xr.Variable, values: NDArray[Any]) -> xr.Variable:
    types = types_in(variable.data.metadata.extra_fields)
    # xarray cannot write bytes.
    attributes = with_types(variable.attrs, {key: name for key, name in types.items() if name != BYTES})
    if isinstance(attributes.get("_FillValue"), str | list) and values.dtype.kind in "fc":
        attributes["_FillValue"] = FillValueCoder.decode(attributes["_FillValue"], str(values.dtype))
    return xr.Variable(variable.dims, values, attributes, variable.encoding)
