"""The size of an encoded image is that of the image, for every encoder, and no header raises an error."""

from collections.abc import Callable
from functools import partial
from typing import Any

import imagecodecs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parts_store.adoption.formats.tiff.image_sizes import IMAGE_COMPRESSIONS, size_of_image

# For values of three samples, or of one.
COLOUR: list[tuple[int, Callable[..., Any]]] = [
    (7, imagecodecs.jpeg8_encode),
    (34712, lambda values: imagecodecs.jpeg2k_encode(values, codecformat="j2k")),
    (34887, imagecodecs.lerc_encode),
    (34933, imagecodecs.png_encode),
    (50001, lambda values: imagecodecs.webp_encode(values, lossless=True)),
    (50001, lambda values: imagecodecs.webp_encode(values, lossless=False, level=50)),
    (50001, lambda values: imagecodecs.webp_encode(np.dstack([values, values[..., 0]]), lossless=False, level=50)),
]
GRAY: list[tuple[int, Callable[..., Any]]] = [
    (7, lambda values: imagecodecs.jpeg8_encode(values, lossless=True)),
    *((34887, partial(imagecodecs.lerc_encode, version=number)) for number in range(2, 7)),
    (34933, imagecodecs.png_encode),
]


@pytest.mark.parametrize("size", [(2, 3), (17, 300), (301, 16)])
def test_the_size_of_an_image_is_read(size: tuple[int, int]) -> None:
    colour = np.random.default_rng(1).integers(0, 256, (*size, 3)).astype("u1")
    gray = np.ascontiguousarray(colour[..., 0])
    for values, encoders in ((colour, COLOUR), (gray, GRAY)):
        for compression, encode in encoders:
            data = bytes(encode(values))
            assert size_of_image(compression, data) == size, (compression, data[:32])
            for length in range(min(len(data), 40)):
                assert size_of_image(compression, data[:length]) in (None, size)


@given(st.sampled_from(sorted(IMAGE_COMPRESSIONS)), st.binary(max_size=64))
def test_other_bytes_have_no_size_or_any(compression: int, data: bytes) -> None:
    found = size_of_image(compression, data)
    assert found is None or all(isinstance(each, int) for each in found)
