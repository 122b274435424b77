"""The TIFF files of published packages: every image is equal to that of tifffile, or named with the reason."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

import parts_store as ps
from parts_store.virtual.report import Adoption
from tests.package_sources import sources
from tests.virtual.adopting import adopted_samples
from tests.virtual.parsers.tiff.files import images_of, read, require_equal

PACKAGES = ["pillow", "async_tiff", "tifftools"]
SIGNATURES = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
LEAST_EQUAL = 200


def is_tiff(path: Path) -> bool:
    if not path.is_file() or path.is_symlink():
        return False
    with path.open("rb") as file:
        return file.read(4) in SIGNATURES


def can_be_read(path: Path) -> bool:
    try:
        return bool(list(images_of(path)))
    # tifffile and its codecs raise any error for a damaged file.
    except Exception:
        return False


def is_equal_to_pillow(path: Path, values: NDArray[np.generic]) -> bool | None:
    """Whether the first image of a file is what Pillow reads; None if Pillow reads something else on purpose."""
    try:
        with Image.open(path) as image:
            # Pillow turns images, and converts palettes, colours and bits to its own modes.
            if image.mode not in ("L", "RGB", "I;16") or image.getexif().get(274, 1) != 1:
                return None
            found = np.asarray(image)
            tags: dict[int, Any] = getattr(image, "tag_v2")  # noqa: B009 - of TIFF images only
            is_plain = tags.get(262) in (1, 2) and tags.get(259) not in (6, 7) and set(tags.get(258, (1,))) <= {8, 16}
    except Exception:
        return None
    if found.shape != values.shape or found.dtype != values.dtype or not is_plain:
        return None
    return bool(np.array_equal(found, values))


def compare(path: Path, report: Adoption, store: ps.PartsStore, counts: Counter[str]) -> None:
    adopted = {each.path for each in report.arrays}
    skipped = {each.name: each.reason for each in report.skipped}
    assert all(skipped.values())
    # An image that tifffile cannot read is not adopted.
    if not can_be_read(path):
        counts["damaged"] += 1
        return
    for name, values in images_of(path):
        assert name in adopted or name in skipped, (path, name)
        if name in adopted:
            require_equal(store, name, values)
            counts["equal"] += 1
        else:
            counts["skipped"] += 1
    if "data" in adopted:
        same = is_equal_to_pillow(path, read(store, "data"))
        assert same is not False, path
        counts["equal to Pillow"] += bool(same)


@pytest.mark.slow
def test_images_of_public_samples_are_equal_or_named() -> None:
    counts = Counter[str]()
    reasons = Counter[str]()
    paths = [each for package in PACKAGES for each in sources(package).rglob("*") if is_tiff(each)]
    for path, report, store in adopted_samples(paths, can_be_read, counts):
        compare(path, report, store, counts)
        reasons.update(each.reason[:50] for each in report.skipped)
    print(dict(counts), *reasons.most_common(), sep="\n")
    assert counts["equal"] >= LEAST_EQUAL
    assert counts["equal to Pillow"] >= 20
