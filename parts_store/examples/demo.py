"""The program of `make demo`: store a picture in several ways, and read it back. It needs no server.

The picture is stored in chunks that other programs can open, in chunks of several objects, in versions, and in an
existing file.
"""

import shutil
import sys
from pathlib import Path
from typing import Any

import h5netcdf
import icechunk
import numpy as np
import zarr
from numpy.typing import NDArray
from PIL import Image

from parts_store.adoption import adopt
from parts_store.codecs import pad_codec
from parts_store.copying import copy
from parts_store.create import create_array
from parts_store.format.parts import SHARD_INDEX, Part
from parts_store.headers import tiff
from parts_store.store import PartsStore

SIDE = 1024
CHUNKS = (256, 256, 3)


def main(folder: Path) -> None:
    """Write the arrays below `folder`, read them back in several ways, and print what was stored."""
    picture = julia_set(SIDE)
    store = PartsStore.from_url(folder / "pictures.zarr")
    checks = [
        write_tiff_chunks(store, picture),
        write_tiff_shards(store, folder, picture),
        open_a_chunk_with_pillow(folder, picture),
        write_parts(store, picture),
        read_from_parts(store, picture),
        assemble(store, folder, picture),
        *keep_versions(store, folder, picture),
        adopt_a_file(folder, picture),
    ]
    files = f"{folder}/pictures.zarr/shards/c/"
    print(f"\nlook at {folder}/picture.png; the .tif files below {files} open in an image viewer")
    if not all(checks):
        sys.exit("something is different from what was written")


def write_tiff_chunks(store: PartsStore, picture: NDArray[np.uint8]) -> bool:
    """Write an array whose chunks are TIFF files, all with the same header."""
    header = tiff(CHUNKS, dtype="uint8")
    array = zarr.create_array(store, name="tiles", compressors=[pad_codec(len(header), padding=header)], **of(picture))
    array[...] = picture
    return say(f"{array.nchunks} chunks, each a TIFF file, in pictures.zarr/tiles", same=equal(array, picture))


def write_tiff_shards(store: PartsStore, folder: Path, picture: NDArray[np.uint8]) -> bool:
    """Write an array whose shards are TIFF files with tiles, and open one with a program that does not know Zarr."""
    arguments = of(picture) | {"chunks": (64, 64, 3), "shards": (512, 512, 3)}
    array = create_array(store, "shards", shard_file="tiff", **arguments)
    array[...] = picture
    with Image.open(folder / "pictures.zarr" / "shards" / "c" / "0" / "1" / "0.tif") as image:
        same = np.array_equal(np.asarray(image), picture[:512, 512:])
    return say("4 shards, each a TIFF file of 64 tiles, in pictures.zarr/shards", same=same and equal(array, picture))


def open_a_chunk_with_pillow(folder: Path, picture: NDArray[np.uint8]) -> bool:
    """Open a chunk with a program that does not know Zarr."""
    with Image.open(folder / "pictures.zarr" / "tiles" / "c" / "1" / "2" / "0") as image:
        image.save(folder / "one-chunk.png")
        same = np.array_equal(np.asarray(image), picture[256:512, 512:768])
        return say(f"Pillow opens one of them: {image.format}, {image.size[0]} x {image.size[1]}", same=same)


def write_parts(store: PartsStore, picture: NDArray[np.uint8]) -> bool:
    """Write an array whose chunks are shards in three objects: a header, the data, and the index."""
    parts = [Part(".header", size=64), Part(""), Part(".index", size=SHARD_INDEX)]
    arguments = of(picture) | {"chunks": (64, 64, 3), "shards": CHUNKS}
    array = create_array(store, "parts", parts=parts, **arguments)
    array[...] = picture
    return say("16 shards, each in three objects, in pictures.zarr/parts", same=equal(array, picture))


def read_from_parts(store: PartsStore, picture: NDArray[np.uint8]) -> bool:
    """Read a small region, and print the requests for it."""
    selection = np.s_[300:340, 700:740]
    # Before the read, which caches the index of the shard.
    requests = store.explain("parts", selection)
    array: Any = zarr.open_array(store, path="parts", mode="r")
    same = np.array_equal(array[selection], picture[selection])
    say("reading 40 x 40 pixels of it asks for", same=same)
    for request in requests:
        # The other requests check for unfinished writes on the local disk.
        if request.kind == "get" and request.stop is not None:
            print(f"    {request.key:<22} bytes {request.start} to {request.stop:<7} ({request.why})")
    return same


def assemble(store: PartsStore, folder: Path, picture: NDArray[np.uint8]) -> bool:
    """Read the whole picture, and save it as an image."""
    assembled = np.asarray(zarr.open_array(store, path="parts", mode="r")[...])
    Image.fromarray(assembled).save(folder / "picture.png")
    return say("zarr reads the whole picture from its parts", same=np.array_equal(assembled, picture))


