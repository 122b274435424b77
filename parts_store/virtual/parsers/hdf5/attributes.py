"""Convert the attributes of HDF5 and netCDF4 files to JSON, and find the objects that references point to."""

import contextlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import h5py
import numpy as np
from numpy.typing import NDArray

from parts_store._compat.xarray import FillValueCoder
from parts_store.errors import PartsStoreError
from parts_store.virtual.attribute_types import type_name
from parts_store.virtual.description import CannotBeReadError, Description

type Address = tuple[int, ...]
"""Where an object is in its file. All names of an object have the same address."""

# The types of objects. Links have other ones.
_OBJECTS = (h5py.h5g.GROUP, h5py.h5g.DATASET, h5py.h5g.TYPE)
# What h5py raises for damaged objects, and for those that do not exist.
_ERRORS = (OSError, RuntimeError, KeyError, TypeError, ValueError)


def address_of(identifier: Any) -> Address:
    """Return the address of an open object."""
    # `h5o.get_info` also adds up the sizes of all members of a group.
    return tuple(h5py.h5g.get_objinfo(identifier).objno)


@dataclass(slots=True)
class ObjectPaths:
    """The paths of all objects of a file, which are listed when the first of them is looked up.

    The HDF5 library would search the whole file for the name of each object that a reference points to.
    """

    file: h5py.File
    _by_address: dict[Address, str] = field(default_factory=dict)

    def path_of(self, reference: Any) -> str:
        """Return the path of the object that a reference points to, an empty text if it points to none."""
        if not reference:
            return ""
        try:
            address = address_of(h5py.h5r.dereference(reference, self.file.id))
        except _ERRORS:
            raise CannotBeReadError("a reference to an object that is not in the file") from None
        if (path := self.path_at(address)) is None:
            raise CannotBeReadError("a reference to an object without a name")
        return path

    def path_at(self, address: Address) -> str | None:
        """Return the path of the object at an address; None if no group has it as a member."""
        if not self._by_address:
            self._list()
        return self._by_address.get(address)

    def _list(self) -> None:
        left: list[tuple[Address, bytes, bool]] = [(address_of(self.file.id), b"/", True)]
        while left:
            address, path, is_group = left.pop()
            if address not in self._by_address:
                self._by_address[address] = path.decode(errors="surrogateescape")
                if is_group:
                    # The first member is the next one.
                    left += reversed(list(self._members(path)))

    def _members(self, path: bytes) -> Iterator[tuple[Address, bytes, bool]]:
        """Yield the addresses and paths of the members of a group, and which of them are groups."""
        with contextlib.suppress(*_ERRORS):
            group = h5py.h5g.open(self.file.id, path)
            for name in group:
                with contextlib.suppress(*_ERRORS):
                    found = h5py.h5g.get_objinfo(group, name, follow_link=False)
                    if found.type in _OBJECTS:
                        yield tuple(found.objno), path.rstrip(b"/") + b"/" + name, found.type == h5py.h5g.GROUP


# Attributes that HDF5 and netCDF4 use internally; the last two only those of dimension scales.
_INTERNAL: Final = {
    *("DIMENSION_LIST", "REFERENCE_LIST"),
    *("_Netcdf4Dimid", "_Netcdf4Coordinates", "_nc3_strict", "_NCProperties", "_NCCOMPRESS"),
}
_FILL_VALUE: Final = "_FillValue"
_MISSING_VALUE: Final = "missing_value"
_MISSING: Final = (_FILL_VALUE, _MISSING_VALUE)
_SCALE: Final = "scale_factor"
_OFFSET: Final = "add_offset"
_OF_SCALES: Final = {"CLASS", "NAME"}
FLAGS: Final = ("flag_values", "flag_meanings")
"""The attributes of the CF conventions for the values of an enumeration, and for their names."""
_WITH_ENGINE: Final = 'with engine="parts_store"'
# The largest number of elements of an attribute: JSON is much larger than the values.
_MOST_ELEMENTS: Final = 1 << 16
# Messages of h5py: what failed, and in parentheses why; and that NumPy has no such type.
_OF_HDF5: Final = re.compile(r"[A-Z].+ \(.+\)", re.DOTALL)
_NO_TYPE: Final = re.compile(r"No NumPy equivalent for Type(\w+)ID exists")


class JsonAttributes(NamedTuple):
    """The attributes of a group or a dataset as JSON, and the types that JSON does not keep."""

    values: dict[str, Any]
    types: dict[str, str]


