"""Find what VirtualiZarr's parser for FITS files reads wrongly, or refuses, so that the rest of a file is adopted."""

from typing import Any, Final

import numpy as np

from parts_store.adoption.report import Skipped
from parts_store.adoption.source_file import BlockReader

# Cards of the columns of a table that the codec for tables does not apply.
_COLUMN_CARDS: Final = ("TNULL", "TSCAL", "TZERO")


def find_unreadable(reader: BlockReader) -> tuple[Skipped, ...]:
    """Return the units of a FITS file that are not adopted: their names in Zarr, and the reasons."""
    from astropy.io import fits  # noqa: PLC0415 - only files of this format need astropy

    file = reader.buffered()
    file.seek(0)
    skipped, names = [], []
    with fits.open(file, do_not_scale_image_data=True) as units:
        for number, unit in enumerate(units):
            # The names that VirtualiZarr gives.
            name = unit.name or str(number)
            names.append(f"{name}_{number}" if name in names else name)
            if (reason := _reason(unit, fits, file)) is not None:
                skipped.append(Skipped(names[-1], reason))
    return tuple(skipped)


def _reason(unit: Any, fits: Any, file: Any) -> str | None:
    """Return why a unit is not adopted; None if it is, or has no values."""
    header = unit.header
    if header.get("SIMPLE") is False:
        return "it does not conform to the standard: SIMPLE is F"
    if isinstance(unit, fits.CompImageHDU):
        return "a compressed image"
    if isinstance(unit, fits.GroupsHDU):
        return "random groups"
    if isinstance(unit, fits.BinTableHDU):
        return "a binary table: Zarr has no type for its big-endian columns"
    if not header.get("NAXIS"):
        return None
    if isinstance(unit, fits.TableHDU):
        return _reason_of_table(unit, file)
    if not unit.is_image:
        return f"a unit of the type {type(unit).__name__}"
    if not all(header[f"NAXIS{axis + 1}"] for axis in range(header["NAXIS"])):
        return "an axis of length 0"
    return _reason_of_scaled(header)


def _reason_of_scaled(header: Any) -> str | None:
    """Return why the numbers of an image cannot be scaled as VirtualiZarr does it, with a codec for 64-bit floats."""
    scale, zero = float(header.get("BSCALE", 1)), float(header.get("BZERO", 0))
    if (scale, zero) == (1, 0):
        # 64-bit integers would be rounded, even so.
        return _ROUNDED if header["BITPIX"] == 64 and {"BSCALE", "BZERO"} & set(header) else None
    if scale == 0:
        return "BSCALE is 0"
    if header["BITPIX"] == 64:
        return _ROUNDED
    if header["BITPIX"] < 0:
        return "floating-point numbers with BSCALE or BZERO, which would be rounded"
    blank = header.get("BLANK")
    # The mark of missing values, as the codec returns it, and as VirtualiZarr stores it.
    if blank is not None and blank / (1 / scale) + zero != zero + scale * blank:
        return "missing values (BLANK) that cannot be told from others after scaling"
    return None


_ROUNDED: Final = "64-bit integers with BSCALE or BZERO, which would be rounded"


def _reason_of_table(unit: Any, file: Any) -> str | None:
    header = unit.header
    if any(card.startswith(_COLUMN_CARDS) for card in header):
        return "a table with TNULL, TSCAL or TZERO"
    width, rows = header["NAXIS1"], header["NAXIS2"]
    if not width * rows:
        return "a table without rows"
    file.seek(unit.fileinfo()["datLoc"])
    text = np.frombuffer(file.read(width * rows), "S1").reshape(rows, width)
    for number, column in enumerate(unit.columns):
        start = header[f"TBCOL{number + 1}"] - 1
        # VirtualiZarr reads such fields as NaN or fails; in the standard, they are 0.
        fields = text[:, start : start + unit.columns._spans[number]]  # noqa: SLF001 - VirtualiZarr uses it, too
        if column.format[0] != "A" and (fields == b" ").all(1).any():
            return "a table with blank fields"
    return None
