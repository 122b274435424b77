"""Store the values of loaded variables in a session, with xarray: as new arrays, appended, or in a region.

Every write is first made in memory, so that xarray refuses it before anything is written to the session.
"""

import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr
import zarr
from numpy.typing import NDArray
from zarr.buffer import default_buffer_prototype
from zarr.storage import MemoryStore

from parts_store.adoption.join_checks import kind_of
from parts_store.adoption.report import AdoptedArray
from parts_store.adoption.stored_numbers import ChangedNumbers, not_decoded, plan_numbers
from parts_store.adoption.stored_types import record_types
from parts_store.engine.steps import get_all
from parts_store.errors import ManifestError, PartsStoreError, StoreConfigError, describe, raise_translated
from parts_store.format.keys import DOCUMENT, join
from parts_store.manifests.meaning import require_same_meaning
from parts_store.redaction import hide_secrets
from parts_store.store import PartsStore


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
                loaded.to_zarr(MemoryStore(), zarr_format=3, consolidated=False, compute=False)
        # xarray replaces the attributes of the group.
        return cls(store, path, loaded.assign_attrs(attributes))

    @property
    def reports(self) -> list[AdoptedArray]:
        """The report of each variable."""
        return _reports(self.path, self.dataset.variables, "the values are stored")

    def write(self) -> None:
        """Write the variables."""
        if self.dataset.variables:
            with _named(self.path):
                self.dataset.to_zarr(self.store, group=self.path, mode="a", zarr_format=3, consolidated=False)
            record_types(self.store, self.path, self.dataset)


@dataclass(frozen=True, slots=True, eq=False)
class ChangedValues:
    """Loaded variables that change stored arrays: appended along a dimension, or in a region."""

    store: PartsStore
    path: str
    # The variables that are written, and those that are stored already.
    dataset: xr.Dataset
    unchanged: xr.Dataset
    append_dim: str | None
    region: Mapping[str, slice] | None
    # Variables that are written as they are in the files.
    numbers: tuple[ChangedNumbers, ...] = ()

    @property
    def reports(self) -> list[AdoptedArray]:
        """The report of each variable."""
        return [
            *_reports(self.path, self.dataset.variables, "the values are stored"),
            *_reports("", {each.path: each.variable for each in self.numbers}, "the values are stored"),
            *_reports(self.path, self.unchanged.variables, "not changed"),
        ]

    def write(self) -> None:
        """Write the variables."""
        for each in self.numbers:
            each.write()
        if self.dataset.variables:
            with _named(self.path):
                self._write_to(self.store, self.path)

    def rehearse(self, stored: xr.Dataset) -> None:
        """Raise if xarray cannot write the variables, or if other values than these would be read."""
        if not self.dataset.variables:
            return
        names = [str(name) for name in self.dataset.variables]
        keys = {join(join(self.path, name), DOCUMENT): f"{name}/{DOCUMENT}" for name in names}
        keys[join(self.path, DOCUMENT)] = DOCUMENT
        documents = self.store.carry_out(get_all(list(keys), "the arrays that values are written to"))
        buffer = default_buffer_prototype().buffer
        memory = MemoryStore({keys[key]: buffer.from_bytes(_readable(data)) for key, data in documents.items() if data})
        with _named(self.path), warnings.catch_warnings():
            # For times that cannot be written in the stored units, xarray warns and writes others.
            warnings.simplefilter("ignore")
            self._write_to(memory, None)
            after = _open(memory, None)
        for name, variable in self.dataset.variables.items():
            part = after[name].variable.isel(self._place_of(variable, stored[name].variable))
            scale = after[name].encoding.get("scale_factor", 0)
            if not _is_kept(variable, part, abs(float(scale))):
                expected = f"values that can be stored as those of the array, with {_encoding_of(after[name])}"
                raise ManifestError(f"array {join(self.path, str(name))!r}", expected, "others")

    def _write_to(self, store: Any, group: str | None) -> None:
        dataset = self.dataset
        options: dict[str, Any] = {"zarr_format": 3, "consolidated": False, "group": group}
        if self.append_dim is not None:
            dataset.to_zarr(store, append_dim=self.append_dim, **options)
        else:
            dataset.drop_indexes(list(dataset.indexes)).to_zarr(store, region=dict(self.region or {}), **options)

    def _place_of(self, variable: xr.Variable, stored: xr.Variable) -> dict[Any, slice]:
        if self.append_dim is not None:
            return {self.append_dim: slice(stored.sizes[self.append_dim], None)}
        return {dim: each for dim, each in (self.region or {}).items() if dim in variable.dims}


