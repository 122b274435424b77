"""PartsArray: an array whose chunks are lists of ranges of files, and which NumPy and xarray accept as an array."""

import asyncio
import dataclasses
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self, override

import numpy as np
import xarray as xr
from numpy.lib.mixins import NDArrayOperatorsMixin
from numpy.typing import DTypeLike, NDArray
from obspec_utils.registry import ObjectStoreRegistry
from virtualizarr.manifests import ChunkManifest, ManifestArray

from parts_store import notebook
from parts_store._compat.xarray import FillValueCoder, LoadableArray
from parts_store._compat.zarr import ArrayV3Metadata, is_converted_by_zarr
from parts_store.errors import ManifestError, StoreConfigError, describe
from parts_store.redaction import hide_in_url
from parts_store.text import size
from parts_store.virtual.manifests import operations, reading
from parts_store.virtual.manifests.entries import Checksums, key_of, parse_checksums
from parts_store.virtual.manifests.operations import join_chunks, refer_to_same_bytes, select
from parts_store.virtual.manifests.reading import (
    DEFAULT_COALESCED,
    DEFAULT_CONCURRENCY,
    DEFAULT_GAP,
    ReferenceReadSettings,
)
from parts_store.virtual.manifests.references import (
    References,
    chunk_lengths_of,
    default_parts,
    document_of,
    parse_metadata,
)
from parts_store.virtual.registries import Registries, parse_registry
from parts_store.virtual.store_access import ConcatParts, PartsLike

if TYPE_CHECKING:
    from parts_store.virtual.manifests.group import PartsGroup
    from parts_store.virtual.manifests.reference_store import ReferenceStore


# The functions by which xarray compares variables. They read the values.
_COMPARING: Final = frozenset(
    (np.equal, np.not_equal, np.less, np.less_equal, np.greater, np.greater_equal, np.isnan, np.isnat)
)


def distinct(registries: Iterable[ObjectStoreRegistry[Any]]) -> Registries:
    """Return registries without those that come again. Arrays of one file are bound to the same object."""
    return tuple({id(registry): registry for registry in registries}.values())


def _needs_values(function: str) -> TypeError:
    return TypeError(f"{function} needs the values of a PartsArray, which are not in memory: call `.load()` first")


# The kinds of data types whose values are all equal to themselves. NaN is not.
_EQUAL_TO_THEMSELVES: Final = "biuSTU"
# How many files a notebook shows.
_MAX_FILES: Final = 5


