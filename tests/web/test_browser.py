"""The page in a real browser: it shows the values, runs nothing but its own script, and its lines for programs work."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import icechunk
import numpy as np
import pytest
import xarray as xr
import zarr

import parts_store as ps
from tests.web import browser
from tests.web.browser import Browser
from tests.web.screenshots import click, look_at

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not browser.IS_INSTALLED, reason="needs chromium and chromedriver"),
]

HOSTILE = "<script>alert(1)<"
VALUES = (np.arange(2 * 300 * 400).reshape(2, 300, 400) % 251).astype("u1")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    repository = icechunk.Repository.create(icechunk.in_memory_storage())
    session = repository.writable_session("main")
    store = ps.PartsStore.from_session(session)
    data = xr.Dataset({"t2m": (("t", "y", "x"), VALUES)}, {"t": np.array([3.0, 5.0])})
    data.to_zarr(store, group="climate", consolidated=False)
    harmful: Any = {"<img src=x onerror=alert(2)>": "<script>alert(3)</script>"}
    zarr.create_array(store, name=HOSTILE, data=VALUES[0], attributes=harmful)
    group = zarr.create_group(store, path="pyramid")
    for level in range(3):
        large = np.full((4096 >> level, 4096 >> level), level, "u1")
        group.create_array(str(level), data=large, chunks=(256, 256))
    scales: Any = [{"datasets": [{"path": str(level)} for level in range(3)]}]
    group.attrs["multiscales"] = scales
    session.commit("first")
    session = repository.writable_session("main")
    array = zarr.open_array(ps.PartsStore.from_session(session), path="climate/t2m")
    array[1, :150] = 0
    session.commit("second")
    with ps.serve(repository) as server:
        yield server.url


@pytest.fixture(scope="module")
def window() -> Iterator[Browser]:
    with browser.opened() as found:
        yield found


def colours(window: Browser, row: int, column: int) -> list[int]:
    """Return the colours of the picture at a place of the array."""
    where = "Math.floor(({} - state.{}) / state.scale * devicePixelRatio)"
    x, y = where.format(column + 0.5, "x"), where.format(row + 0.5, "y")
    found: list[int] = window.run(f"[...by('canvas').getContext('2d').getImageData({x}, {y}, 1, 1).data]")
    return found


def point_at(window: Browser, row: int, column: int) -> str:
    """Return what the page says about the value under the pointer."""
    places = ", ".join(
        f"client{axis.upper()}: by('canvas').getBoundingClientRect().{side} + ({at}.5 - state.{axis}) / state.scale"
        for axis, side, at in (("x", "left", column), ("y", "top", row))
    )
    window.run(f"by('canvas').dispatchEvent(new PointerEvent('pointermove', {{{places}}}))")
    text: str = window.wait("by('value').textContent")
    return text


def test_the_picture_and_the_pointer_show_the_values(url: str, window: Browser) -> None:
    look_at(window, url, "climate/t2m")
    window.run("(state.low = 0, state.high = 254, forget())")
    window.wait("by('stage').getAttribute('aria-busy') === 'false'")
    for row, column in ((0, 7), (10, 200), (299, 399)):
        shade = int(VALUES[0, row, column])
        red, green, blue, opacity = colours(window, row, column)
        assert abs(red - shade) <= 1
        assert (green, blue, opacity) == (red, red, 255)
    assert point_at(window, 20, 30) == f"[0, 20, 30] = {VALUES[0, 20, 30]}"
    window.run(
        "document.querySelector('#bar input[type=range]').value = 1,"
        " document.querySelector('#bar input[type=range]').oninput()"
    )
    window.wait("by('value').textContent = '', state.at[0] === 1")
    assert point_at(window, 200, 30) == f"[1, 200, 30] = {VALUES[1, 200, 30]}"
    assert window.errors() == []


def test_the_level_of_a_pyramid_fits_the_zoom(url: str, window: Browser) -> None:
    look_at(window, url, "pyramid")
    assert window.run("by('level').textContent").startswith("level 3 of 3")
    window.run("zoom(1 / 16)")
    window.wait("by('stage').getAttribute('aria-busy') === 'false'")
    assert window.run("by('level').textContent") == "level 1 of 3"
    click(window, "all")
    click(window, "requests")
    lines = window.wait("by('explained')?.querySelector('pre').textContent").splitlines()
    assert {line.split()[1].rsplit("/c/")[0] for line in lines} == {"pyramid/2"}


def test_names_and_attributes_are_text(url: str, window: Browser) -> None:
    look_at(window, url, "%3Cscript%3Ealert(1)%3C")
    assert window.run("by('name').textContent") == HOSTILE
    assert window.run("document.querySelectorAll('img, main script, nav script').length") == 0
    assert "<script>alert(3)</script>" in window.run("by('about').textContent")
    # An alert would make the commands fail, and what the policy forbids would be an error.
    assert window.errors() == []


@pytest.mark.parametrize("place", ["%", "nothing", "/../x", "%3Cimg%20src=x%3E"])
def test_a_link_to_nothing_shows_the_first_array(url: str, window: Browser, place: str) -> None:
    look_at(window, url, place)
    assert window.run("by('name').textContent") == "pyramid"


def test_versions_and_their_difference_are_shown(url: str, window: Browser) -> None:
    look_at(window, url, "climate/t2m")
    window.run("(state.at[0] = 1, renew())")
    click(window, "difference to this", 1)
    assert window.run("by('note').textContent") == "“second” minus “first”"
    assert colours(window, 200, 100)[:3] == [247] * 3
    blue = colours(window, 100, int(np.argmax(VALUES[1, 100])))
    assert blue[2] > blue[0] + 80
    click(window, "show", 1)
    assert window.run("by('note').textContent") == "As of “first”"
    look_at(window, url, "climate/t")
    click(window, "show", 1)
    assert window.run("by('note').textContent") == "As of “first”"
    assert window.errors() == []


def test_the_lines_for_programs_work(url: str, window: Browser) -> None:
    look_at(window, url, "climate/t2m")
    found = "[...document.querySelectorAll('#about p')].map(each => [each.textContent, each.nextSibling.textContent])"
    lines = window.run(f"Object.fromEntries({found})")
    wanted = VALUES.copy()
    wanted[1, :150] = 0
    made: dict[str, Any] = {}
    for name in ("zarr-python", "xarray", "tensorstore"):
        exec(lines[name], made)
    assert np.array_equal(made["node"][...], wanted)
    assert np.array_equal(made["dataset"]["t2m"], wanted)
    assert np.array_equal(made["array"].read().result(), wanted)
    assert lines["QGIS, GDAL"] == f'ZARR:"/vsicurl/{url}zarr/climate/t2m"'
    window.run("by('about').querySelector('button').click()")
    table = "by('about').querySelector('table').textContent"
    assert "1 object" in window.wait(f"!{table}.includes('count') && {table}")


@pytest.mark.parametrize("is_dark", [False, True])
def test_the_page_fits_a_narrow_screen_in_light_and_dark(url: str, is_dark: bool) -> None:
    with ExitStack() as stack:
        narrow = stack.enter_context(browser.opened("430,900", is_dark=is_dark))
        for path in ("climate/t2m", "climate/t", "pyramid"):
            look_at(narrow, url, path)
            assert narrow.run("document.documentElement.scrollWidth <= innerWidth")
            assert narrow.run("matchMedia('(prefers-color-scheme: dark)').matches") == is_dark
            # Text is far lighter than the page on a dark page, and far darker on a light one.
            style = "getComputedStyle(document.body)[each].match(/[0-9]+/g).slice(0, 3).map(Number)"
            shades = narrow.run(f"['color', 'backgroundColor'].map(each => {style})")
            text, page = (sum(each) for each in shades)
            assert (text > page + 400) if is_dark else (page > text + 400)
