"""Random small files, adopted, are what `xarray.open_mfdataset` makes of them, or are refused for a reason."""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st

import parts_store as ps
from parts_store.errors import AdoptionError, PartsStoreError, StoreConfigError
from tests.effort import examples
from tests.virtual.adopting import repository, settle

SIZES = {"time": 0, "y": 3, "x": 4}
# Changes of a file that xarray accepts, and that `adopt` refuses: units, packing and the order of times have a meaning.
REFUSED = ("units", "type", "missing", "overlap")
CHANGES = ("nothing", "nothing", "nothing", "values", "attribute", *REFUSED)


@dataclass(frozen=True)
class Kind:
    """A variable as all files have it."""

    dims: tuple[str, ...]
    dtype: str
    is_coordinate: bool = False
    attrs: Mapping[str, str] = field(default_factory=dict)
    encoding: Mapping[str, Any] = field(default_factory=dict)


@st.composite
def kinds(draw: st.DrawFn) -> Kind:
    dims = draw(st.sampled_from([("time", "y", "x"), ("time",), ("time", "x"), ("y", "x"), ("x",), ()]))
    dtype = draw(st.sampled_from(["f4", "f8", "i2", "i8", "str"]))
    attrs = draw(st.dictionaries(st.sampled_from(["units", "long_name"]), st.sampled_from(["m", "K"])))
    is_coordinate = draw(st.booleans()) and "time" not in dims
    encoding: dict[str, Any] = {}
    if dims and dtype != "str":
        encoding = draw(st.sampled_from([{}, {"zlib": True}, {"chunksizes": tuple(1 for _ in dims)}]))
    if dtype == "f8" and draw(st.booleans()):
        encoding = {**encoding, "dtype": "i2", "scale_factor": 0.5, "_FillValue": -9}
    return Kind(dims, dtype, is_coordinate, attrs, encoding)


@dataclass(frozen=True)
class Plan:
    """The files to write: for each its times, the names of its variables, and how one variable is changed."""

    kinds: Mapping[str, Kind]
    # The first and the last time of each file, half-open.
    times: tuple[tuple[int, int], ...]
    names: tuple[frozenset[str], ...]
    changes: tuple[tuple[str, str], ...]
    seed: int

    @property
    def data(self) -> frozenset[str]:
        """The names of the variables that are no coordinates."""
        return frozenset(name for name, kind in self.kinds.items() if not kind.is_coordinate)

    @property
    def has_twins(self) -> bool:
        """Whether two files have the same times and variables. xarray accepts those without data variables."""
        pairs = {(times, names & self.data) for times, names in zip(self.times, self.names, strict=True)}
        return len(pairs) < len(self.times)

    @property
    def lacks_coordinates(self) -> bool:
        """Whether files that are joined have different coordinates. xarray takes those that it finds."""
        pairs = {(names & self.data, names - self.data) for names in self.names}
        return len(pairs) > len({data for data, _ in pairs})


@st.composite
def plans(draw: st.DrawFn, *, is_nested: bool) -> Plan:
    """Files with the same variables, one after the other; or with some of the variables, each at one of two times."""
    known = {f"v{number}": draw(kinds()) for number in range(draw(st.integers(1, 4)))}
    lengths = draw(st.lists(st.integers(1, 3), min_size=2, max_size=3))
    blocks = list(pairwise([0, *accumulate(lengths)]))
    if is_nested:
        times, names = blocks, [frozenset(known) for _ in blocks]
    else:
        count = draw(st.integers(2, 4))
        times = [draw(st.sampled_from(blocks[:2])) for _ in range(count)]
        names = [draw(st.frozensets(st.sampled_from(sorted(known)), min_size=1)) for _ in range(count)]
    changes = tuple((draw(st.sampled_from(CHANGES)), draw(st.sampled_from(sorted(known)))) for _ in times)
    return Plan(known, tuple(times), tuple(names), changes, draw(st.integers(0, 2**32)))


def values_of(kind: Kind, sizes: Mapping[str, int], seed: Sequence[int]) -> Any:
    random = np.random.default_rng(seed)
    shape = tuple(sizes[dim] for dim in kind.dims)
    numbers = random.integers(0, 50, shape)
    if kind.dtype == "str":
        return np.char.add("s", numbers.astype("U2"))
    values = numbers.astype(kind.dtype)
    if kind.dtype in ("f4", "f8"):
        values = np.where(numbers > 40, np.nan, values).astype(kind.dtype)
    return values


