"""Store the values of loaded variables in a session: as new arrays, with xarray; appended; or in a region.

Values for a stored array are encoded as the array says, and decoded again: if other values would be read, nothing is
written. Values that were not decoded are written as they are: an int64 with a fill value would become a float64, and
lose digits.
"""

import json
import warnings
from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, cast

import numpy as np
import xarray as xr
import zarr
from xarray.conventions import decode_cf_variable, encode_cf_variable
from zarr.buffer import default_buffer_prototype
from zarr.storage import MemoryStore

from parts_store._compat.zarr import sync
from parts_store.errors import ManifestError, PartsStoreError, StoreConfigError, describe, raise_translated
from parts_store.virtual.attribute_types import to_member, type_name
from parts_store.virtual.combine import kind_of
from parts_store.virtual.existing_files import first_line
from parts_store.virtual.manifests.meaning import require_same_meaning
from parts_store.virtual.report import AdoptedArray
from parts_store.virtual.store_access import DOCUMENT, PartsStore, get_all, join
from parts_store.virtual.virtual_dataset import first_difference

# Attributes that xarray moves from the attributes of a variable to its encoding when it decodes the values, and back
# when it writes them.
_PACKING: Final = ("scale_factor", "add_offset", "_FillValue", "missing_value", "_Unsigned")
# What the report says about values that are written.
_STORED: Final = "the values are stored"
# The codecs that are known to keep all values, and can encode. Others belong to images, and lose some or cannot encode.
_CORE: Final = ("bytes", "transpose", "gzip", "zstd", "blosc", "crc32c", "vlen-utf8", "vlen-bytes", "sharding_indexed")
_NUMCODECS: Final = ("zlib", "gzip", "bz2", "lzma", "lz4", "zstd", "blosc", "shuffle", "fletcher32", "crc32", "adler32")
_IMAGECODECS: Final = ("lz4h5", "szip", "lzw", "packbits", "delta", "floatpred", "png")
_KEEPING: Final = frozenset(
    [
        *_CORE,
        *(f"numcodecs.{name}" for name in _NUMCODECS),
        *(f"imagecodecs_{name}" for name in _IMAGECODECS),
        *("n5_default", "parts_store.n5_lz4", "packbits"),
    ]
)
# xarray makes texts of characters when it opens a stored array, so that it cannot append them.
_CHARACTER: Final = np.dtype("S1")


@dataclass(frozen=True, slots=True, eq=False)
class NewValues:
    """Loaded variables that become new arrays of a group."""

    store: PartsStore
    path: str
    dataset: xr.Dataset

    @classmethod
    def checked(cls, store: PartsStore, path: str, loaded: xr.Dataset, attributes: Mapping[str, Any]) -> "NewValues":
        """Return loaded variables of a group with these attributes; raise if xarray cannot write them."""
        if loaded.variables:
            with _named(path):
                if any(variable.chunks for variable in loaded.variables.values()):
                    loaded.to_zarr(MemoryStore(), zarr_format=3, consolidated=False, compute=False)
                else:
                    # xarray imports dask to compute nothing.
                    loaded.to_zarr(MemoryStore(), zarr_format=3, consolidated=False)
        # xarray replaces the attributes of the group.
        return cls(store, path, loaded.assign_attrs(attributes))

    @property
    def reports(self) -> list[AdoptedArray]:
        """The report of each variable."""
        variables = self.dataset.variables
        return [_report(join(self.path, str(name)), variables[name], _STORED) for name in variables]

    def write(self) -> None:
        """Write the variables."""
        if self.dataset.variables:
            with _named(self.path):
                self.dataset.to_zarr(self.store, group=self.path, mode="a", zarr_format=3, consolidated=False)
            _record_types(self.store, self.path, self.dataset)


@dataclass(frozen=True, slots=True, eq=False)
class ChangedValues:
    """Numbers for a part of a stored array, which may become longer, as it stores them."""

    store: PartsStore
    path: str
    variable: xr.Variable
    shape: tuple[int, ...]
    place: tuple[slice, ...]
    reports: tuple[AdoptedArray, ...]

    def write(self) -> None:
        """Write the numbers."""
        array = zarr.open_array(self.store, path=self.path, mode="r+", zarr_format=3)
        if array.shape != self.shape:
            array.resize(self.shape)
        array[self.place] = np.asarray(self.variable.values)


