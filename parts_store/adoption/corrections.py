"""Run a parser of another package, and correct or report what it gets wrong.

Parsers are recognised by the names of their classes: their modules may not be installed.
"""

import copy
from collections.abc import Callable
from typing import Any, Final, cast

from parts_store.adoption import (
    dmrpp_corrections,
    fits_corrections,
    grib_corrections,
    hdf4_corrections,
    netcdf3_corrections,
)
from parts_store.adoption.parsers import Parser
from parts_store.adoption.report import Skipped
from parts_store.adoption.source_file import BlockReader
from parts_store.backends.existing_files import StoredFile
from parts_store.manifests.group import PartsGroup

_GRIB_FILTERS: Final = ("drop_variables", "only_variables", "filter_by_attrs", "filter_by_variable_attrs")

type Run = Callable[[Parser], PartsGroup]
type Found = tuple[PartsGroup, tuple[Skipped, ...]]


def run_corrected(parser: Parser, run: Run, file: StoredFile, reader: BlockReader) -> Found:
    """Return what a parser finds in a file, without values that it would read wrongly, and what is skipped.

    `run` returns what a parser finds. Raises `AdoptionError` if nothing of the file can be trusted.
    """
    match type(parser).__name__:
        case "HDF4Parser":
            return hdf4_corrections.corrected(run(parser), file)
        case "NetCDF3Parser":
            return netcdf3_corrections.corrected(run(parser), reader)
        case "GribberishParser":
            return _grib(parser, run, reader)
        case "FITSParser":
            return _fits(parser, run, reader)
        case "DMRPPParser":
            return _dmrpp(parser, run, reader)
        case _:
            return run(parser), ()


def _grib(parser: Any, run: Run, reader: BlockReader) -> Found:
    messages = grib_corrections.require_readable(reader)
    group, skipped = grib_corrections.checked(run(parser), messages, reader.location)
    # What the caller did not ask for is not reported.
    return group, () if any(getattr(parser, name, None) for name in _GRIB_FILTERS) else skipped


def _fits(parser: Any, run: Run, reader: BlockReader) -> Found:
    skipped = _asked_for(parser, fits_corrections.find_unreadable(reader))
    return run(_without(parser, skipped)), skipped


def _dmrpp(parser: Any, run: Run, reader: BlockReader) -> Found:
    unreadable, expected = dmrpp_corrections.find_unreadable(reader, parser.group)
    skipped = _asked_for(parser, unreadable)
    group = run(_without(parser, skipped))
    return group, (*skipped, *_asked_for(parser, dmrpp_corrections.left_out(expected, frozenset(group.arrays))))


def _asked_for(parser: Any, skipped: tuple[Skipped, ...]) -> tuple[Skipped, ...]:
    """Return what is skipped, without what the caller leaves out."""
    return tuple(each for each in skipped if each.name not in (parser.skip_variables or ()))


def _without(parser: Any, skipped: tuple[Skipped, ...]) -> Parser:
    """Return the same parser, which leaves out more variables."""
    other = copy.copy(parser)
    other.skip_variables = {*(parser.skip_variables or ()), *(each.name for each in skipped)}
    return cast("Parser", other)