def dataset_of(plan: Plan, number: int) -> xr.Dataset:
    """The dataset of a file. Variables are the same in all files with the same times, unless they are changed."""
    start, stop = plan.times[number]
    sizes = {**SIZES, "time": stop - start}
    change, changed = plan.changes[number]
    first = start - (change == "overlap" and start > 0)
    dataset = xr.Dataset(coords={"time": np.arange(first, first + sizes["time"]), "x": np.arange(sizes["x"])})
    for at, name in enumerate(sorted(plan.names[number])):
        kind = plan.kinds[name]
        own = [start] if "time" in kind.dims else []
        values, attrs = values_of(kind, sizes, [plan.seed, int(name[1:]), *own]), dict(kind.attrs)
        if name == changed:
            if change == "values":
                values = np.char.add(values, "x") if kind.dtype == "str" else values + np.asarray(1, values.dtype)
            elif change == "units":
                attrs["units"] = "km"
            elif change == "attribute":
                attrs["history"] = f"changed {at}"
            elif change == "type" and kind.dtype != "str":
                values = values.astype("f8" if kind.dtype != "f8" else "f4")
        if not (name == changed and change == "missing"):
            dataset[name] = (kind.dims, values, attrs)
            if kind.is_coordinate:
                dataset = dataset.set_coords(name)
    return dataset.assign_attrs(title=f"file {number}")


def write(plan: Plan, folder: Path) -> list[Path]:
    files = []
    for number in range(len(plan.times)):
        dataset = dataset_of(plan, number)
        files.append(folder / f"{number}.nc")
        encoding = {name: dict(plan.kinds[name].encoding) for name in plan.kinds if name in dataset.variables}
        dataset.to_netcdf(files[-1], engine="h5netcdf", encoding=encoding)
        settle(files[-1])
    return files


def expected_of(files: Sequence[Path], **options: Any) -> xr.Dataset | None:
    """What xarray makes of files; None if it refuses them."""
    try:
        with xr.open_mfdataset(
            files,
            engine="h5netcdf",
            data_vars="minimal",
            coords="minimal",
            compat="equals",
            join="exact",
            combine_attrs="override",
            **options,
        ) as found:
            return found.load()
    # xarray has several errors for files that do not belong together.
    except (ValueError, KeyError):
        return None


def adopted(files: Sequence[Path], **options: Any) -> xr.Dataset | PartsStoreError:
    session = repository(files[0].parent).writable_session("main")
    try:
        report = ps.adopt(files, into=session, **options)
    except PartsStoreError as error:
        refused = error
    else:
        assert not report.failed
        found: xr.Dataset = xr.open_zarr(ps.PartsStore.from_session(session), consolidated=False, chunks=None)
        return found.load()
    assert not session.has_uncommitted_changes
    if isinstance(refused, StoreConfigError):
        # Files without any difference.
        assert "concat_dim" in str(refused)
    else:
        assert isinstance(refused, AdoptionError)
        assert refused.location in [file.as_uri() for file in files]
    return refused


def require_same(plan: Plan, *, concat_dim: str | None = None) -> None:
    ours = {} if concat_dim is None else {"concat_dim": concat_dim}
    theirs = {"combine": "by_coords"} if concat_dim is None else {"combine": "nested", "concat_dim": concat_dim}
    with tempfile.TemporaryDirectory() as folder:
        files = write(plan, Path(folder).resolve())
        expected, found = expected_of(files, **theirs), adopted(files, **ours)
    if isinstance(found, PartsStoreError):
        is_refused = any(change in REFUSED for change, _ in plan.changes)
        assert expected is None or is_refused or plan.has_twins or plan.lacks_coordinates, found
    else:
        assert expected is not None, found
        xr.testing.assert_identical(found, expected)


@pytest.mark.slow
@settings(max_examples=examples(40))
@given(plans(is_nested=True))
def test_files_with_the_same_variables_are_joined_as_by_xarray(plan: Plan) -> None:
    require_same(plan, concat_dim="time")


@pytest.mark.slow
@settings(max_examples=examples(60))
@given(plans(is_nested=False))
def test_files_with_different_variables_are_combined_as_by_xarray(plan: Plan) -> None:
    require_same(plan)
