"""Appends and regions that do not fit: refused by name, and nothing is written."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import parts_store as ps
from parts_store.errors import LocationError, ManifestError, PartsStoreError
from tests.virtual import raw_files
from tests.virtual.adopting import repository, stored


def source(
    folder: Path,
    *,
    days: int = 20,
    first: int = 0,
    dtype: str = "<i4",
    chunks: tuple[int, ...] = (1, 2),
    row: int = 8,
    dims: tuple[str, ...] = ("time", "x"),
    **attrs: Any,
) -> xr.Dataset:
    values = np.arange(days * row).reshape(days, row).astype(dtype)
    array = raw_files.write(folder, f"{first}-{dtype[1:]}-{days}-{row}-{chunks[0]}.raw", values, chunks)
    dataset = raw_files.dataset(array, first=first, dims=dims, **({"units": "K"} | attrs))
    return dataset.assign(place=("x", np.arange(row))) if dims[1] == "x" else dataset


# The arguments of `source` that differ, or a change of the days that would fit; other arguments of `to_icechunk` than
# `append_dim="time"`; and what the message says.
CASES: dict[str, tuple[dict[str, Any] | Callable[[xr.Dataset], xr.Dataset], dict[str, Any], str]] = {
    "dtype": ({"dtype": "<i8"}, {}, "array 'a/t': expected the data type int32, found int64"),
    "chunks": (
        {"chunks": (2, 2)},
        {},
        r"array 'a/t': expected the chunk shape \(1, 2\), found \(2, 2\); if it is small, load it",
    ),
    "row": ({"row": 10}, {}, "expected the (length 8 along the dimension 'x'|shape {'x': 8}, as it is stored), found"),
    "dimensions": (
        {"dims": ("time", "y")},
        {},
        r"array 'a/t': expected the dimensions \('time', 'x'\), found \('time', 'y'\)",
    ),
    "meaning": ({"units": "degC"}, {}, "array 'a/t', attribute 'units': expected 'K', found 'degC'"),
    "overlap": (
        {"first": 19},
        {},
        "coordinate 'a/time': expected values after 19, in the order of those that are stored, found 19",
    ),
    "order": ({"first": -20}, {}, "coordinate 'a/time': expected values after 19"),
    "unordered": (
        lambda days: days.assign_coords(time=[*range(20, 38), 39, 38]),
        {},
        "coordinate 'a/time': expected values after 39, .* found 38",
    ),
    "missing array": (
        lambda days: days.drop_vars("t").assign(u=("time", np.arange(20))),
        {},
        "array 'a/t': expected values along 'time', as for the others, found none",
    ),
    "new array": (
        lambda days: days.assign(u=("time", np.arange(20))),
        {},
        "array 'a/u': expected an array that is stored, found none",
    ),
    "other values": (
        lambda days: days.assign(place=("x", np.arange(8) + 1)),
        {},
        "array 'a/place': expected the values that are stored, found others",
    ),
    "loaded in place of references": (
        lambda days: days.assign(t=(("time", "x"), np.zeros((20, 8), "<i4"), {"units": "K"})),
        {},
        "array 'a/t': expected a virtual variable",
    ),
    "values that would be lost": (
        lambda days: days.assign_coords(time=np.arange(20) + 20.5),
        {},
        "Mismatched dtypes|values that can be stored as those of the array",
    ),
    "no such dimension": ({}, {"append_dim": "level"}, "append_dim: expected a dimension of the source, found 'level'"),
    "no group": ({}, {"append_dim": "time", "path": "b"}, "path: expected a group that is stored"),
    "both": ({}, {"append_dim": "time", "region": {"time": slice(0, 20)}}, "region: expected None"),
    "overwrite": ({}, {"append_dim": "time", "overwrite": True}, "overwrite: expected False"),
    "a region that is text": ({}, {"region": "all"}, "region: expected slices by the names of dimensions, or 'auto'"),
    "a region of no dimension": ({}, {"region": {"level": slice(0, 1)}}, "region: expected dimensions of the source"),
    "no shards": ({}, {"shard_chunks": 0, "append_dim": "time"}, "shard_chunks"),
}


@pytest.mark.sampled(7)
@pytest.mark.parametrize(
    ("case", "shard_chunks"),
    [(case, None) for case in CASES if case != "loaded in place of references"]
    + [(case, 4095) for case in CASES if case != "chunks"],
)
def test_what_does_not_fit_is_refused(case: str, shard_chunks: int | None, tmp_path: Path) -> None:
    change, arguments, text = CASES[case]
    repo = repository(tmp_path)
    session = repo.writable_session("main")
    ps.to_icechunk(source(tmp_path), session, path="a", shard_chunks=shard_chunks)
    session.commit("stored")
    session = repo.writable_session("main")
    days = change(source(tmp_path, first=20)) if callable(change) else source(tmp_path, **({"first": 20} | change))
    with pytest.raises(PartsStoreError, match=text):
        ps.to_icechunk(days, session, **({"path": "a"} | (arguments or {"append_dim": "time"})))
    assert not session.has_uncommitted_changes


def test_times_that_the_stored_units_cannot_hold_are_refused(tmp_path: Path) -> None:
    session = repository(tmp_path).writable_session("main")
    days = np.datetime64("2001-01-01", "ns") + np.arange(20) * np.timedelta64(1, "D")
    first = source(tmp_path).assign_coords(time=days)
    first.time.encoding.update(units="days since 1990-01-01", dtype="int32")
    ps.to_icechunk(first, session)
    later = source(tmp_path, first=20).assign_coords(time=days + np.timedelta64(20 * 24 + 12, "h"))
    with pytest.raises(ManifestError, match=r"'time': expected values that can be stored .*days since 1990-01-01"):
        ps.to_icechunk(later, session, append_dim="time")
    # Times in other units are stored in those of the array.
    later = source(tmp_path, first=20).assign_coords(time=days + np.timedelta64(20, "D"))
    later.time.encoding.update(units="hours since 1999-01-01", dtype="int64")
    ps.to_icechunk(later, session, append_dim="time")
    found = stored(session)
    assert np.array_equal(found.time.values, days[0] + np.arange(40) * np.timedelta64(1, "D"))


def test_array_with_half_a_chunk_cannot_be_continued(tmp_path: Path) -> None:
    session = repository(tmp_path).writable_session("main")
    ps.to_icechunk(source(tmp_path, days=21, chunks=(2, 2)), session)
    with pytest.raises(ManifestError, match="a stored length along 'time' that is a multiple of the chunk length 2"):
        ps.to_icechunk(source(tmp_path, first=21, chunks=(2, 2)), session, append_dim="time")


def test_file_that_was_changed_is_not_cut_again(tmp_path: Path) -> None:
    repo = repository(tmp_path)
    session = repo.writable_session("main")
    for first, days in ((0, 31), (31, 28)):
        new = source(tmp_path, first=first, days=days)
        ps.to_icechunk(new, session, append_dim="time" if first else None, shard_chunks=4095)
    session.commit("two months")
    changed = tmp_path / "0-i4-31-8-1.raw"
    changed.write_bytes(bytes(5000))
    # Icechunk compares whole seconds.
    os.utime(changed, (time.time() + 10, time.time() + 10))
    session = repo.writable_session("main")
    with pytest.raises(LocationError, match=r"expected the file that .* refers to unchanged"):
        ps.to_icechunk(source(tmp_path, first=59, days=31), session, append_dim="time")
    assert not session.has_uncommitted_changes


@pytest.mark.sampled(3)
@pytest.mark.parametrize("shift", [0.0, 1e-9, 1.0])
def test_a_grid_that_is_shifted_a_little_is_another_grid(tmp_path: Path, shift: float) -> None:
    session = repository(tmp_path).writable_session("main")
    meters = 4_500_000.0 + np.arange(8)
    ps.to_icechunk(source(tmp_path).assign_coords(x=meters), session, path="a")
    new = source(tmp_path, first=20).assign_coords(x=meters + shift)
    if shift == 1.0:
        with pytest.raises(ManifestError, match="array 'a/x': expected the values that are stored, found others"):
            ps.to_icechunk(new, session, path="a", append_dim="time")
    else:
        # The rounding of the last digits.
        ps.to_icechunk(new, session, path="a", append_dim="time")