def plan_values(
    store: PartsStore,
    path: str,
    loaded: xr.Dataset,
    *,
    append_dim: str | None = None,
    region: Mapping[str, slice] | None = None,
) -> tuple[list[ChangedValues], list[AdoptedArray]]:
    """Return how loaded variables change stored arrays, and the reports of variables that are stored already.

    Raises if variables do not fit, or are not those that are stored. A region is not written to coordinates, which are
    compared.
    """
    if not loaded.variables:
        return [], []
    with _named(path):
        stored = _open(store, path, decode_cf=False)
        decoded = xr.decode_cf(stored, decode_coords=False)
        numbers = _not_decoded(loaded if append_dim is not None else loaded.drop_vars(list(loaded.indexes)))
        # Numbers with units of time become times, as those that are read from the session.
        loaded = xr.decode_cf(loaded, decode_coords=False)
    for name, variable in loaded.variables.items():
        if name not in stored.variables:
            raise ManifestError(f"array {join(path, str(name))!r}", "an array that is stored", "none")
        require_same_meaning(join(path, str(name)), decoded.variables[name].attrs, variable.attrs)
        _require_same_packing(join(path, str(name)), decoded.variables[name].encoding, variable.encoding)
    if append_dim in loaded.variables and append_dim in loaded.variables[append_dim].dims:
        _require_order(join(path, str(append_dim)), decoded.variables[append_dim], loaded.variables[append_dim])
    free = {append_dim} if append_dim is not None else set(region or {})
    coordinates = set() if append_dim is not None else set(loaded.indexes)
    changed: list[ChangedValues] = []
    unchanged: list[AdoptedArray] = []
    # Those that are written as they are come last.
    for name in sorted(loaded.variables, key=lambda each: each in numbers):
        where, variable = join(path, str(name)), loaded.variables[name]
        old, old_decoded, given = stored.variables[name], decoded.variables[name], numbers.get(name)
        if given is not None:
            _require_same_type(where, old, given)
        if name not in coordinates and free & set(variable.dims):
            _require_no_parts(store, where)
            report = _report(where, variable if given is None else given, _STORED)
            with _named(path):
                new = _encoded(where, variable, old_decoded, old) if given is None else given
            place, shape = _place_of(where, new, old, append_dim, region or {})
            _require_keeping_codecs(store, where)
            changed.append(ChangedValues(store, where, new, shape, place, (report,)))
            continue
        if given is None:
            part = {dim: each for dim, each in (region or {}).items() if dim in variable.dims}
            _require_equal(where, old_decoded.isel(part), variable)
        elif given.sizes != old.sizes or first_difference(old.values, given.values) is not None:
            raise ManifestError(f"array {where!r}", "the values that are stored", "others")
        unchanged.append(_report(where, variable, "not changed"))
    return changed, unchanged


def _place_of(
    path: str, given: xr.Variable, stored: xr.Variable, append_dim: str | None, region: Mapping[str, slice]
) -> tuple[tuple[slice, ...], tuple[int, ...]]:
    """Return where values are written, and the shape of the array after it; raise unless they have that shape."""
    if given.dims != stored.dims:
        raise ManifestError(f"array {path!r}", f"the dimensions {stored.dims}", str(given.dims))
    place, shape = [], []
    for dim, length in zip(stored.dims, stored.shape, strict=True):
        start, stop, _ = region.get(str(dim), slice(None)).indices(length)
        if dim == append_dim:
            start, stop = length, length + given.sizes[dim]
        place.append(slice(start, stop))
        shape.append(max(length, stop))
    lengths = {dim: part.stop - part.start for dim, part in zip(stored.dims, place, strict=True)}
    if lengths != dict(given.sizes):
        raise ManifestError(f"array {path!r}", f"the shape {lengths}", str(dict(given.sizes)))
    return tuple(place), tuple(shape)


def _encoded(path: str, given: xr.Variable, decoded: xr.Variable, stored: xr.Variable) -> xr.Variable:
    """Return values as a stored array stores them; raise `ManifestError` if other values would be read.

    `decoded` and `stored` are the array with decoded values, and as it is.
    """
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        # For times that cannot be written in the stored units, xarray warns and returns others.
        warnings.simplefilter("ignore")
        encoded = encode_cf_variable(xr.Variable(given.dims, given.values, {}, decoded.encoding), name=path)
        # Bounds have the units of their times.
        units = {key: decoded.encoding[key] for key in ("units", "calendar") if key in decoded.encoding}
        numbers = np.asarray(encoded.values).astype(stored.dtype)
        new = xr.Variable(given.dims, numbers, {**units, **stored.attrs})
        read = decode_cf_variable(path, new)
    if not _is_kept(given, read, abs(float(decoded.encoding.get("scale_factor", 0)))):
        expected = f"values that can be stored as those of the array, with {_encoding_of(decoded)}"
        raise ManifestError(f"array {path!r}", expected, "others")
    return new