class ReferenceNode(ABC):
    """An array or a group of references: what both can be converted to."""

    @abstractmethod
    def nodes(self, path: str = "") -> "Iterator[tuple[str, PartsArray | PartsGroup]]":
        """Yield the node itself and every node below it, each with its path; groups come before their members.

        Parameters
        ----------
        path : str
            The path of the node itself.
        """

    @abstractmethod
    def document(self) -> dict[str, Any]:
        """Return the metadata document of the node as zarr writes it."""

    @abstractmethod
    def is_same(self, other: object) -> bool:
        """Return whether another node has the same metadata, members, parts, references and checksums.

        Parameters
        ----------
        other : object
            The node to compare with.
        """

    def to_store(self, registry: Any = None, *, coalesce_gap: int = DEFAULT_GAP) -> "ReferenceStore":
        """Return a read-only zarr store with this array or group at its root.

        Parameters
        ----------
        registry : ObjectStoreRegistry or mapping of str to store, optional
            The stores that may be read; by default those that the arrays are bound to.
        coalesce_gap : int
            Ranges of a file with at most this number of bytes between them are read in one request.
        """
        from parts_store.virtual.manifests.reference_store import ReferenceStore  # noqa: PLC0415 (imports this module)

        registry = None if registry is None else parse_registry(registry)
        arrays = [node for _, node in self.nodes() if isinstance(node, PartsArray)]
        registries = distinct(known for array in arrays for known in array.registries_for(registry))
        return ReferenceStore(self, registries, settings=ReferenceReadSettings(coalesce_gap))

    def to_icechunk(self, session: Any, *, path: str = "", overwrite: bool = False) -> None:
        """Write the array or the group to an Icechunk session, with virtual references as chunks. Nothing is committed.

        Parameters
        ----------
        session : icechunk.Session
            A writable session.
        path : str
            The path of the array or the group in the session.
        overwrite : bool
            Whether to delete what is at the path.

        Raises
        ------
        SessionError
            If a file is outside the virtual chunk containers of the repository. Nothing was written.
        StoreConfigError
            If the path is not free. Nothing was written.
        """
        from parts_store.virtual.manifests.to_icechunk import write  # noqa: PLC0415 (imports this module)

        write(self, session, path, overwrite=overwrite)

    def to_json(self) -> dict[str, Any]:
        """Return the array or the group as a JSON object, which `from_json` reads; bytes are in base64."""
        from parts_store.virtual.manifests import json_format  # noqa: PLC0415 (imports this module)

        return json_format.to_json(self)

    @classmethod
    def from_json(cls, data: Any) -> Self:
        """Return the array or the group that `to_json` wrote.

        Parameters
        ----------
        data : dict or str or bytes
            The JSON object, or its text.
        """
        from parts_store.virtual.manifests import json_format  # noqa: PLC0415 (imports this module)

        return json_format.from_json(data, cls)

    def to_kerchunk(self) -> dict[str, Any]:
        """Return the references as kerchunk writes them, for Zarr v3, without checksums.

        Raises `ManifestError` unless every chunk is one range of one file.
        """
        from parts_store.virtual.manifests import json_format  # noqa: PLC0415 (imports this module)

        return json_format.to_kerchunk(self)