class StoredAttributes:
    """The attributes of a group or a dataset as h5py reads them, each at most once, because that takes long."""

    def __init__(self, owner: h5py.Group | h5py.Dataset) -> None:
        self.owner = owner
        self._attributes = owner.attrs
        # h5py returns bytes for a name that is not UTF-8.
        self.names: tuple[str | bytes, ...] = tuple(self._attributes)
        self._values: dict[str | bytes, Any] = {}

    def get(self, name: str | bytes) -> Any:
        """Return the value of an attribute; None if there is none."""
        if name not in self._values:
            self._values[name] = self._attributes[name] if name in self.names else None
        return self._values[name]

    @property
    def is_scale(self) -> bool:
        """Whether a dataset is a dimension scale: the coordinate of a dimension, or its name and length."""
        return isinstance(self.owner, h5py.Dataset) and text(self.get("CLASS")) == "DIMENSION_SCALE"


def attributes_of(stored: StoredAttributes, description: Description, name: str, paths: ObjectPaths) -> JsonAttributes:
    """Return the attributes; add those that JSON cannot represent to the skipped ones."""
    found: dict[str, Any] = {}
    types: dict[str, str] = {}
    owner = stored.owner
    internal = _INTERNAL | _OF_SCALES if stored.is_scale else _INTERNAL
    for stored_key in stored.names:
        if stored_key in internal:
            continue
        key = decoded(stored_key)
        try:
            require_utf8(key)
            value = stored.get(stored_key)
            if key in _MISSING and isinstance(value, bytes) and len(value) <= 1 and _has_texts(owner):
                reason = f"bytes, and JSON has none: xarray masks the same values only {_WITH_ENGINE}"
                description.skip(shown(f"{name}@{key}"), reason, has_values=False)
            if key == _FILL_VALUE and isinstance(owner, h5py.Dataset):
                filled = _fill_attribute(value, stored, paths)
                found |= filled
                # The fill value of texts has another name.
                types |= dict.fromkeys(filled, _type_of(key, value, owner) or "")
            elif (text := _replaced(value)) is not None:
                found[key] = _plain(text, paths)
                reason = "a text that is not UTF-8: U+FFFD stands for each wrong byte, as netCDF4 reads it"
                description.skip(shown(f"{name}@{key}"), reason)
            else:
                found[key] = _plain(value, paths)
                types[key] = _type_of(key, value, owner) or ""
        # h5py raises any error for a damaged file. The other attributes may be intact.
        except Exception as error:
            description.skip(shown(f"{name}@{key}"), reason_of(error))
    if isinstance(owner, h5py.Dataset) and owner.dtype.kind in "iuf" and _is_decoded_by_type(owner.dtype, stored):
        kind = np.asarray(stored.get(_SCALE)).dtype.name
        reason = f"a number of the type {kind}, and JSON has none: xarray decodes as {kind} only {_WITH_ENGINE}"
        description.skip(shown(f"{name}@{_SCALE}"), reason, has_values=False)
    return JsonAttributes(found, {key: kind for key, kind in types.items() if kind})