def plan_values(
    store: PartsStore,
    path: str,
    loaded: xr.Dataset,
    *,
    append_dim: str | None = None,
    region: Mapping[str, slice] | None = None,
) -> ChangedValues:
    """Return how loaded variables change stored arrays; raise if they do not fit, or are not those that are stored."""
    if not loaded.variables:
        return ChangedValues(store, path, loaded, loaded, append_dim, region)
    with _named(path):
        stored = _open(store, path)
        # A region is not written to coordinates, which are compared.
        numbers = not_decoded(loaded if append_dim is not None else loaded.drop_vars(list(loaded.indexes)))
        undecoded = _open(store, path, mask_and_scale=False, concat_characters=False) if numbers else stored
        # Numbers with units of time become times, as those that are read from the session.
        loaded = xr.decode_cf(loaded, decode_coords=False)
    free = [append_dim] if append_dim is not None else list(region or {})
    changed = []
    for name, variable in loaded.variables.items():
        where = join(path, str(name))
        if name not in stored.variables:
            raise ManifestError(f"array {where!r}", "an array that is stored", "none")
        old = stored.variables[name]
        require_same_meaning(where, old.attrs, variable.attrs)
        _require_same_packing(where, old.encoding, variable.encoding)
        is_coordinate = append_dim is None and name in loaded.indexes
        if not is_coordinate and any(dim in variable.dims for dim in free):
            _require_no_parts(store, where)
            changed.append(name)
        elif name not in numbers:
            place = {dim: each for dim, each in (region or {}).items() if dim in variable.dims}
            _require_equal(where, old.isel(place), variable)
    if append_dim in changed:
        _require_order(join(path, str(append_dim)), stored.variables[append_dim], loaded.variables[append_dim])
    # xarray replaces the attributes of the group with those of the dataset.
    others = [name for name in loaded.variables if name not in changed]
    as_numbers = plan_numbers(store, path, numbers, undecoded, append_dim=append_dim, region=region)
    written = loaded.drop_vars([*others, *(name for name in changed if name in numbers)])
    written = written.assign_attrs(_attributes(store, path))
    planned = ChangedValues(store, path, written, loaded.drop_vars(changed), append_dim, region, as_numbers)
    planned.rehearse(stored)
    return planned


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


def _reports(path: str, variables: Mapping[Any, xr.Variable], plan: str) -> list[AdoptedArray]:
    """Return the reports of loaded variables."""
    return [
        AdoptedArray(join(path, str(name)), each.shape, str(each.dtype), 0, 0, 0, each.nbytes, plan)
        for name, each in variables.items()
    ]


def _attributes(store: PartsStore, path: str) -> dict[str, Any]:
    return dict(zarr.open_group(store, path=path, mode="r", zarr_format=3).attrs)


def _open(store: Any, path: str | None, **options: Any) -> xr.Dataset:
    dataset: xr.Dataset = xr.open_zarr(
        store, group=path or None, consolidated=False, chunks=None, decode_coords=False, **options
    )
    return dataset


def _readable(document: bytes) -> bytes:
    """Return the document of an array without chunks in which xarray can decode the values.

    It decodes the first one and the last one to append times. NaN is no time in calendars such as `noleap`.
    """
    parsed = json.loads(document)
    return json.dumps({**parsed, "fill_value": 0.0}).encode() if parsed.get("fill_value") == "NaN" else document


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
        said = hide_secrets(str(error).strip().partition("\n")[0])[:300]
        expected = "loaded variables that xarray can write to Zarr"
        raise_translated(StoreConfigError(f"group {path!r}", expected, f"{type(error).__name__}: {said}"), error)


def _require_no_parts(store: PartsStore, path: str) -> None:
    if store.parts_of(path) is not None:
        expected = "a virtual variable, because the stored array is made of shards of files"
        raise ManifestError(f"array {path!r}", expected, "a loaded one")


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
    if (twice := _in_both(stored, added)) is not None:
        raise ManifestError(f"coordinate {path!r}", "values that are not stored yet", str(twice))


def _in_both(stored: NDArray[Any], added: NDArray[Any]) -> Any:
    known = set(stored.tolist())
    return next((each for each in added.tolist() if each in known), None)


def _is_kept(expected: xr.Variable, found: xr.Variable, scale: float) -> bool:
    """Return whether stored values are the given ones; numbers may be rounded by the scale they are stored with."""
    if expected.dtype.kind in "fc" and found.dtype.kind in "fc":
        values, others = np.asarray(expected.values), np.asarray(found.values)
        # One of them may be stored with less precision. A grid that is shifted a little is another grid.
        precision = 2 * max(float(np.finfo(each.dtype).eps) for each in (values, others))
        is_shape = values.shape == others.shape
        return is_shape and np.allclose(others, values, rtol=precision, atol=scale / 2, equal_nan=True)
    return bool(expected.equals(found))  # type: ignore[no-untyped-call]


def _encoding_of(array: xr.DataArray) -> str:
    known: Sequence[str] = ("dtype", "units", "calendar", "scale_factor", "add_offset")
    return ", ".join(f"{key} {array.encoding[key]}" for key in known if key in array.encoding) or "its data type"
