"""ShownKeys: which keys a listing shows for the stored objects that it finds, decided once for each folder.

A listing shows documents, chunks and everything else that zarr or a user has written. It shows neither parts nor the
objects of the write protocol, nor views of arrays. For the anchor of a chunk it shows the key of the chunk.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from parts_store.engine.steps import Steps
from parts_store.format.keys import (
    PROTOCOL_FOLDER,
    candidate_paths,
    is_protocol_key,
    join,
    may_be_part,
    part_pattern,
    split,
)
from parts_store.format.metadata import ArrayRecord
from parts_store.format.view_keys import may_be_view, viewed_paths
from parts_store.store.catalog import Catalog, CatalogEntry, RecordSource
from parts_store.store.stored_views import is_view


@dataclass(frozen=True, slots=True)
class _ShownArray:
    """An array that keys of a folder may belong to."""

    # Where the key relative to the array starts.
    start: int
    # What the keys of its chunks and parts look like; None for an array without parts, whose keys are all shown.
    pattern: re.Pattern[str] | None
    # The suffix of the anchor.
    anchor: str

    def shown(self, key: str) -> tuple[str, ...] | None:
        """Return the key that a listing shows for a key of the array, if any; None for a key that is not its own."""
        if self.pattern is None:
            return (key,)
        found = self.pattern.fullmatch(key, self.start)
        if found is None:
            return None
        # If the anchor has a suffix, no part has the key of the chunk.
        return (key[: found.end(1)],) if found[2] == self.anchor else ()


@dataclass(frozen=True, slots=True)
class _Folder:
    """The known arrays that the keys directly in a folder may belong to, most likely first."""

    # Those of keys whose name starts with a digit.
    of_numbers: tuple[_ShownArray, ...]
    # Those of keys whose name starts with "c".
    of_letters: tuple[_ShownArray, ...]


class ShownKeys:
    """The keys that one listing shows.

    It remembers which documents it has read, so that one listing reads each document once.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._read: dict[str, CatalogEntry] = {}

    def of(self, keys: Sequence[str]) -> Steps[Sequence[str]]:
        """Return the keys that the listing shows for the objects with these keys, in the same order."""
        if self._catalog.protocol.has_part_nodes:
            # A session keeps no parts beside a chunk.
            return [key for key in keys if not self._catalog.is_hidden(key)]
        shown: list[str] = []
        # Keys that may be parts of arrays that are not known: their places in the result.
        undecided: list[int] = []
        folders: dict[str, _Folder | None] = {}
        for key in keys:
            path, _, name = key.rpartition("/")
            try:
                folder = folders[path]
            except KeyError:
                folder = folders[path] = self._folder(path)
            if folder is None or name == PROTOCOL_FOLDER:
                continue
            first = name[:1]
            arrays = folder.of_letters if first == "c" else folder.of_numbers if first.isdigit() else ()
            for array in arrays:
                if (own := array.shown(key)) is not None:
                    shown += own
                    break
            else:
                if may_be_part(name):
                    undecided.append(len(shown))
                shown.append(key)
        if undecided:
            yield from self._decide(shown, undecided)
        # The key of a part may look like that of a view. It is the key of its chunk by now.
        views = [place for place, key in enumerate(shown) if may_be_view(key)]
        yield from self._hide_views(shown, views)
        return [key for key in shown if key] if undecided or views else shown

    def _folder(self, path: str) -> _Folder | None:
        """Return the arrays that keys in a folder may belong to, None if the folder is one of the write protocol."""
        if PROTOCOL_FOLDER in path and is_protocol_key(path):
            return None
        return _Folder(tuple(self._known(path, "0")), tuple(self._known(path, "c")))

    def _known(self, folder: str, name: str) -> Iterator[_ShownArray]:
        for path in candidate_paths(folder, name):
            record = self._catalog.record(path)
            if record.entry is not None and record.source is not RecordSource.CONSOLIDATED:
                array = _array(path, record.entry)
                yield array
                if array.pattern is None:
                    # All keys that come here are its own.
                    return

    def _decide(self, shown: list[str], undecided: Sequence[int]) -> Steps[None]:
        """Replace keys that may be parts by the keys that the listing shows, and by "" where it shows none.

        Each key is looked for in one array after another. The documents of all arrays of one round are read at once.
        """
        remaining = {place: candidate_paths(*split(shown[place])) for place in undecided}
        while remaining:
            unread = {paths[0]: None for paths in remaining.values() if paths[0] not in self._read}
            self._read |= yield from self._catalog.read_many(tuple(unread))
            for place, (path, *others) in list(remaining.items()):
                own = self._shown_in(path, shown[place])
                if own is None and others:
                    remaining[place] = tuple(others)
                    continue
                del remaining[place]
                if own is not None:
                    shown[place] = "".join(own)

    def _hide_views(self, shown: list[str], places: Sequence[int]) -> Steps[None]:
        """Replace the keys of views by ""."""
        paths = dict.fromkeys(path for place in places for path in viewed_paths(shown[place])[0])
        unread = tuple(path for path in paths if path not in self._read)
        self._read |= yield from self._catalog.read_many(unread)
        for place in places:
            if is_view(shown[place], self._read):
                shown[place] = ""

    def _shown_in(self, path: str, key: str) -> tuple[str, ...] | None:
        entry = self._read[path]
        # What an array without parts, a group or nothing has below it is shown, unless it belongs to another array.
        return _array(path, entry).shown(key) if isinstance(entry, ArrayRecord) else None


def _array(path: str, entry: CatalogEntry) -> _ShownArray:
    start = len(join(path, ""))
    if not isinstance(entry, ArrayRecord):
        return _ShownArray(start, None, "")
    return _ShownArray(
        start, part_pattern(entry.encoding, entry.parts), entry.parts.parts[entry.parts.anchor].key_suffix
    )
