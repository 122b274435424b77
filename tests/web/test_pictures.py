"""A picture shows the values of the array: Pillow decodes what is drawn, and numpy says what it should be."""

import io
from itertools import product
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import parts_store as ps
from parts_store.pictures import (
    COLOUR_MAPS,
    TILE,
    PictureError,
    arrange,
    contrast,
    max_zoom,
    numbers,
    plan_tile,
    png,
    preview,
    select,
)


def decoded(data: bytes, mode: str) -> Any:
    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(image.convert(mode))


def tile_of(values: Any, zoom: int, place: tuple[int, int], chunks: tuple[int, int] = (64, 64)) -> Any:
    tile = plan_tile(values.shape, chunks, 1, axes=(0, 1), at={}, zoom=zoom, place=place)
    return arrange(values[tile.selection], (0, 1), None, tile), tile


@given(st.integers(1, 1500), st.integers(1, 1500), st.integers(1, 300), st.integers(1, 300))
def test_tiles_cover_the_array_and_show_values_of_their_own_place(
    rows: int, columns: int, height: int, width: int
) -> None:
    values = np.arange(rows * columns).reshape(rows, columns)
    for zoom in {0, max_zoom(values.shape)}:
        span = TILE << zoom
        places = product(range(-(-rows // span)), range(-(-columns // span)))
        for row, column in places:
            shown, tile = tile_of(values, zoom, (row, column), (height, width))
            inside = values[row * span : (row + 1) * span, column * span : (column + 1) * span]
            assert shown.shape == tuple(-(-size >> zoom) for size in inside.shape)
            # Each pixel shows a value that is less than one square away.
            at_row, at_column = np.divmod(shown, columns)
            step = tile.repeat << zoom
            assert np.all(abs(at_row - (row * span + (np.arange(shown.shape[0])[:, None] << zoom))) <= step)
            assert np.all(abs(at_column - (column * span + (np.arange(shown.shape[1])[None] << zoom))) <= step)
            if zoom == 0 and tile.repeat == 1:
                assert np.array_equal(shown, inside)


@given(
    st.integers(1, 10**7), st.integers(1, 10**7), st.integers(1, 4096), st.integers(1, 4096), st.integers(1, 1 << 31)
)
def test_a_tile_decodes_few_chunks(rows: int, columns: int, height: int, width: int, nbytes: int) -> None:
    zoom = max_zoom((rows, columns))
    tile = plan_tile((rows, columns), (height, width), nbytes, axes=(0, 1), at={}, zoom=zoom, place=(0, 0))
    touched = 1
    for each, chunk in zip(tile.selection, (height, width), strict=True):
        assert isinstance(each, slice)
        touched *= len({at // chunk for at in range(each.start, each.stop, each.step)})
    assert touched <= max(min(1024, (1 << 28) // nbytes), 1)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_axes_may_be_shown_in_any_order(order: tuple[int, int]) -> None:
    values = np.arange(5 * 7 * 3).reshape(5, 7, 3)
    tile = plan_tile(values.shape, values.shape, 1, axes=order, at={2: 1}, zoom=0, place=(0, 0))
    shown = arrange(values[tile.selection], order, None, tile)
    assert np.array_equal(shown, values[:, :, 1] if order == (0, 1) else values[:, :, 1].T)


def test_colours_may_be_any_axis() -> None:
    values = np.arange(3 * 5 * 7).reshape(3, 5, 7)
    tile = plan_tile(values.shape, values.shape, 1, axes=(1, 2), at={0: slice(None)}, zoom=0, place=(0, 0))
    assert np.array_equal(arrange(values[tile.selection], (1, 2), 0, tile), np.moveaxis(values, 0, -1))


@given(st.tuples(*[st.integers(1, 60)] * 2), st.tuples(*[st.integers(1, 60)] * 2), st.tuples(*[st.integers(1, 40)] * 2))
def test_what_is_selected_is_what_numpy_selects(
    start: tuple[int, int], step: tuple[int, int], chunks: tuple[int, int]
) -> None:
    values = np.arange(3 * 70 * 80).reshape(3, 70, 80)
    array = zarr.create_array({}, data=values, chunks=(1, *chunks))
    for first in (2, slice(None)):
        selection = (first, *(slice(each, 70, step) for each, step in zip(start, step, strict=True)))
        assert np.array_equal(select(array, selection), values[selection])


def test_a_picture_of_very_many_chunks_looks_at_few_of_them() -> None:
    store = ps.PartsStore.from_url("memory://")
    side = 2**40
    array = zarr.create_array(store, name="a", shape=(side, side), chunks=(1, 1), dtype="u1")
    array[side // 2, side // 2] = 9
    # It would take hours if zarr looked at the chunks between.
    assert "PNG" in repr(store.view("a"))


def test_a_png_has_the_pixels_and_shows_what_is_not_finite_as_transparent() -> None:
    values = np.array([[0.0, 100.0, 254.0], [np.nan, np.inf, -5.0]])
    gray = decoded(png(values, 0, 254, "gray"), "RGBA")
    assert gray[0, :, 0].tolist() == [0, 100, 255]
    assert gray[:, :, 3].tolist() == [[255, 255, 255], [0, 0, 255]]
    assert gray[1, 2, 0] == 0
    colours = np.stack([values] * 3, axis=-1)
    rgb = decoded(png(colours, 0, 255, "gray"), "RGBA")
    assert rgb[0, :, :3].tolist() == [[0] * 3, [100] * 3, [254] * 3]
    assert rgb[:, :, 3].tolist() == [[255, 255, 255], [0, 0, 255]]


@pytest.mark.parametrize("name", COLOUR_MAPS)
def test_the_ends_of_a_colour_map_are_its_first_and_last_colour(name: str) -> None:
    shown = decoded(png(np.array([[0.0, 1.0]]), 0, 1, name), "RGB")
    assert shown[0, 0].tolist() != shown[0, 1].tolist()


@pytest.mark.parametrize(("low", "high"), [(1, 1), (2, 1), (np.nan, 1), (0, np.inf)])
def test_a_contrast_without_extent_is_refused(low: float, high: float) -> None:
    with pytest.raises(PictureError, match="below a high one"):
        png(np.zeros((1, 1)), low, high, "gray")


@given(st.lists(st.floats(width=32), min_size=1, max_size=50), st.booleans())
def test_any_values_have_a_contrast(values: list[float], around_zero: bool) -> None:
    low, high = contrast(np.array(values, "f8"), around_zero=around_zero)
    assert low < high
    png(np.array([values], "f8"), low, high, "gray")


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (np.array([True, False]), [1, 0]),
        (np.array([3 + 4j]), [5]),
        (np.array(["2020-01-01", "NaT"], "M8[s]"), [1577836800, np.nan]),
    ],
)
def test_values_are_shown_as_numbers(values: Any, expected: list[float]) -> None:
    assert np.array_equal(numbers(values), expected, equal_nan=True)


def test_texts_are_refused() -> None:
    with pytest.raises(PictureError, match="expected numbers"):
        numbers(np.array(["a"]))


@pytest.mark.parametrize(
    "wrong",
    [
        {"axes": (0, 0)},
        {"axes": (0, 3)},
        {"at": {}},
        {"at": {2: 9}},
        {"at": {2: -1}},
        {"zoom": 1},
        {"zoom": -1},
        {"zoom": 10**6},
        {"place": (1, 0)},
        {"place": (-1, 0)},
    ],
)
def test_a_tile_that_does_not_exist_is_refused(wrong: dict[str, Any]) -> None:
    given: dict[str, Any] = {"axes": (0, 1), "at": {2: 1}, "zoom": 0, "place": (0, 0)}
    with pytest.raises(PictureError, match="expected"):
        plan_tile((50, 60, 9), (5, 6, 9), 1, **given | wrong)


def test_a_store_shows_a_preview_of_an_array() -> None:
    store = ps.PartsStore.from_url("memory://")
    values = np.arange(2 * 600 * 500, dtype="f4").reshape(2, 600, 500)
    zarr.create_array(store, name="a", data=values, chunks=(1, 100, 100))
    shown = store.view("a", 1)
    assert repr(shown).startswith("<picture of a (2, 600, 500)")
    assert decoded(shown._repr_png_(), "RGB").shape == (150, 125, 3)
    assert shown._repr_png_() == preview(zarr.open_array(store, path="a"), "a", [1]).data
    with pytest.raises(PictureError, match="at most 1 positions"):
        store.view("a", 1, 2)


LARGEST = np.finfo("f8").max


@pytest.mark.parametrize("around_zero", [True, False])
@pytest.mark.parametrize(
    "values", [[-LARGEST, LARGEST], [LARGEST] * 2, [-LARGEST] * 2, [0, 5e-324], [np.nan, np.inf], [1e308, -LARGEST]]
)
def test_every_number_can_be_shown(values: list[float], around_zero: bool) -> None:
    pixels = np.array([values], "f8")
    low, high = contrast(pixels, around_zero=around_zero)
    assert -LARGEST <= low < high <= LARGEST
    shown = np.asarray(Image.open(io.BytesIO(png(pixels, low, high, "gray"))).convert("LA"))
    assert np.array_equal(shown[0, :, 1] > 0, np.isfinite(pixels[0]))
    assert (shown[0, 0, 0] < shown[0, 1, 0]) == bool(np.isfinite(pixels).all() and pixels[0, 0] < pixels[0, 1])
