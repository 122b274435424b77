"""Make the pictures of the page for the documentation: `python -m tests.web.screenshots`, which needs Chromium.

With a folder as argument, it also takes the page in dark colours and on a narrow screen, to look at.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import icechunk
import numpy as np
import zarr

import parts_store as ps

IMAGES = Path(__file__).parents[2] / "docs" / "images"
DARK = "--blink-settings=preferredColorScheme=0"


def shoot(url: str, picture: Path, *, size: str = "1200,820", options: tuple[str, ...] = ()) -> None:
    """Take a picture of a page."""
    browser = shutil.which("chromium") or shutil.which("google-chrome") or "chromium"
    flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--virtual-time-budget=8000"]
    call = [browser, *flags, *options, f"--window-size={size}", f"--screenshot={picture}", url]
    subprocess.run(call, check=True, capture_output=True, timeout=120)
    print(picture)


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
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    repository = icechunk.Repository.create(icechunk.in_memory_storage())
    session = repository.writable_session("main")
    write_examples(ps.PartsStore.from_session(session))
    session.commit("a stack of images, a climate dataset and a pyramid")
    session = repository.writable_session("main")
    stack = zarr.open_array(ps.PartsStore.from_session(session), path="stack")
    stack[0, 100:200, 200:400] = 0
    session.commit("remove a spot from the first image")
    with ps.serve(repository) as server:
        shoot(f"{server.url}#stack", IMAGES / "page-stack.png")
        if folder is not None:
            for name in ("stack", "climate/t2m", "climate/latitude", "pyramid"):
                shown = name.replace("/", "-")
                shoot(f"{server.url}#{name}", folder / f"{shown}-dark.png", options=(DARK,))
                shoot(f"{server.url}#{name}", folder / f"{shown}-narrow.png", size="430,900")
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
        with ps.serve(repository) as server:
            shoot(server.url, IMAGES / "page-scan.png")


if __name__ == "__main__":
    main()