def flags_of(dataset: h5py.Dataset, attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the names of an enumeration as attributes of the CF conventions, unless the dataset has them itself.

    CF separates names by blanks, so that a blank in a name becomes an underscore.
    """
    members = h5py.check_enum_dtype(dataset.dtype)
    if not members or len(members) > _MOST_ELEMENTS or any(key in attributes for key in FLAGS):
        return {}
    ordered = sorted(members.items(), key=lambda each: int(each[1]))
    meanings = " ".join("_".join(decoded(name).split()) or "_" for name, _ in ordered)
    return dict(zip(FLAGS, ([int(value) for _, value in ordered], shown(meanings)), strict=True))


def _has_texts(owner: h5py.Group | h5py.Dataset) -> bool:
    return isinstance(owner, h5py.Dataset) and h5py.check_string_dtype(owner.dtype) is not None


def _is_decoded_by_type(dtype: np.dtype[Any], stored: StoredAttributes) -> bool:
    """Return whether xarray decodes packed values of a file by a type of `scale_factor` that JSON does not keep."""
    scale, offset = (getattr(stored.get(each), "dtype", None) for each in (_SCALE, _OFFSET))
    if scale is None or scale.kind not in "iuf" or type_name(scale) is None:
        return False
    is_int32 = dtype.kind in "iu" and dtype.itemsize == np.dtype("i4").itemsize
    return _OFFSET not in stored.names or (scale == offset == np.float32 and not is_int32)


def _type_of(key: str, value: Any, owner: h5py.Group | h5py.Dataset) -> str | None:
    """Return the type of an attribute if JSON does not keep it: of numbers, and of bytes that mean missing."""
    dtype = getattr(value, "dtype", None)
    is_byte = dtype == np.dtype("S1") and key in _MISSING and _has_texts(owner)
    return type_name(dtype) if dtype is not None and (dtype.kind in "iuf" or is_byte) else None


def reason_of(error: Exception) -> str:
    """Return the reason in the report for an error. Messages of Python itself say nothing about a file."""
    said = str(error.args[0]) if error.args else ""
    match error:
        case CannotBeReadError() | PartsStoreError():
            return str(error)
        case RecursionError():
            return "its groups are nested too deeply"
        case UnicodeError():
            return "a name or a text in it is not UTF-8"
        case TypeError() if (kind := _NO_TYPE.match(said)) is not None:
            return f"a type that NumPy has none for: {kind[1].lower()}"
        case OSError() | RuntimeError() | KeyError() | ValueError() if _OF_HDF5.fullmatch(said):
            return shown(f"the HDF5 library cannot read it: {said}")
    return f"it is damaged, or h5py cannot read it ({type(error).__name__})"


def shown(name: str) -> str:
    """Return a name that can be printed, even if it is not UTF-8 in the file."""
    return name.encode(errors="backslashreplace").decode()


def decoded(name: str | bytes) -> str:
    """Return a name as text. h5py returns bytes if it is not UTF-8."""
    return name if isinstance(name, str) else name.decode(errors="surrogateescape")


def require_utf8(value: str) -> str:
    """Return a text; raise if it is not UTF-8, which h5py returns with surrogate escapes."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise CannotBeReadError("a text that is not UTF-8") from None
    return value


def _replaced(value: Any) -> Any:
    """Return texts with a replacement for each byte that is not UTF-8; None if there are none."""
    match value:
        case bytes():
            text = value.decode(errors="replace")
            return text if text.encode() != value else None
        case str():
            return _replaced(value.encode(errors="surrogateescape"))
        case np.ndarray() if value.dtype.kind in "SO" and value.size <= _MOST_ELEMENTS:
            found = [_replaced(each) for each in value.ravel()]
            if any(each is not None for each in found):
                texts = [old if new is None else new for old, new in zip(value.ravel(), found, strict=True)]
                return np.array(texts, object).reshape(value.shape)
    return None


def _plain(value: Any, paths: ObjectPaths) -> Any:
    """Return a value as JSON with NaN and infinity; an array of one element becomes that element, as in netCDF."""
    match value:
        case bytes():
            return require_utf8(value.decode(errors="surrogateescape"))
        case str():
            return require_utf8(str(value))
        case bool() | int():
            return value
        case float():
            return float(value)
        case h5py.Empty():
            return "" if h5py.check_string_dtype(value.dtype) is not None else []
        case np.ndarray():
            return _plain_array(value, paths)
        case np.void() if value.dtype.names is not None:
            return {require_utf8(name): _plain(value[name], paths) for name in value.dtype.names}
        case np.generic() if value.dtype.kind in "biufSU" and value.dtype.char != "g":
            return _plain(value.item(), paths)
        case h5py.Reference() if not isinstance(value, h5py.RegionReference):
            return require_utf8(paths.path_of(value))
    raise CannotBeReadError(f"an attribute of a type that JSON has none for: {type(value).__name__}")


def _plain_array(values: NDArray[Any], paths: ObjectPaths) -> Any:
    if values.size > _MOST_ELEMENTS:
        raise CannotBeReadError(f"an attribute of {values.size:,} elements, and at most {_MOST_ELEMENTS:,} are read")
    return _plain(values.ravel()[0], paths) if values.size == 1 else [_plain(each, paths) for each in values]


def _fill_attribute(value: Any, stored: StoredAttributes, paths: ObjectPaths) -> dict[str, Any]:
    """Return `_FillValue` as xarray writes it: floating-point numbers as base64, because JSON has no NaN.

    xarray cannot open texts with this attribute. `missing_value` has the same meaning.
    """
    owner = stored.owner
    values = np.asarray(value).ravel()
    if isinstance(value, h5py.Empty) or not values.size:
        raise CannotBeReadError("an attribute without a value")
    number = values[0]
    number = number.item() if isinstance(number, np.generic) else number
    if _has_texts(owner):
        if _MISSING_VALUE in stored.names:
            raise CannotBeReadError(f"xarray cannot open texts with {_FILL_VALUE!r}, and there is a {_MISSING_VALUE!r}")
        return {_MISSING_VALUE: _plain(number, paths)}
    number = complex(number) if owner.dtype.kind == "c" else number
    try:
        return {_FILL_VALUE: FillValueCoder.encode(number, np.dtype(owner.dtype.str))}
    # The coder raises various errors for what is no number of the type of the values.
    except Exception as error:
        raise CannotBeReadError(f"a fill value that is not of the type of the values, {owner.dtype}") from error


def text(value: object) -> str:
    """Return an attribute that should be text, or an empty text if it is something else."""
    if isinstance(value, bytes | np.bytes_):
        with contextlib.suppress(UnicodeDecodeError):
            return value.decode()
    return value if isinstance(value, str) else ""