class PartsArray(NDArrayOperatorsMixin, LoadableArray, ReferenceNode):
    """An immutable array of references, which say where the parts of every chunk are. Files are read only to load it.

    Parameters
    ----------
    metadata : ArrayV3Metadata or mapping
        The metadata of a Zarr v3 array, or its metadata document.
    manifests : sequence of ChunkManifest or mapping
        One manifest of VirtualiZarr for each part, in order, or a dictionary that can be converted to one. All
        manifests are on the grid of the array's chunks (of its shards, if the array is sharded).
    parts : ConcatParts or sequence of Part, optional
        The suffixes and sizes of the parts where the array is stored. By default the part with most bytes has no
        suffix, and the others have the suffixes `.part0` and so on.
    checksums : mapping of str to str or datetime, optional
        For URLs of files, the ETag, or a time after which the file must not have been modified. A file that was changed
        is not read.

    Raises
    ------
    ManifestError
        If the metadata or a manifest is not valid, or a manifest is on another grid.
    PartsConfigError
        If a chunk has some of its parts and lacks others, or a part does not have the size that is declared.

    Examples
    --------
    An array of two chunks, each of which is a range of the object `file` in the store `store`:

    >>> from obstore.store import MemoryStore
    >>> store = MemoryStore()
    >>> _ = store.put("file", b"header" + bytes(range(8)))
    >>> document = {
    ...     "shape": [8],
    ...     "data_type": "uint8",
    ...     "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4]}},
    ...     "chunk_key_encoding": {"name": "default"},
    ...     "codecs": [{"name": "bytes"}],
    ... }
    >>> manifest = {
    ...     "0": {"path": "s3://bucket/file", "offset": 6, "length": 4},
    ...     "1": {"path": "s3://bucket/file", "offset": 10, "length": 4},
    ... }
    >>> array = ps.manifests.PartsArray(document, [manifest])
    >>> array[4:].load({"s3://bucket": store})
    array([4, 5, 6, 7], dtype=uint8)

    Notes
    -----
    Comparisons read the values, as xarray needs it to compare variables. Arithmetic and other functions that need
    values raise `TypeError`: a result in memory, of an array of any size, is only made if the caller asks for it.

    The array has no attribute `chunks`: xarray takes every array with this attribute for one of dask or of another
    library with a chunk manager.
    """

    def __init__(
        self,
        metadata: ArrayV3Metadata | Mapping[str, Any],
        manifests: Sequence[ChunkManifest | Mapping[Any, Any]],
        *,
        parts: PartsLike | None = None,
        checksums: Checksums | None = None,
    ) -> None:
        parsed, declared = parse_metadata(metadata)
        known = declared if parts is None else ConcatParts.parse(parts)
        self.references: Final = References.parse(parsed, manifests, parse_checksums(checksums), known)
        # The registries that the array is bound to.
        self.registries: Final[Registries] = ()
        # The name of the array in messages: that in its group, or its path in a store; empty if it has none.
        self.name: Final = ""

    @classmethod
    def of(cls, references: References, registries: Registries, name: str = "") -> "PartsArray":
        """Return an array of references that is bound to registries.

        Parameters
        ----------
        references : References
            The metadata, the parts, and where the chunks are.
        registries : tuple of ObjectStoreRegistry
            The registries of the stores that may be read.
        name : str
            The name of the array in messages; empty if it has none.
        """
        # The references were checked when they were made.
        array = cls.__new__(cls)
        array.__dict__ |= {"references": references, "registries": registries, "name": name}
        return array

    def derive(self, references: References) -> "PartsArray":
        """Return an array of other references, with the registries and the name of this one.

        Parameters
        ----------
        references : References
            The metadata, the parts, and where the chunks are.
        """
        return PartsArray.of(references, self.registries, self.name)

    def with_name(self, name: str) -> "PartsArray":
        """Return the same array with a name, which messages mention.

        Parameters
        ----------
        name : str
            The name.
        """
        return self._clone(name=name)

    def _clone(self, **changes: Any) -> "PartsArray":
        """Return the same array, with some attributes changed that need no checks."""
        clone = PartsArray.__new__(PartsArray)
        clone.__dict__ |= {**self.__dict__, **changes}
        return clone

    # --- attributes -----------------------------------------------------------------------------------------------

    @property
    def metadata(self) -> ArrayV3Metadata:
        """The metadata of the array."""
        return self.references.metadata

    @property
    def manifests(self) -> tuple[ChunkManifest, ...]:
        """The manifest of each part."""
        return tuple(column.manifest() for column in self.references.columns)

    @property
    def checksums(self) -> dict[str, str | datetime]:
        """The known checksums of files, by their URLs: ETags, or times."""
        return {**self.references.checksums}

    @property
    def declared_parts(self) -> ConcatParts | None:
        """The parts that were declared; None if none were."""
        return self.references.parts

    @property
    def parts(self) -> ConcatParts:
        """The suffixes and sizes of the parts where the array is stored."""
        return default_parts(self.references) if self.declared_parts is None else self.declared_parts

    @property
    def nbytes_virtual(self) -> int:
        """The number of bytes of the references in memory."""
        return sum(manifest.nbytes for manifest in self.manifests)

    @property
    def chunk_shape(self) -> tuple[int, ...]:
        """The shape of a chunk; of a shard, if the array is sharded. Raises `ManifestError` if chunks have several."""
        return self.references.chunk_shape

    @override
    def nodes(self, path: str = "") -> "Iterator[tuple[str, PartsArray]]":
        yield path, self

    @override
    def document(self) -> "dict[str, Any]":
        return document_of(self.metadata)

    def dict(self) -> dict[str, list[dict[str, Any]]]:
        """Return, for every chunk that exists, a list with `path`, `offset`, `length`, or `data`, of its parts."""
        by_part = [manifest.dict() for manifest in self.manifests]
        keys = [key_of(index) for index in np.argwhere(~self.references.is_missing()).tolist()]
        return {key: [dict(part[key]) for part in by_part if key in part] for key in keys}  # type: ignore[index]

    @property
    @override
    def shape(self) -> tuple[int, ...]:
        """The length of each axis."""
        if is_converted_by_zarr():
            raise AttributeError("zarr converts an array without a shape to NumPy before it writes the array")
        return self.metadata.shape

    @property
    @override
    def dtype(self) -> np.dtype[Any]:
        """The data type of the values."""
        return self.references.dtype

    @property
    def nbytes(self) -> int:
        """The number of bytes of the values in memory."""
        return self.size * self.dtype.itemsize

    def __repr__(self) -> str:
        parts = len(self.references.columns)
        chunks = chunk_lengths_of(self.metadata)
        return f"PartsArray<shape={self.shape}, dtype={self.dtype}, chunk_shape={chunks}, parts={parts}>"

    def _repr_html_(self) -> str:
        missing = self.references.is_missing()
        files = [hide_in_url(location) for location in self.references.locations()]
        more = f", and {len(files) - _MAX_FILES:,} more" if len(files) > _MAX_FILES else ""
        rows = {
            "shape": self.shape,
            "data type": self.dtype,
            "shape of a chunk": chunk_lengths_of(self.metadata),
            "chunks": f"{missing.size - int(missing.sum()):,} of {missing.size:,}",
            "parts of a chunk": ", ".join(repr(part.key_suffix) for part in self.parts.parts),
            "files": ", ".join(files[:_MAX_FILES]) + more,
            "references in memory": size(self.nbytes_virtual),
        }
        return notebook.table("PartsArray", rows)

    def __copy__(self) -> "PartsArray":
        return self

    def __deepcopy__(self, memo: Any) -> "PartsArray":
        # The array is immutable, and not all stores in a registry can be copied.
        return self

    # --- comparison -----------------------------------------------------------------------------------------------

    def __eq__(self, other: object) -> NDArray[np.bool_]:  # type: ignore[override]
        """Return where values are equal, as for NumPy arrays.

        Values are read, except for arrays of references to the same bytes, if their data type has no NaN.
        """
        if isinstance(other, ManifestArray):
            other = PartsArray.from_manifest_array(other)
        if isinstance(other, PartsArray):
            return self._where_equal(other)
        is_text = isinstance(other, str | bytes) and self.dtype.kind in "OSTU"
        if not is_text and not isinstance(other, int | float | complex | np.generic | np.ndarray):
            raise TypeError(f"cannot compare a PartsArray with an object of type {type(other).__name__}")
        return np.asarray(self.load() == other)

    # Comparison is elementwise, as for NumPy arrays.
    __hash__ = None  # type: ignore[assignment]

    def __ne__(self, other: object) -> NDArray[np.bool_]:  # type: ignore[override]
        return ~(self == other)

    def _where_equal(self, other: "PartsArray") -> NDArray[np.bool_]:
        if self.shape != other.shape:
            raise ManifestError("comparison", f"an array of shape {self.shape}", f"{other.shape}")
        if not refer_to_same_bytes(self.references, other.references):
            return np.asarray(self.load() == other.load())
        if self.dtype.kind in _EQUAL_TO_THEMSELVES:
            return np.full(self.shape, fill_value=True)
        values = (self if self.registries else other).load()
        return np.asarray(values == values)  # noqa: PLR0124

    @override
    def is_same(self, other: object) -> bool:
        return (
            isinstance(other, PartsArray)
            and self.metadata.to_dict() == other.metadata.to_dict()
            and self.declared_parts == other.declared_parts
            and self.dict() == other.dict()
            and self.checksums == other.checksums
        )

    # --- derived arrays ---------------------------------------------------------------------------------------------

    @classmethod
    def from_manifest_array(cls, array: ManifestArray) -> "PartsArray":
        """Return a `ManifestArray` of VirtualiZarr as an array whose chunks have one part.

        Parameters
        ----------
        array : ManifestArray
            The array to convert. An array that was never written has no chunks, and reads as its fill value.
        """
        if not isinstance(array, ManifestArray):
            raise ManifestError("array", "a ManifestArray", f"an object of type {type(array).__name__}")
        return PartsArray(array.metadata, [array.manifest])

    def to_manifest_array(self) -> ManifestArray:
        """Return the array as a `ManifestArray` of VirtualiZarr, without checksums; its chunks must have one part."""
        if len(self.references.columns) != 1:
            raise ManifestError("to_manifest_array", "chunks in one part", f"{len(self.references.columns)} parts")
        return ManifestArray(metadata=self.metadata, chunkmanifest=self.manifests[0])

    @override
    def __getitem__(self, key: Any, /) -> "PartsArray":
        """Return the chunks that an index selects: integers, slices, an ellipsis and new axes.

        A slice begins and ends at boundaries of chunks. An integer needs chunks of length 1.
        """
        return self.derive(select(self.references, key))

    def join_chunks(self, count: int, *, axis: int = 0) -> "PartsArray":
        """Return the same array in larger chunks, each of which is made of neighbouring chunks.

        The array must be uncompressed, with the codec `bytes` only, and chunks of length 1 on the axes before `axis`.
        If the last chunk is made of fewer than `count` chunks, fill values beyond the shape replace the others.

        Parameters
        ----------
        count : int
            How many chunks become one. A larger chunk has `count` times as many parts.
        axis : int
            The axis along which chunks are joined.

        Raises
        ------
        ManifestError
            If the chunks cannot be joined, or some chunks of a larger one are missing and others are not.
        """
        # A part of size 0 has no pieces.
        columns = self.references.columns
        sizes = [None] * len(columns) if self.declared_parts is None else self.declared_parts.sizes
        with_bytes = [column for column, size in zip(columns, sizes, strict=True) if size != 0]
        references = dataclasses.replace(self.references, columns=tuple(with_bytes or columns[:1]))
        return self.derive(join_chunks(references, count, axis))

    def join(self, axis: int = 0) -> "PartsArray":
        """Return the same array with all chunks along an axis joined into one.

        Parameters
        ----------
        axis : int
            The axis along which chunks are joined.
        """
        grid = self.references.grid
        return self.join_chunks(max(1, grid[axis]) if -len(grid) <= axis < len(grid) else 1, axis=axis)

    # --- values ---------------------------------------------------------------------------------------------------

    def with_registry(self, registry: Any) -> "PartsArray":
        """Return the same array, bound to a registry: `np.asarray` reads files in its stores, and no other files.

        Parameters
        ----------
        registry : ObjectStoreRegistry or mapping of str to store
            A registry of obspec_utils, or stores by their URLs.
        """
        return self._clone(registries=(parse_registry(registry),))

    def load(
        self,
        registry: Any = None,
        *,
        coalesce_gap: int = DEFAULT_GAP,
        coalesced_nbytes: int = DEFAULT_COALESCED,
        concurrency: int = DEFAULT_CONCURRENCY,
    ) -> NDArray[Any]:
        """Return the values. All chunks are requested at the same time.

        Parameters
        ----------
        registry : ObjectStoreRegistry or mapping of str to store, optional
            The stores that may be read; by default those that the array is bound to.
        coalesce_gap : int
            Ranges of a file with at most this number of bytes between them are read in one request.
        coalesced_nbytes : int
            The largest number of bytes of such a request.
        concurrency : int
            The largest number of requests at the same time.

        Returns
        -------
        numpy.ndarray
            The values, decoded by zarr.

        Raises
        ------
        LocationError
            If no registered store covers a file, or the file cannot be read, is shorter than a reference says, or was
            changed since its checksum was recorded.
        """
        settings = ReferenceReadSettings(coalesce_gap, coalesced_nbytes, concurrency)
        registries = self.registries_for(registry)
        return reading.carry_out(reading.load_all([self.references], registries, settings))[0]

    @override
    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False:
            raise ValueError("cannot return the values of a PartsArray without a copy: they are read from files")
        values = self.load()
        return values if dtype is None else values.astype(dtype, copy=False)

    def to_numpy(self) -> NDArray[Any]:
        """Return the values. xarray calls this for its `to_numpy`."""
        return self.load()

    @override
    def get_duck_array(self) -> NDArray[Any]:
        """Return the values. xarray calls this for its `load`, `compute` and `to_zarr`."""
        return self.load()

    async def async_get_duck_array(self) -> NDArray[Any]:
        """Return the values. xarray calls this for its `load_async`."""
        return await asyncio.to_thread(self.load)

    def astype(self, dtype: DTypeLike, /, *, copy: bool = True) -> Self | NDArray[Any]:
        """Return the array itself, or, for another data type, the values, converted. xarray calls this.

        Parameters
        ----------
        dtype : data type
            The data type of the result. Text of no length stands for text of any length.
        copy : bool
            Whether to copy values that have the data type. The array itself is immutable, and is not copied.
        """
        wanted = np.dtype(dtype)
        is_any_length = wanted.kind in "SU" and wanted.itemsize == 0
        if wanted == self.dtype or (is_any_length and wanted.kind == self.dtype.kind):
            return self
        return self.load().astype(wanted, copy=copy)

    def transpose(self, *axes: Any) -> Self:
        """Return the array itself; raise `ManifestError` if the axes would change their order. xarray calls this.

        Parameters
        ----------
        axes : int or sequence of int
            The axes in the order of the result.
        """
        order = axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes
        if (list(order) if order else [*reversed(range(self.ndim))]) != [*range(self.ndim)]:
            raise ManifestError("transpose", "the axes in their order; load the values for any other", str(order))
        return self

    def registries_for(self, registry: Any) -> Registries:
        """Return the given registry, or the registries that the array is bound to.

        Parameters
        ----------
        registry : ObjectStoreRegistry or mapping of str to store or None
            The registry that the caller gives.
        """
        if registry is not None:
            return (parse_registry(registry),)
        if not self.registries and self.references.locations():
            expected = "a registry of the stores that may be read: `load(registry)`, or `with_registry(registry)`"
            raise StoreConfigError("registry", expected, "none")
        return self.registries

    # --- NumPy and xarray -------------------------------------------------------------------------------------------

    def __array_function__(
        self, function: Callable[..., Any], types: Iterable[type], args: Any, kwargs: Mapping[str, Any]
    ) -> Any:
        if not all(issubclass(kind, PartsArray | ManifestArray | np.ndarray) for kind in types):
            return NotImplemented
        handler = _HANDLERS.get(function)
        if handler is None:
            raise _needs_values(f"{function.__module__}.{function.__name__}")
        return handler(*args, **kwargs)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if ufunc not in _COMPARING or method != "__call__" or kwargs:
            raise _needs_values(f"numpy.{ufunc.__name__}")
        if ufunc in (np.equal, np.not_equal):
            other = inputs[1] if inputs[0] is self else inputs[0]
            return self == other if ufunc is np.equal else self != other
        return _of_values(ufunc, *inputs)

    def to_virtual_variable(self) -> xr.Variable:
        """Return a variable of xarray that wraps the array, with its dimension names and attributes. Nothing is read.

        Returns
        -------
        xarray.Variable
            The variable, as `xarray.open_zarr(..., decode_cf=False)` would return it.

        Raises
        ------
        ManifestError
            If an axis has no name.
        """
        names = self.metadata.dimension_names or ()
        if len(names) != self.ndim or None in names:
            raise ManifestError("dimension names", f"{self.ndim} names, one for each axis", str(names))
        attributes = dict(self.metadata.attributes)
        if "_FillValue" in attributes:
            attributes["_FillValue"] = _decoded_fill(attributes["_FillValue"], self.dtype)
        return xr.Variable(names, self, attributes)


