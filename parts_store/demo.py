"""`make demo`: a picture as a Zarr array whose every chunk is a TIFF file, without any server."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray
from PIL import Image
from zarr.codecs import ZstdCodec
from zarr.storage import LocalStore

from parts_store.codecs import pad_codec
from parts_store.headers import TiffHeader, tiff

SIDE = 1024
CHUNKS = (256, 256, 3)


def main(folder: Path) -> None:
    """Write the arrays below `folder`, read them back in two ways, and say what is where."""
    picture = julia_set(SIDE)
    arguments: dict[str, Any] = {"shape": picture.shape, "chunks": CHUNKS, "dtype": "uint8", "overwrite": True}

    header = tiff(CHUNKS, dtype="uint8")
    plain = zarr.create_array(
        LocalStore(folder / "picture.zarr"), compressors=[pad_codec(len(header), padding=header)], **arguments
    )
    plain[...] = picture
    print(f"wrote {plain.nchunks} chunks, each a TIFF file:      {folder}/picture.zarr/c/")

    maker = TiffHeader(CHUNKS, dtype="uint8", compression="zstd")
    compressed = zarr.create_array(
        LocalStore(folder / "compressed.zarr"),
        compressors=[ZstdCodec(level=9), pad_codec(maker.nbytes, padding_func=maker)],
        **arguments,
    )
    compressed[...] = picture
    saved = 1 - compressed.nbytes_stored() / plain.nbytes_stored()
    print(f"wrote them again, each a zstd TIFF, {saved:.0%} smaller: {folder}/compressed.zarr/c/")

    # A program that knows nothing of Zarr opens a chunk.
    chunk = folder / "picture.zarr" / "c" / "1" / "2" / "0"
    with Image.open(chunk) as image:
        same = np.array_equal(np.asarray(image), picture[256:512, 512:768])
        print(f"Pillow opened one chunk as {image.format} {image.size}: {'equal' if same else 'DIFFERENT'}")
        image.save(folder / "one-chunk.png")

    # And Zarr reads them all.
    assembled = np.asarray(zarr.open_array(folder / "compressed.zarr", mode="r")[...])
    Image.fromarray(assembled).save(folder / "picture.png")
    same = same and np.array_equal(assembled, picture)
    print(f"zarr read the whole picture: {'equal' if same else 'DIFFERENT'}")
    print(f"look at {folder}/picture.png, and open any file below {folder}/picture.zarr/c/ in an image viewer")
    if not same:
        sys.exit(1)


def julia_set(side: int) -> NDArray[np.uint8]:
    """A picture worth looking at, `side` pixels high and wide, in RGB."""
    axis = np.linspace(-1.35, 1.35, side)
    z = axis[np.newaxis, :] + 1j * axis[:, np.newaxis]
    steps = np.zeros(z.shape)
    constant = -0.79 + 0.15j
    for step in range(120):
        inside = np.abs(z) < 4
        z[inside] = z[inside] ** 2 + constant
        steps[inside] = step
    # Three phases of one wave make three colours that never clash.
    waves = [np.sin(steps / 16 + phase) for phase in (0.0, 0.9, 1.8)]
    return np.stack([(wave * 127.5 + 127.5).astype(np.uint8) for wave in waves], axis=-1)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "demo-output"))
