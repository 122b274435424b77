"""An array that would be overwritten by itself is refused before anything is deleted; others are converted."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
import zarr
from hypothesis import example, given
from hypothesis import strategies as st
from icechunk import Repository, in_memory_storage
from obstore.store import LocalStore

import parts_store as ps
from parts_store.errors import StoreConfigError

PARTS: Final[list[str | ps.Part]] = ["", ps.Part(".end", size=3)]
VALUES: Final = np.arange(1, 13, dtype="int32")

# Ways to the array `g/a` of a folder: a store, and the path of the array there.
SOURCES: dict[str, Callable[[Path, ps.PartsStore], tuple[Any, str]]] = {
    "same store": lambda _, store: (store, "g/a"),
    "read-only": lambda _, store: (store.with_read_only(read_only=True), "g/a"),
    "other parts": lambda _, store: (store.with_parts({"*": [""]}), "g/a"),
    "second store": lambda folder, _: (ps.PartsStore.from_url(folder, must_understand=False, durable=True), "g/a"),
    "deeper": lambda folder, _: (ps.PartsStore.from_url(folder / "g"), "a"),
    "higher": lambda folder, _: (ps.PartsStore.from_url(folder.parent), f"{folder.name}/g/a"),
    "link": lambda folder, _: (ps.PartsStore.from_url(folder), "link/a"),
    "zarr's LocalStore": lambda folder, _: (zarr.storage.LocalStore(folder), "g/a"),
    "wrapped": lambda _, store: (zarr.storage.LoggingStore(store), "g/a"),
    "zarr's ObjectStore": lambda folder, _: (zarr.storage.ObjectStore(LocalStore(folder)), "g/a"),
}
# The stores of which zarr itself can tell that they are on the same objects as a PartsStore.
EQUAL: Final = ["same store", "read-only", "other parts", "second store"]


def convert(store: ps.PartsStore, name: str, data: Any) -> Any:
    return ps.create_array(store, name, parts=PARTS, data=data, chunks=(5,), overwrite=True)


def convert_with_zarr(store: ps.PartsStore, name: str, data: Any) -> Any:
    return zarr.create_array(store.with_parts({"*": PARTS}), name=name, data=data, chunks=(5,), overwrite=True)


def files_in(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@given(
    source=st.sampled_from(sorted(SOURCES)),
    target=st.sampled_from(["g/a", "g", "", "b", "g/b", "g/a-new"]),
    in_parts=st.booleans(),
    by_zarr=st.booleans(),
)
@example(source="same store", target="g/a", in_parts=False, by_zarr=False)
@example(source="wrapped", target="g/a", in_parts=True, by_zarr=False)
@example(source="other parts", target="g/a", in_parts=True, by_zarr=True)
def test_conversion_keeps_all_values_or_is_refused_and_changes_nothing(
    source: str, target: str, *, in_parts: bool, by_zarr: bool
) -> None:
    by_zarr = by_zarr and source in EQUAL
    # Stores of zarr refuse arrays in parts.
    in_parts = in_parts and not source.startswith("zarr")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        store = ps.PartsStore.from_url(folder)
        creating = store.with_parts({"*": [ps.Part(".head", size=2), ""]} if in_parts else {})
        zarr.create_array(creating, name="g/a", data=VALUES, chunks=(4,))
        (folder / "link").symlink_to(folder / "g")
        before = files_in(folder)
        store_of_source, path = SOURCES[source](folder, store)
        data = zarr.open_array(store_of_source, path=path, mode="r")
        if target in ("g/a", "g", ""):
            with pytest.raises(ValueError, match="overlap" if by_zarr else "deletes '.*' before `data` is read"):
                (convert_with_zarr if by_zarr else convert)(store, target, data)
            assert files_in(folder) == before
        else:
            (convert_with_zarr if by_zarr else convert)(store, target, data)
            np.testing.assert_array_equal(zarr.open_array(store, path=target)[...], VALUES)
            assert store.parts_of(target) is not None
        np.testing.assert_array_equal(zarr.open_array(ps.PartsStore.from_url(folder), path="g/a")[...], VALUES)


def test_lines_of_the_refusal_convert_an_array(tmp_path: Path) -> None:
    store, other_store = ps.PartsStore.from_url(tmp_path / "one"), ps.PartsStore.from_url(tmp_path / "two")
    for path in ("g/a", ""):
        data = zarr.create_array(store, name=path, data=VALUES, chunks=(4,), overwrite=True)
        with pytest.raises(StoreConfigError) as refused:
            convert(store, path, data)
        names = {"ps": ps, "PARTS": PARTS, "store": store, "other_store": other_store, "data": data}
        for line in str(refused.value).splitlines()[1:]:
            exec(line.strip().replace("...", "parts=PARTS"), names)
        np.testing.assert_array_equal(zarr.open_array(store, path=path)[...], VALUES)
        assert store.parts_of(path) == ps.ConcatParts.parse(PARTS)


def test_array_of_a_session_is_not_overwritten_by_itself() -> None:
    session = Repository.create(in_memory_storage()).writable_session("main")
    store = ps.PartsStore.from_session(session)
    zarr.create_array(store, name="a", data=VALUES, chunks=(4,))
    for source in (store, store.with_parts({"*": ["", ".x"]}), session.store):
        with pytest.raises(StoreConfigError, match="deletes 'a' before"):
            convert(store, "a", zarr.open_array(source, path="a"))
    np.testing.assert_array_equal(zarr.open_array(store, path="a")[...], VALUES)


@pytest.mark.parametrize("is_committed", [True, False], ids=["committed", "read-only"])
def test_an_array_of_a_session_that_can_only_be_read_overwrites_another(*, is_committed: bool) -> None:
    repository = Repository.create(in_memory_storage())
    session = repository.writable_session("main")
    zarr.create_array(ps.PartsStore.from_session(session), name="a", data=VALUES, chunks=(4,))
    session.commit("an array")
    store = ps.PartsStore.from_session(session if is_committed else repository.readonly_session("main"))
    data = zarr.open_array(store, path="a", mode="r")
    for act in (convert, convert_with_zarr):
        for destination in (
            ps.PartsStore.from_url("memory://"),
            ps.PartsStore.from_session(repository.writable_session("main")),
        ):
            act(destination, "a", data)
            act(destination, "a", data)
            np.testing.assert_array_equal(zarr.open_array(destination, path="a")[...], VALUES)


def test_array_can_be_overwritten_by_its_values_or_without_them() -> None:
    store = ps.PartsStore.from_url("memory://")
    array = zarr.create_array(store, name="a", data=VALUES, chunks=(4,))
    converted = convert(store, "a", array[...])
    np.testing.assert_array_equal(converted[...], VALUES)
    empty: Any = ps.create_array(store, "a", parts=PARTS, data=converted, overwrite=True, write_data=False)
    assert empty.shape == VALUES.shape
    assert not empty[...].any()


def test_asynchronous_array_is_not_overwritten_by_itself() -> None:
    store = ps.PartsStore.from_url("memory://")
    array = zarr.create_array(store, name="a", data=VALUES, chunks=(4,))
    with pytest.raises(StoreConfigError, match="deletes 'a' before"):
        convert(store, "a", array.async_array)
    np.testing.assert_array_equal(zarr.open_array(store, path="a")[...], VALUES)
