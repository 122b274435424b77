"""xarray sees nothing of the parts of arrays in Icechunk sessions."""

import icechunk
import numpy as np
import pytest
import xarray

import parts_store as ps
from tests.array_machine import require_tidy

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("split", [False, True], ids=["whole", "split"])
def test_xarray_writes_appends_and_reads_and_sees_no_parts(pipeline: str, *, split: bool) -> None:
    repository = icechunk.Repository.create(icechunk.in_memory_storage())
    session = repository.writable_session("main")
    patterns = {"temperature": [ps.Part(""), ps.Part(".tail", size=2)]}
    store = ps.PartsStore.from_session(session).with_parts(patterns, split=split)
    field = np.arange(24.0).reshape(6, 4)
    first = xarray.Dataset({"temperature": (("time", "x"), field)}, coords={"time": np.arange(6)})
    # Icechunk has no use for consolidated metadata, and zarr says so.
    first.to_zarr(store, mode="w", consolidated=False, encoding={"temperature": {"chunks": (2, 4)}})
    second = first.assign_coords(time=np.arange(6, 12))
    second.to_zarr(store, append_dim="time", consolidated=False)
    session.commit("both")
    reader = ps.PartsStore.from_session(repository.readonly_session("main"))
    assert reader.parts_of("temperature") == ps.ConcatParts(patterns["temperature"])
    opened = xarray.open_zarr(reader, consolidated=False)
    assert set(opened.variables) == {"temperature", "time"}
    xarray.testing.assert_identical(opened.load(), xarray.concat([first, second], "time"))
    require_tidy(reader, {"temperature", "time"})
