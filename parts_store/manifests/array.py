"""PartsArray: an array whose chunks are lists of ranges of files, which numpy and xarray take for an array."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import DTypeLike, NDArray
from virtualizarr.manifests import ChunkManifest, ManifestArray

from parts_store._compat.zarr import ArrayV3Metadata
from parts_store.errors import ManifestError, StoreConfigError
from parts_store.format.parts import ConcatParts, PartsLike
from parts_store.manifests import json_format, loading
from parts_store.manifests.array_references import References, default_parts, parse_metadata, require_parts
from parts_store.manifests.checksums import Checksums, conflicting, parse_checksums
from parts_store.manifests.entries import Columns, key_of
from parts_store.manifests.fetching import (
    DEFAULT_COALESCED,
    DEFAULT_CONCURRENCY,
    DEFAULT_GAP,
    ReadSettings,
    Registries,
    parse_registry,
)
from parts_store.manifests.indexing import select
from parts_store.manifests.merged_chunks import join_chunks

if TYPE_CHECKING:
    from parts_store.manifests.reference_store import ReferenceStore


class PartsArray:
    """An array as references: where the parts of every chunk are. It does not change, and reads nothing by itself.

    Parameters
    ----------
    metadata
        The metadata of a Zarr v3 array, or its document.
    manifests
        A manifest of VirtualiZarr's for each part, in order, or a dictionary as these are made from. All are on the
        grid of the array's chunks (of its shards, if it is sharded).
    parts
        What the parts are called where the array is stored, and their sizes. If None, that of most bytes has no suffix,
        and the others are `.part0` and so on.
    checksums
        By the URLs of files, where they are known: the ETag, or a time after which the file must not have been
        modified. A file that was changed since is not read.

    Raises
    ------
    ManifestError
        If the metadata or a manifest is not one, or they are of different grids.
    PartsConfigError
        If a chunk has some of its parts and not others, or a part another size than declared.
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
        self._references = References.checked(parsed, manifests, parse_checksums(checksums))
        self._parts = declared if parts is None else ConcatParts.parse(parts)
        self._registries: Registries = ()
        require_parts(self._references, self._parts)

    @classmethod
    def of(cls, references: References, parts: ConcatParts | None, registries: Registries) -> "PartsArray":
        """The array of these references, bound to registries."""
        array = cls(references.metadata, references.manifests, parts=parts, checksums=references.checksums)
        array._registries = registries
        return array

    # --- what it is -----------------------------------------------------------------------------------------------

    @property
    def references(self) -> References:
        """The metadata and the manifests, together."""
        return self._references

    @property
    def metadata(self) -> ArrayV3Metadata:
        """The metadata of the array."""
        return self._references.metadata

    @property
    def manifests(self) -> tuple[ChunkManifest, ...]:
        """The manifest of each part."""
        return self._references.manifests

    @property
    def checksums(self) -> dict[str, str | datetime]:
        """The checksums of the files, by their URLs, where they are known: ETags, or times."""
        return {**self._references.checksums}

    @property
    def parts(self) -> ConcatParts:
        """The parts as they are called where the array is stored."""
        return default_parts(self._references) if self._parts is None else self._parts

    @property
    def declared_parts(self) -> ConcatParts | None:
        """The parts as they were given, None if they were not."""
        return self._parts

    @property
    def registries(self) -> Registries:
        """The registries that the array is bound to."""
        return self._registries

    @property
    def shape(self) -> tuple[int, ...]:
        """How long each axis is."""
        return self.metadata.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the values."""
        return self._references.dtype

    @property
    def ndim(self) -> int:
        """How many axes there are."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """How many values there are."""
        return int(np.prod(self.shape, dtype=object))

    @property
    def nbytes(self) -> int:
        """How many bytes the values take in memory."""
        return self.size * self.dtype.itemsize

    @property
    def nbytes_virtual(self) -> int:
        """How many bytes the references take in memory."""
        return sum(manifest.nbytes for manifest in self.manifests)

    @property
    def chunks(self) -> tuple[int, ...]:
        """The shape of a chunk; of one within a shard, if the array is sharded."""
        return self.metadata.chunks

    def dict(self) -> dict[str, list[dict[str, Any]]]:
        """Every chunk that there is, with a list of where its parts are: `path`, `offset`, `length`, or `data`."""
        by_part = [manifest.dict() for manifest in self.manifests]
        keys = [key_of(index) for index in np.argwhere(~self._references.is_missing()).tolist()]
        return {key: [dict(part[key]) for part in by_part if key in part] for key in keys}  # type: ignore[index]

    def __repr__(self) -> str:
        parts = len(self.manifests)
        return f"PartsArray<shape={self.shape}, dtype={self.dtype}, chunks={self.chunks}, parts={parts}>"

    def __copy__(self) -> "PartsArray":
        return self

    def __deepcopy__(self, memo: Any) -> "PartsArray":
        # It does not change, and the stores of a registry cannot always be copied.
        return self

    # --- comparison -----------------------------------------------------------------------------------------------

    def __eq__(self, other: object) -> NDArray[np.bool_]:  # type: ignore[override]
        """Where the values are the same because their references are: False says that they may be different."""
        if isinstance(other, int | float | complex | np.generic | np.ndarray):
            return np.full(self.shape, fill_value=False)
        if isinstance(other, ManifestArray):
            other = PartsArray.from_manifest_array(other)
        if not isinstance(other, PartsArray):
            raise TypeError(f"cannot compare a PartsArray with an object of type {type(other).__name__}")
        if self.shape != other.shape:
            raise ManifestError("comparison", f"an array of shape {self.shape}", f"{other.shape}")
        return self._where_same(other)

    # It compares by elements, as numpy's arrays do.
    __hash__ = None  # type: ignore[assignment]

    def __ne__(self, other: object) -> NDArray[np.bool_]:  # type: ignore[override]
        return ~(self == other)

    def _where_same(self, other: "PartsArray") -> NDArray[np.bool_]:
        mine, theirs = self._references, other.references
        if self.metadata.to_dict() != other.metadata.to_dict() or len(self.manifests) != len(other.manifests):
            return np.full(self.shape, fill_value=False)
        pairs = zip(mine.manifests, theirs.manifests, strict=True)
        same = np.full(mine.grid, fill_value=True)
        for one, another in pairs:
            # As an array also where there is no axis: VirtualiZarr writes into what it compares.
            same &= np.asarray(_elementwise(Columns.of(one), Columns.of(another)))
        for changed in conflicting(mine.checksums, theirs.checksums):
            for columns in mine.columns():
                same &= np.asarray(columns.paths != changed)
        for axis, chunk in enumerate(mine.chunk_shape):
            same = np.repeat(same, chunk, axis=axis)
        return same[tuple(slice(0, length) for length in self.shape)]

    def is_same(self, other: object) -> bool:
        """Whether another has the same metadata, parts, references and checksums."""
        return (
            isinstance(other, PartsArray)
            and self.metadata.to_dict() == other.metadata.to_dict()
            and self._parts == other.declared_parts
            and self.dict() == other.dict()
            and self.checksums == other.checksums
        )

    # --- other arrays ---------------------------------------------------------------------------------------------

    @classmethod
    def from_manifest_array(cls, array: ManifestArray) -> "PartsArray":
        """VirtualiZarr's array, as one whose chunks have one part."""
        if not isinstance(array, ManifestArray):
            raise ManifestError("array", "a ManifestArray", f"an object of type {type(array).__name__}")
        return PartsArray(array.metadata, [array.manifest])

    def to_manifest_array(self) -> ManifestArray:
        """The same array as VirtualiZarr's, if its chunks have one part; it has no checksums of files."""
        if len(self.manifests) != 1:
            raise ManifestError("to_manifest_array", "chunks in one part", f"{len(self.manifests)} parts")
        return ManifestArray(metadata=self.metadata, chunkmanifest=self.manifests[0])

    def __getitem__(self, key: Any, /) -> "PartsArray":
        """The chunks that an index selects: integers, slices, an ellipsis, new axes.

        A slice begins and ends at boundaries of chunks, an integer needs chunks of length 1.
        """
        selected = select(self._references, key)
        return PartsArray.of(selected.references, None if selected.is_within_chunks else self._parts, self._registries)

    def join_chunks(self, count: int, *, axis: int = 0) -> "PartsArray":
        """The same array in chunks that are made of `count` neighbours: of as many times the parts.

        The array is uncompressed, with the codec `bytes` alone, and its chunks have the length 1 on the axes before.
        Where the last chunk has fewer neighbours, fill values that nobody sees take their place. A missing chunk is
        refused, unless all of its neighbours are missing too.
        """
        references = self._references
        if self._parts is not None and any(size == 0 for size in self._parts.sizes):
            with_bytes = [each for each, size in zip(self.manifests, self._parts.sizes, strict=True) if size != 0]
            references = References(self.metadata, tuple(with_bytes or self.manifests[:1]), self.checksums)
        return PartsArray.of(join_chunks(references, count, axis), None, self._registries)

    def join(self, axis: int = 0) -> "PartsArray":
        """The same array with all chunks along an axis in one."""
        grid = self._references.grid
        return self.join_chunks(max(1, grid[axis]) if -len(grid) <= axis < len(grid) else 1, axis=axis)

    def astype(self, dtype: DTypeLike, /, *, copy: bool = True) -> "PartsArray":  # noqa: ARG002
        """The array itself, if it is of this type: xarray asks for that."""
        if np.dtype(dtype) != self.dtype:
            raise ManifestError("astype", f"the type {self.dtype}; load the values for another", str(np.dtype(dtype)))
        return self

    # --- values ---------------------------------------------------------------------------------------------------

    def with_registry(self, registry: Any) -> "PartsArray":
        """The same array, bound to a registry: `np.asarray` reads files in its stores, and in no others.

        The registry is obspec_utils' `ObjectStoreRegistry`, or stores by their URLs.
        """
        return PartsArray.of(self._references, self._parts, (parse_registry(registry),))

    def load(
        self,
        registry: Any = None,
        *,
        coalesce_gap: int = DEFAULT_GAP,
        coalesced_nbytes: int = DEFAULT_COALESCED,
        concurrency: int = DEFAULT_CONCURRENCY,
    ) -> NDArray[Any]:
        """The values, with all files read at once.

        Parameters
        ----------
        registry
            The stores that may be read; those that the array is bound to if None.
        coalesce_gap
            Two ranges of a file, of any chunks, are one request if at most so many bytes lie between them.
        coalesced_nbytes
            How many bytes such a request may have.
        concurrency
            How many requests are made at once.

        Raises
        ------
        LocationError
            If a file is in no registered store, cannot be read, is shorter than a reference says, or was changed since
            its checksum was taken.
        """
        settings = ReadSettings(coalesce_gap, coalesced_nbytes, concurrency)
        return loading.load(self._references, self.registries_for(registry), settings)

    def registries_for(self, registry: Any) -> Registries:
        """The registry that is given, or else those that the array is bound to."""
        if registry is not None:
            return (parse_registry(registry),)
        has_files = any(True for manifest in self.manifests for _ in manifest.iter_nonempty_paths())
        if not self._registries and has_files:
            expected = "a registry of the stores that may be read: `load(registry)`, or `with_registry(registry)`"
            raise StoreConfigError("registry", expected, "none")
        return self._registries

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False:
            raise ValueError("the values of a PartsArray are read anew: they cannot be had without a copy")
        values = self.load()
        return values if dtype is None else values.astype(dtype, copy=False)

    def to_numpy(self) -> NDArray[Any]:
        """The values: what xarray calls for its `values`."""
        return self.load()

    # --- numpy and xarray -----------------------------------------------------------------------------------------

    def __array_function__(
        self, function: Callable[..., Any], types: Iterable[type], args: Any, kwargs: Mapping[str, Any]
    ) -> Any:
        from parts_store.manifests.numpy_functions import HANDLERS  # noqa: PLC0415 (they make arrays)

        handler = HANDLERS.get(function)
        if handler is None or not all(issubclass(each, PartsArray | ManifestArray | np.ndarray) for each in types):
            return NotImplemented
        return handler(*args, **kwargs)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        # xarray asks where values are missing before it compares.
        if ufunc is np.isnan and method == "__call__":
            return np.full(self.shape, fill_value=False)
        if ufunc in (np.equal, np.not_equal) and method == "__call__" and len(inputs) == 2:
            other = inputs[1] if inputs[0] is self else inputs[0]
            return self == other if ufunc is np.equal else self != other
        return NotImplemented

    # --- where it goes --------------------------------------------------------------------------------------------

    def to_store(self, registry: Any = None, *, coalesce_gap: int = DEFAULT_GAP) -> "ReferenceStore":
        """A zarr store with this array at its root, which is read through the references."""
        from parts_store.manifests.reference_store import ReferenceStore  # noqa: PLC0415 (made of arrays)

        return ReferenceStore(self, self.registries_for(registry), settings=ReadSettings(coalesce_gap))

    def to_icechunk(self, session: Any, *, path: str = "", overwrite: bool = False) -> None:
        """Write the array to an Icechunk session, with its chunks as virtual references; nothing is committed.

        Locations outside of the repository's containers are refused before anything is written.
        """
        from parts_store.manifests.to_icechunk import write  # noqa: PLC0415 (made of arrays)

        write(self, session, path, overwrite=overwrite)

    def to_json(self) -> json_format.Json:
        """The array as JSON, from which `from_json` makes it again; bytes are in base64."""
        return json_format.with_version(json_format.array_to_json(self._references, self._parts))

    @classmethod
    def from_json(cls, data: Any) -> Self:
        """The array that `to_json` wrote: an object, or its text."""
        references, parts = json_format.plan_array(
            json_format.parse(data, "array"), "array", json_format.Budget()
        ).build()
        return cls(references.metadata, references.manifests, parts=parts, checksums=references.checksums)

    def to_kerchunk(self) -> json_format.Json:
        """The references as kerchunk writes them, of Zarr v3, if every chunk is one range of one file.

        They have no checksums of files.
        """
        return json_format.kerchunk(json_format.array_to_kerchunk(self._references, ""))


def _elementwise(one: Columns, other: Columns) -> NDArray[np.bool_]:
    same = (one.paths == other.paths) & (one.offsets == other.offsets) & (one.lengths == other.lengths)
    same = np.asarray(same).copy()
    for index in set(one.inlined) | set(other.inlined):
        if one.inlined.get(index) != other.inlined.get(index):
            same[index] = False
    return same