def _decoded_fill(value: Any, dtype: np.dtype[Any]) -> Any:
    """Return `_FillValue` as xarray has it in memory; Zarr stores floating-point numbers and bytes as base64."""
    if not isinstance(value, str | list) or dtype.kind not in "fcS":
        return value
    try:
        return FillValueCoder.decode(value, dtype)
    except (TypeError, ValueError, struct.error) as error:
        expected = f"a value of the type {dtype} in base64"
        raise ManifestError("attribute '_FillValue'", expected, describe(value)) from error


def _arrays(arrays: Any, subject: str) -> list[PartsArray]:
    found = [PartsArray.from_manifest_array(each) if isinstance(each, ManifestArray) else each for each in arrays]
    for array in found:
        if not isinstance(array, PartsArray):
            raise ManifestError(subject, "arrays of references only", f"an object of type {type(array).__name__}")
    if not found:
        raise ManifestError(subject, "at least one array", "none")
    return found


def _combine(
    function: Callable[[Sequence[References], int, Sequence[str]], References],
    arrays: Any,
    axis: Any = 0,
    out: Any = None,
    **others: Any,
) -> PartsArray:
    """Return the combination of arrays, with the registries of all of them."""
    subject = function.__name__
    others.pop("casting", None)
    others |= {"out": out}
    if not isinstance(axis, int | np.integer) or any(value is not None for value in others.values()):
        raise ManifestError(subject, "an axis, and no other arguments", describe({"axis": axis, **others}))
    found = _arrays(arrays, subject)
    references = function([array.references for array in found], int(axis), [array.name for array in found])
    registries = distinct(registry for array in found for registry in array.registries)
    return PartsArray.of(references, registries, found[0].name)