def keep_versions(store: PartsStore, folder: Path, picture: NDArray[np.uint8]) -> list[bool]:
    """Keep versions of the array in an Icechunk repository: a commit contains all parts of all chunks, or none."""
    # Hide the warning that concurrent commits on a local disk are unsafe: this is the only process that commits.
    icechunk.set_logs_filter("error")
    shutil.rmtree(folder / "history", ignore_errors=True)
    repository = icechunk.Repository.create(icechunk.local_filesystem_storage(str(folder / "history")))
    session = repository.writable_session("main")
    copied = copy(store, PartsStore.from_session(session), path="parts")
    first = session.commit("the picture")
    checks = [say(f"{copied.chunks} shards committed to an Icechunk repository in history/", same=copied.chunks == 16)]

    changed = picture.copy()
    changed[200:500, 200:500] = 255 - changed[200:500, 200:500]
    session = repository.writable_session("main")
    zarr.open_array(PartsStore.from_session(session), path="parts")[200:500, 200:500] = changed[200:500, 200:500]
    second = session.commit("a part of it inverted")
    checks.append(say("a part of the picture changed, and committed", same=equal(at(repository, "main"), changed)))
    same = equal(at(repository, first), picture) and equal(at(repository, second), changed)
    checks.append(say("both versions are still there, by their snapshots", same=same))
    chunks = repository.diff(from_snapshot_id=first, to_snapshot_id=second).updated_chunks["/parts"]
    checks.append(say(f"the difference between them: {len(chunks)} shards of 16", same=len(chunks) == 4))

    repository.create_branch("grey", first)
    session = repository.writable_session("grey")
    zarr.open_array(PartsStore.from_session(session), path="parts")[...] = 127
    session.commit("all of it grey")
    same = equal(at(repository, "grey"), np.full_like(picture, 127)) and equal(at(repository, "main"), changed)
    checks.append(say("a branch went its own way, and main stayed as it was", same=same))
    return checks


def at(repository: icechunk.Repository, version: str) -> zarr.Array[Any]:
    """Return the array at the tip of a branch, or at a snapshot."""
    is_branch = version in repository.list_branches()
    session = repository.readonly_session(version) if is_branch else repository.readonly_session(snapshot_id=version)
    return zarr.open_array(PartsStore.from_session(session), path="parts", mode="r")


def adopt_a_file(folder: Path, picture: NDArray[np.uint8]) -> bool:
    """Adopt an existing netCDF4 file as a Zarr array: only an index is written."""
    file = (folder / "picture.nc").resolve()
    with h5netcdf.File(file, "w") as dataset:
        dataset.dimensions = {"y": SIDE, "x": SIDE, "colour": 3}
        variable = dataset.create_variable(
            "picture", ("y", "x", "colour"), "uint8", chunks=(64, 64, 3), compression="gzip", shuffle=True
        )
        variable[...] = picture
    place = f"{file.parent.as_uri()}/"
    config = icechunk.RepositoryConfig.default()
    config.set_virtual_chunk_container(
        icechunk.VirtualChunkContainer(place, store=icechunk.local_filesystem_store(str(file.parent)))
    )
    repository = icechunk.Repository.create(
        icechunk.in_memory_storage(),
        config=config,
        authorize_virtual_chunk_access={place: icechunk.credentials.LocalFileSystemAccess},
    )
    session = repository.writable_session("main")
    report = adopt(file, into=session)
    session.commit("a file adopted")
    store = PartsStore.from_session(repository.readonly_session("main"))
    same = equal(zarr.open_array(store, path="picture", mode="r"), picture) and report.nbytes_copied == 0
    chunks = sum(each.chunks for each in report.arrays)
    what = f"a netCDF4 file of {chunks} chunks adopted as Zarr by {report.references} reference, bytes copied: 0"
    return say(what, same=same)


def of(picture: NDArray[np.uint8]) -> dict[str, Any]:
    """Return the arguments that all arrays have in common."""
    return {"shape": picture.shape, "chunks": CHUNKS, "dtype": "uint8", "overwrite": True}


def equal(array: zarr.Array[Any], picture: NDArray[np.uint8]) -> bool:
    """Return whether the values of an array are the picture."""
    return np.array_equal(np.asarray(array[...]), picture)


def say(what: str, *, same: bool) -> bool:
    """Print what was done, and whether the result is equal to the picture."""
    print(f"{what:<75} {'equal' if same else 'DIFFERENT'}")
    return same


def julia_set(side: int) -> NDArray[np.uint8]:
    """Return an RGB picture of a Julia set, `side` pixels high and wide."""
    axis = np.linspace(-1.35, 1.35, side)
    z = axis[np.newaxis, :] + 1j * axis[:, np.newaxis]
    steps = np.zeros(z.shape)
    constant = -0.79 + 0.15j
    for step in range(120):
        inside = np.abs(z) < 4
        z[inside] = z[inside] ** 2 + constant
        steps[inside] = step
    # The colours are three phases of one wave.
    waves = [np.sin(steps / 16 + phase) for phase in (0.0, 0.9, 1.8)]
    return np.stack([(wave * 127.5 + 127.5).astype(np.uint8) for wave in waves], axis=-1)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "demo-output"))