def _not_decoded(dataset: xr.Dataset) -> dict[Hashable, xr.Variable]:
    """Return the variables of packed or masked values, as their attributes say, or of characters; but no times."""
    return {
        name: each
        for name, each in dataset.variables.items()
        if each.dtype == _CHARACTER
        or (any(key in each.attrs for key in _PACKING) and " since " not in str(each.attrs.get("units", "")))
    }


def _require_same_type(path: str, stored: xr.Variable, given: xr.Variable) -> None:
    """Raise unless numbers that were not decoded have the meaning and the data type of those that are stored."""
    require_same_meaning(path, stored.attrs, given.attrs)
    if given.dtype.newbyteorder("=") != stored.dtype.newbyteorder("="):
        raise ManifestError(f"array {path!r}", f"the data type {stored.dtype}", str(given.dtype))


def detect_region(
    store: PartsStore, path: str, source: xr.Dataset, region: Mapping[str, slice | str] | str
) -> dict[str, slice]:
    """Return slices in place of `"auto"`: where the coordinates of the source are in those that are stored."""
    given = dict.fromkeys(map(str, source.indexes), "auto") if region == "auto" else region
    if not isinstance(given, Mapping) or not given:
        raise StoreConfigError("region", "slices by the names of dimensions, or 'auto'", repr(region))
    found: dict[str, slice] = {}
    for dim, each in given.items():
        if isinstance(each, slice):
            if each.step not in (None, 1):
                raise StoreConfigError(f"region, {dim!r}", "a slice with the step 1", repr(each))
            found[dim] = each
        elif each == "auto" and dim in source.indexes:
            found[dim] = _find_slice(store, path, source, dim)
        else:
            raise StoreConfigError(f"region, {dim!r}", "a slice, or 'auto' for a loaded coordinate", repr(each))
    return found


def _find_slice(store: PartsStore, path: str, source: xr.Dataset, dim: str) -> slice:
    stored = _open(store, path).indexes.get(dim)
    numbers = [] if stored is None else stored.get_indexer(source.indexes[dim]).tolist()
    if not numbers or numbers[0] < 0 or numbers != list(range(numbers[0], numbers[0] + len(numbers))):
        expected = "values that are stored, one after the other"
        raise ManifestError(f"coordinate {join(path, dim)!r}", expected, "others")
    return slice(numbers[0], numbers[-1] + 1)


def _report(path: str, variable: xr.Variable, plan: str) -> AdoptedArray:
    # Loaded values may have the byte order of the file; zarr stores them in its own.
    dtype = variable.dtype if variable.dtype.isnative else variable.dtype.newbyteorder("=")
    if plan != _STORED:
        return AdoptedArray(path, variable.shape, str(dtype), 0, 0, 0, 0, plan)
    nbytes = variable.nbytes
    return AdoptedArray(path, variable.shape, str(dtype), 0, 0, 0, nbytes, plan, form="values", nbytes_copied=nbytes)


def _open(store: Any, path: str, **options: Any) -> xr.Dataset:
    dataset: xr.Dataset = xr.open_zarr(
        store, group=path or None, consolidated=False, chunks=None, decode_coords=False, **options
    )
    return dataset


@contextmanager
def _named(path: str) -> Iterator[None]:
    """Raise `StoreConfigError` in place of errors of xarray, which refuses what it cannot encode."""
    try:
        with warnings.catch_warnings():
            # xarray will decode numbers with units such as "days" in another way. That does not matter here.
            warnings.simplefilter("ignore", FutureWarning)
            # It warns of a variable with two fill values, which is not decoded to be written.
            warnings.simplefilter("ignore", xr.SerializationWarning)
            yield
    except PartsStoreError:
        raise
    # xarray raises ValueError, TypeError, NotImplementedError and others.
    except Exception as error:
        expected, found = (
            "loaded variables that xarray can write to Zarr",
            f"{type(error).__name__}: {first_line(error)}",
        )
        raise_translated(StoreConfigError(f"group {path!r}", expected, found), error)


def _require_no_parts(store: PartsStore, path: str) -> None:
    if store.parts_of(path) is not None:
        expected = "a virtual variable, because the stored array is made of shards of files"
        found = "a loaded one; adopt all files again, together (`overwrite`)"
        raise ManifestError(f"array {path!r}", expected, found)


def _require_keeping_codecs(store: PartsStore, path: str) -> None:
    """Raise `ManifestError` if the codecs of an array may change values, also of chunks that are encoded again."""
    document = zarr.open_array(store, path=path, mode="r").metadata.to_dict()
    names = [codec["name"] for codec in cast("list[dict[str, Any]]", document["codecs"])]
    if unknown := [str(name) for name in names if name not in _KEEPING]:
        expected = "codecs that keep all values, to store other values than those of files"
        found = f"{', '.join(unknown)}; append files of whole chunks, or adopt all files again, together (`overwrite`)"
        raise ManifestError(f"array {path!r}", expected, found)


