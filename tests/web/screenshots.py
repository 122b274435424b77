"""Make the pictures of the page for the documentation: `python -m tests.web.screenshots`, which needs Chromium.

With a folder as argument, it also takes all examples in light and dark colours and on a narrow screen, to look at.
"""

import sys
import tempfile
from pathlib import Path
from urllib.parse import quote

import numpy as np
import zarr
from PIL import Image

import parts_store as ps
from tests.web import browser
from tests.web.browser import Browser

IMAGES = Path(__file__).parents[2] / "docs" / "images"


def look_at(window: Browser, url: str, path: str) -> None:
    """Show an array, and wait until it is drawn."""
    window.open(f"{url}#/{path}")
    window.wait("by('name').textContent && by('stage').getAttribute('aria-busy') === 'false'")


def click(window: Browser, text: str, number: int = 0) -> None:
    """Click a button or a checkbox, and wait until the picture is drawn."""
    found = "[...document.querySelectorAll('main button, #bar label:has(input[type=checkbox])')]"
    window.run(f"{found}.filter(each => each.textContent === arguments[0])[arguments[1]].click()", text, number)
    window.wait("by('stage').getAttribute('aria-busy') === 'false'")


def shoot(window: Browser, name: str) -> None:
    """Take a small picture of the page for the documentation."""
    window.shoot(IMAGES / name)
    with Image.open(IMAGES / name) as image:
        few = image.convert("RGB").quantize(256, dither=Image.Dither.NONE)
    few.save(IMAGES / name, optimize=True)
    print(name, (IMAGES / name).stat().st_size)


def write_examples(store: ps.PartsStore) -> None:
    """Write a stack of images, a climate dataset and a pyramid."""
    y, x = np.mgrid[0:400, 0:600]
    stack = [20000 + 15000 * np.sin(x / 50 + t / 3) * np.cos(y / 40 + t / 5) for t in range(20)]
    zarr.create_array(
        store, name="stack", data=np.array(stack, "u2"), chunks=(1, 128, 128), dimension_names=("t", "y", "x")
    )
    latitude, longitude, day = np.linspace(90, -90, 181), np.arange(360), np.arange(31)
    warm = 15 - 0.006 * latitude[:, None] ** 2 + 8 * np.sin(np.radians(longitude) * 3)[None]
    values = warm[None] + np.sin(day / 5)[:, None, None]
    names = ("time", "latitude", "longitude")
    zarr.create_array(store, name="climate/t2m", data=values.astype("f4"), chunks=(5, 60, 90), dimension_names=names)
    zarr.create_array(store, name="climate/latitude", data=latitude)
    zarr.create_array(store, name="photo", data=np.stack([y % 256, x % 256, (x + y) % 256], -1).astype("u1"))
    group = zarr.create_group(store, path="pyramid")
    y, x = np.mgrid[0:4096, 0:4096]
    image = (128 + 90 * np.sin(x / 300) * np.cos(y / 200) + 30 * ((x // 64 + y // 64) % 2)).astype("u1")
    for level in range(4):
        group.create_array(str(level), data=image[:: 1 << level, :: 1 << level], chunks=(512, 512))
    scales = [[{"type": "scale", "scale": [2.0**level] * 2}] for level in range(4)]
    datasets = [{"path": str(level), "coordinateTransformations": scale} for level, scale in enumerate(scales)]
    axes = [{"name": name, "type": "space"} for name in "yx"]
    group.attrs["ome"] = {"version": "0.5", "multiscales": [{"axes": axes, "datasets": datasets}]}  # type: ignore[dict-item]


def main() -> None:
    with tempfile.TemporaryDirectory() as made:
        repository = ps.open_repository(f"{made}/images.icechunk")
        session = repository.writable_session("main")
        write_examples(ps.PartsStore.from_session(session))
        session.commit("a stack of images, a climate dataset and a pyramid")
        session = repository.writable_session("main")
        stack = zarr.open_array(ps.PartsStore.from_session(session), path="stack")
        stack[0, 100:200, 200:400] = 0
        session.commit("remove a spot from the first image")
        with ps.serve(f"{made}/images.icechunk") as server:
            with browser.opened() as window:
                look_at(window, server.url, "stack")
                click(window, "chunks")
                shoot(window, "page-stack.png")
            with browser.opened("1200,1130") as window:
                look_at(window, server.url, "stack")
                click(window, "difference to this", 1)
                shoot(window, "page-difference.png")
            with browser.opened("460,920", is_dark=True) as window:
                look_at(window, server.url, "pyramid")
                shoot(window, "page-narrow.png")
            if len(sys.argv) > 1:
                look_at_all(server.url, Path(sys.argv[1]))
    with tempfile.TemporaryDirectory() as made:
        import tifffile

        y, x = np.mgrid[0:400, 0:600]
        scan = (20000 + 15000 * np.sin(x / 50 + 3) * np.cos(y / 40)).astype("uint16")
        repository = ps.open_repository(f"{made}/scans.icechunk", virtual=[made])
        session = repository.writable_session("main")
        for number in range(6):
            file = Path(made) / f"scan{number}.tif"
            tifffile.imwrite(file, scan, tile=(128, 128), compression="zlib")
            ps.adopt(file, into=session, path=file.stem)
        session.commit("six scans")
        with ps.serve(f"{made}/scans.icechunk", virtual=[made]) as server, browser.opened() as window:
            look_at(window, server.url, "scan0/data")
            shoot(window, "page-scan.png")


def look_at_all(url: str, folder: Path) -> None:
    """Take pictures of all examples in several colours and sizes."""
    for kind, size, is_dark in (("light", "1200,820", False), ("dark", "1200,820", True), ("narrow", "430,900", False)):
        with browser.opened(size, is_dark=is_dark) as window:
            for path in ("stack", "climate/t2m", "climate/latitude", "photo", "pyramid"):
                look_at(window, url, quote(path))
                window.shoot(folder / f"{path.replace('/', '-')}-{kind}.png")
                assert window.errors() == []


if __name__ == "__main__":
    main()
