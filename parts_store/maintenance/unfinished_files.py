"""Files that a writer of a local disk had not finished when its process was killed: find and report them.

A value without parts is written to a file beside its own, whose name ends in `#` and a number, and which is then
renamed. Neither the listings of obstore nor those of a store show such files.
"""

import re
from collections.abc import Container, Iterable, Mapping
from typing import Final

from parts_store.engine.steps import Entry
from parts_store.format.keys import candidates, is_metadata, is_protocol_key, may_be_chunk, part_pattern
from parts_store.format.metadata import ArrayRecord
from parts_store.maintenance.report import Finding, Problem

_UNFINISHED: Final = re.compile(r"(?P<key>.*[^/])#[0-9]+")


def find_unfinished(
    files: Iterable[Entry], arrays: Mapping[str, ArrayRecord], others: Container[str]
) -> dict[str, Entry]:
    """Return the unfinished ones among all files of a local disk by their keys: of metadata documents, and of chunks.

    `arrays` are the arrays with parts, `others` the paths of other arrays and groups. Other files with such a name
    belong to other programs.
    """
    return {entry.key: entry for entry in files if _is_unfinished(entry.key, arrays, others)}


def _is_unfinished(key: str, arrays: Mapping[str, ArrayRecord], others: Container[str]) -> bool:
    if (found := _UNFINISHED.fullmatch(key)) is None:
        return False
    value = found["key"]
    if is_metadata(value) or is_protocol_key(value):
        return True
    for path, relative in candidates(value):
        if (record := arrays.get(path)) is not None:
            is_chunk = part_pattern(record.encoding, record.parts).fullmatch(relative) is not None
        else:
            is_chunk = path in others and may_be_chunk(relative)
        if is_chunk:
            return True
    return False


def describe_unfinished(key: str) -> Finding:
    """Return the finding for an unfinished file."""
    value = key.rpartition("#")[0]
    return Finding(Problem.LEFTOVERS, value, (key,), "a file that a writer has not finished")