def _require_equal(path: str, stored: xr.Variable, given: xr.Variable) -> None:
    """Raise unless a variable that is not written is the one that is stored."""
    if stored.dims != given.dims or stored.shape != given.shape:
        expected = f"the shape {dict(stored.sizes)}, as it is stored"
        raise ManifestError(f"array {path!r}", expected, f"{dict(given.sizes)}")
    if not _is_kept(given, stored, abs(float(stored.encoding.get("scale_factor", 0)))):
        raise ManifestError(f"array {path!r}", "the values that are stored", "others")


def _require_same_packing(path: str, stored: Mapping[Any, Any], given: Mapping[Any, Any]) -> None:
    """Raise if values were decoded with other numbers than those they would be encoded with, which would round them."""
    for key in ("scale_factor", "add_offset"):
        if key in given and given[key] != stored.get(key):
            raise ManifestError(f"array {path!r}, attribute {key!r}", describe(stored.get(key)), describe(given[key]))


def _require_order(path: str, stored_variable: xr.Variable, given: xr.Variable) -> None:
    """Raise unless new coordinates continue the stored ones: in their order, and none of them twice."""
    stored, added = stored_variable.values, given.values
    if not stored.size or not added.size:
        return
    try:
        both = np.concatenate([stored, added])
        later, earlier = both[1:] > both[:-1], both[1:] < both[:-1]
    except TypeError as error:
        # Times of different calendars, or times and numbers.
        expected = f"the data type {kind_of(stored_variable)}, as it is stored"
        raise ManifestError(f"coordinate {path!r}", expected, kind_of(given)) from error
    known = len(stored) - 1
    for moves, where in ((later, "after"), (earlier, "before")):
        if moves[: max(known, 1)].all():
            wrong = np.flatnonzero(~moves)
            if wrong.size:
                expected = f"values {where} {both[wrong[0]]}, in the order of those that are stored"
                raise ManifestError(f"coordinate {path!r}", expected, str(both[wrong[0] + 1]))
            return
    if len(stored) == 1:
        raise ManifestError(f"coordinate {path!r}", f"other values than {stored[0]}", str(added[0]))
    known_values = set(stored.tolist())
    if (twice := next((value for value in added.tolist() if value in known_values), None)) is not None:
        raise ManifestError(f"coordinate {path!r}", "values that are not stored yet", str(twice))


def _is_kept(expected: xr.Variable, found: xr.Variable, scale: float) -> bool:
    """Return whether stored values are the given ones; numbers may be rounded by the scale they are stored with."""
    if expected.dtype.kind in "fc" and found.dtype.kind in "fc":
        values, others = np.asarray(expected.values), np.asarray(found.values)
        # One of them may be stored with less precision. A grid that is shifted a little is another grid.
        precision = 2 * max(float(np.finfo(each.dtype).eps) for each in (values, others))
        is_shape = values.shape == others.shape
        return is_shape and np.allclose(others, values, rtol=precision, atol=scale / 2, equal_nan=True)
    return bool(expected.equals(found))  # type: ignore[no-untyped-call]


def _encoding_of(array: xr.Variable) -> str:
    known = ("dtype", "units", "calendar", "scale_factor", "add_offset")
    return ", ".join(f"{key} {array.encoding[key]}" for key in known if key in array.encoding) or "its data type"


# --- types of attributes ----------------------------------------------------------------------------------------------


def _record_types(store: PartsStore, path: str, dataset: xr.Dataset) -> None:
    """Add the types of attributes to the documents of arrays that xarray has written: it writes JSON alone."""
    types = {join(join(path, str(name)), DOCUMENT): _types_of(each) for name, each in dataset.variables.items()}
    typed = {key: names for key, names in types.items() if names}
    documents = store.carry_out(get_all(list(typed), "the arrays that were written"))
    buffer = default_buffer_prototype().buffer
    for key, data in documents.items():
        if data is not None:
            document = {**json.loads(data), **to_member(typed[key])}
            sync(store.set(key, buffer.from_bytes(json.dumps(document).encode())))


def _types_of(variable: xr.Variable) -> dict[str, str]:
    """Return the types of the attributes that xarray writes for a variable, if JSON does not keep them."""
    encoded = {key: variable.encoding[key] for key in _PACKING if key in variable.encoding}
    values = {str(key): value for key, value in {**encoded, **variable.attrs}.items()}
    types = {key: type_name(value.dtype) for key, value in values.items() if isinstance(value, np.generic | np.ndarray)}
    return {key: name for key, name in types.items() if name is not None}