def _expand_dims(a: PartsArray, axis: Any) -> PartsArray:
    axes = axis if isinstance(axis, tuple | list) else (axis,)
    return a.derive(operations.expand_dims(a.references, [int(place) for place in axes]))


def _broadcast_to(array: PartsArray, shape: Any, subok: bool = False) -> PartsArray:  # noqa: ARG001
    lengths = (shape,) if isinstance(shape, int | np.integer) else shape
    return array.derive(operations.broadcast_to(array.references, tuple(int(length) for length in lengths)))


def _result_type(*arrays_and_dtypes: Any) -> np.dtype[Any]:
    """Return the data type of a result, as NumPy does it; raise `ManifestError` if references had to be cast."""
    virtual = [value for value in arrays_and_dtypes if isinstance(value, PartsArray | ManifestArray)]
    for array in virtual:
        if array.dtype != virtual[0].dtype:
            expected = f"the data type {virtual[0].dtype}, because references cannot be cast"
            raise ManifestError("result_type", expected, str(array.dtype))
    return np.result_type(
        *(value.dtype if isinstance(value, PartsArray | ManifestArray) else value for value in arrays_and_dtypes)
    )


def _full_like(a: PartsArray, fill_value: Any, dtype: Any = None, **others: Any) -> NDArray[Any]:
    shape = a.shape if others.get("shape") is None else others["shape"]
    return np.full(shape, fill_value, a.dtype if dtype is None else dtype)


def _of_values(function: Callable[..., Any], *args: Any, **others: Any) -> Any:
    """Return what a function returns for the values."""
    return function(*(value.load() if isinstance(value, PartsArray) else value for value in args), **others)


_HANDLERS: dict[Any, Callable[..., Any]] = {
    np.concatenate: partial(_combine, operations.concatenate),
    np.stack: partial(_combine, operations.stack),
    np.expand_dims: _expand_dims,
    np.broadcast_to: _broadcast_to,
    np.result_type: _result_type,
    np.full_like: _full_like,
    # xarray calls this to merge variables, and for `fillna`.
    np.where: partial(_of_values, np.where),
    # xarray calls this to encode times.
    np.reshape: partial(_of_values, np.reshape),
    np.shape: lambda a: a.shape,
    np.ndim: lambda a: a.ndim,
    np.size: lambda a, axis=None: a.size if axis is None else a.shape[axis],
}
