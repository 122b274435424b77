"""Survey: the arrays with parts or shard files below a prefix, and which listed objects belong to their chunks."""

import re
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from parts_store.engine.steps import Entry, Found, Get, Head, List, Listed, Outcome, Steps, content
from parts_store.errors import PartsStoreError, StoreConfigError, describe
from parts_store.format import metadata
from parts_store.format.keys import (
    ARRAY_V2,
    DOCUMENT,
    PROTOCOL_FOLDER,
    Chunk,
    PartPlacement,
    ancestors,
    candidates,
    is_metadata,
    is_probe_key,
    is_protocol_key,
    join,
    may_be_chunk,
    parse_node_key,
    part_pattern,
    side_folder_of,
    split,
)
from parts_store.format.metadata import ArrayRecord
from parts_store.maintenance.report import Finding, Report
from parts_store.transactions.locking import array_locks
from parts_store.transactions.protocol import ChunkProtocol
from parts_store.transactions.rules import Level


@dataclass(slots=True)
class ListedChunk:
    """A chunk in a listing: its parts, and the objects of the write protocol beside it."""

    chunk: Chunk
    parts: dict[int, Entry] = field(default_factory=dict)
    beside: list[Entry] = field(default_factory=list)

    @property
    def looks_complete(self) -> bool:
        """Whether all parts are listed in the right sizes, and no staged copy or journal is beside them."""
        sizes = {part: entry.nbytes for part, entry in self.parts.items()}
        is_right = all(size is None or sizes.get(part) == size for part, size in enumerate(self.chunk.parts.sizes))
        return len(sizes) == len(self.chunk.part_keys) and is_right and not self.beside


@dataclass(slots=True)
class ListedChunks:
    """All chunks in a listing by their keys, and what lies beside chunks that have no parts."""

    chunks: dict[str, ListedChunk] = field(default_factory=dict)
    # The path of the array and the objects, by the folder beside the chunk.
    strays: dict[str, tuple[str, list[Entry]]] = field(default_factory=dict)
    objects: int = 0


@dataclass(frozen=True, slots=True)
class Survey:
    """The arrays with parts below a prefix, and what a listing shows of their chunks."""

    arrays: Mapping[str, ArrayRecord]
    listed: ListedChunks
    # The paths of arrays that cannot be checked, and the reasons.
    not_understood: tuple[tuple[str, str], ...]
    # The documents of part nodes whose array does not exist any more, or was replaced.
    stray_nodes: tuple[str, ...] = ()
    # The paths of arrays that other software would misread, and is not told to refuse.
    unmarked: tuple[str, ...] = ()
    # The files that a writer of a local disk has not finished, by their keys.
    unfinished: Mapping[str, Entry] = field(default_factory=dict)
    # The paths of arrays with lock files, which a process that was killed may have left.
    locked: tuple[str, ...] = ()
    # Why files cannot be read, by their keys: symbolic links without a target, and files without permission.
    unreadable: Mapping[str, str] = field(default_factory=dict)
    # The paths of all other arrays. In a session, their chunks may be references to files.
    plain: tuple[str, ...] = ()

    def report(self, findings: Sequence[Finding], others: Sequence[int] = ()) -> Report:
        """Return the report with these findings; `others` has how many chunks of each plain array were looked at."""
        ordered = tuple(sorted(findings, key=lambda each: (each.chunk_key, each.problem.value)))
        arrays, chunks = len(self.arrays) + len(others), len(self.listed.chunks) + sum(others)
        return Report(ordered, arrays, chunks, self.listed.objects + sum(others), self.not_understood)


def survey_prefix(prefix: str, protocol: ChunkProtocol) -> Steps[Survey]:
    """List everything below a prefix, and read the documents of the arrays there.

    A prefix may be inside an array. What lies beside the chunks of that array then takes a second listing.
    """
    folder = prefix.strip("/")
    if protocol.is_internal(folder):
        raise StoreConfigError("prefix", "the path of a group, of an array, or of chunks", describe(folder))
    entries = yield from list_entries(folder)
    # A listing that follows symbolic links leaves out unfinished files, and links without a target.
    files = (yield from list_entries(folder, through_links=False)) if protocol.has_journal else ()
    unreadable = {entry.key: entry.unreadable for entry in files if entry.unreadable is not None}
    paths = [path for path in _possible_arrays(folder, entries, protocol) if not _is_behind(unreadable, path)]
    arrays, not_understood, others, plain = yield from _read_documents(paths, protocol)
    plain += tuple(above for above, name in (split(entry.key) for entry in entries) if name == ARRAY_V2)
    outer = [path for path in arrays if path != folder and folder.startswith(join(path, ""))]
    for path in outer:
        entries += yield from list_entries(protocol.folder_beside(path))
        if arrays[path].encoding.is_chunk_key(folder.removeprefix(join(path, ""))):
            # The parts of this chunk are not below its key.
            entries += yield from list_entries(split(folder)[0])
    stray_nodes = yield from _find_stray_nodes(entries, protocol)
    strays = tuple(key.removesuffix(DOCUMENT) for key in stray_nodes)
    listed = group_by_chunk([entry for entry in entries if not entry.key.startswith(strays)], arrays)
    if outer:
        listed = _inside(folder, outer, listed)
    unmarked = tuple(path for path, record in arrays.items() if path not in outer and not record.is_safe_for_others)
    unfinished: Mapping[str, Entry] = {}
    locked: tuple[str, ...] = ()
    if protocol.has_journal:
        others |= {split(entry.key)[0] for entry in entries if is_metadata(entry.key)}
        unfinished = find_unfinished(files, arrays, others)
        if protocol.rules.level is not Level.EXCLUSIVE:
            keys = {entry.key for entry in entries}
            locked = tuple(path for path in arrays if not keys.isdisjoint(array_locks(path)))
    return Survey(arrays, listed, not_understood, stray_nodes, unmarked, unfinished, locked, unreadable, plain)


def list_entries(folder: str, *, through_links: bool = True) -> Steps[tuple[Entry, ...]]:
    """List all objects below a folder."""
    (outcome,) = yield (List(folder, "everything below", through_links=through_links),)
    if not isinstance(outcome, Listed):
        raise TypeError(f"a listing was answered with {outcome}")
    return outcome.entries


def group_by_chunk(entries: Iterable[Entry], arrays: Mapping[str, ArrayRecord]) -> ListedChunks:
    """Return which of the listed objects belong to which chunk of these arrays."""
    result = ListedChunks()
    beside: dict[tuple[str, str], list[Entry]] = {}
    for entry in entries:
        if (found := _side_folder(entry.key)) is None:
            _add_part(result, entry, arrays)
        # A writer that died while it probed the server has left an object that belongs to no array.
        elif found[0] in arrays or is_probe_key(entry.key):
            beside.setdefault(found, []).append(entry)
    by_folder = {each.chunk.side_folder: each for each in result.chunks.values()} if beside else {}
    for (array, folder), of_folder in beside.items():
        if folder in by_folder:
            by_folder[folder].beside = of_folder
        else:
            result.strays[folder] = (array, of_folder)
    return result


def _add_part(result: ListedChunks, entry: Entry, arrays: Mapping[str, ArrayRecord]) -> None:
    if (place := _locate(entry.key, arrays)) is None:
        return
    path, relative, part = place
    chunk_key = join(path, relative)
    if chunk_key not in result.chunks:
        result.chunks[chunk_key] = ListedChunk(arrays[path].chunk(path, relative))
    result.chunks[chunk_key].parts[part] = entry
    result.objects += 1


def _inside(folder: str, outer: Sequence[str], listed: ListedChunks) -> ListedChunks:
    """Return the chunks below a folder that is inside the arrays `outer`."""
    strays = {beside: each for beside, each in listed.strays.items() if each[0] not in outer}
    chunks = {key: each for key, each in listed.chunks.items() if f"{key}/".startswith(f"{folder}/")}
    objects = sum(len(each.parts) for each in chunks.values())
    return replace(listed, strays=strays, chunks=chunks, objects=objects)


# --- keys ---------------------------------------------------------------------------------------------------------


def _side_folder(key: str) -> tuple[str, str] | None:
    """Return the path of an array, and the folder beside a chunk that a key is in; None for other keys.

    The lock of a folder counts as in it. The lock of an array does not: the next client that changes or repairs the
    array removes it.
    """
    segments = key.split("/")
    if PROTOCOL_FOLDER not in segments[:-1]:
        return None
    at = segments.index(PROTOCOL_FOLDER)
    array = "/".join(segments[:at])
    if key in array_locks(array):
        return None
    return array, side_folder_of(key) or join(array, f"{PROTOCOL_FOLDER}/{segments[at + 1].removesuffix('.lock')}")


def _locate(key: str, arrays: Mapping[str, ArrayRecord]) -> tuple[str, str, int] | None:
    """Return the array of an object, the key of its chunk relative to the array, and the number of its part."""
    if (node := parse_node_key(key)) is not None:
        record = arrays.get(node.array)
        if record is None or record.placement is not PartPlacement.SPLIT:
            return None
        suffixes = [part.key_suffix for part in record.parts.parts]
        if node.suffix not in suffixes or not record.encoding.is_chunk_key(node.relative):
            return None
        return node.array, node.relative, suffixes.index(node.suffix)
    for path, relative in candidates(key):
        if path in arrays and (place := _locate_in_array(arrays[path], relative)) is not None:
            return path, *place
    return None


def _locate_in_array(record: ArrayRecord, relative: str) -> tuple[str, int] | None:
    """Return the key of a chunk relative to its array, and the number of the part that an object of the array is."""
    if record.placement is not PartPlacement.BESIDE:
        part = record.parts.anchor if record.placement is PartPlacement.SPLIT else 0
        return (relative, part) if record.encoding.is_chunk_key(relative) else None
    for part, each in enumerate(record.parts.parts):
        chunk = relative.removesuffix(each.key_suffix)
        if relative.endswith(each.key_suffix) and record.encoding.is_chunk_key(chunk):
            return chunk, part
    return None


# --- documents ----------------------------------------------------------------------------------------------------


def _document_keys(entries: Sequence[Entry]) -> list[str]:
    return [entry.key for entry in entries if split(entry.key)[1] == DOCUMENT]


def _possible_arrays(folder: str, entries: Sequence[Entry], protocol: ChunkProtocol) -> list[str]:
    """Return the paths that may be arrays: those of the listed documents, the folder, and the folders above it."""
    listed = {split(key)[0] for key in _document_keys(entries) if not protocol.is_part_node(key)}
    return sorted({*listed, folder, *ancestors(folder)})


def _is_behind(unreadable: Container[str], path: str) -> bool:
    """Return whether the document of a path cannot be read, because it or a symbolic link above it cannot be."""
    return any(each in unreadable for each in (join(path, DOCUMENT), path, *ancestors(path)))


def _read_documents(
    paths: Sequence[str], protocol: ChunkProtocol
) -> Steps[tuple[dict[str, ArrayRecord], tuple[tuple[str, str], ...], set[str], tuple[str, ...]]]:
    """Return the arrays with parts at these paths, the paths of wrong documents with the reasons, and all other paths.

    A path without a document is none of them. At last come those of the other paths that are of arrays.
    """
    outcomes = yield tuple(Get(join(path, DOCUMENT), None, "which parts the array has") for path in paths)
    read = [_read_document(path, outcome, protocol) for path, outcome in zip(paths, outcomes, strict=True)]
    arrays = {path: record for path, (record, _) in zip(paths, read, strict=True) if record is not None}
    wrong = tuple((path, why) for path, (_, why) in zip(paths, read, strict=True) if why is not None)
    found = {path for path, outcome in zip(paths, outcomes, strict=True) if isinstance(outcome, Found)}
    others = found - arrays.keys()
    stored = {path: content(outcome) for path, outcome in zip(paths, outcomes, strict=True) if path in others}
    documents = {path: None if each is None else metadata.parse(each) for path, each in stored.items()}
    not_understood = {path for path, _ in wrong}
    plain = tuple(
        path
        for path, each in documents.items()
        if each is not None and metadata.is_array(each) and path not in not_understood
    )
    return arrays, wrong, others, plain


def _read_document(path: str, outcome: Outcome, protocol: ChunkProtocol) -> tuple[ArrayRecord | None, str | None]:
    """Return the record of an array with parts, and why its document is wrong; None for each that does not apply."""
    if (stored := content(outcome)) is None:
        return None, None
    if (document := metadata.parse(stored)) is None:
        return None, f"{join(path, DOCUMENT)!r} is not a JSON object"
    if metadata.is_group(document):
        return None, None
    if not metadata.is_array(document):
        return None, metadata.why_not_opened(document)
    try:
        record = protocol.read_array(document, path) or metadata.read_plain_files(document)
    except PartsStoreError as error:
        return None, str(error)
    return record, metadata.why_not_opened(metadata.complete(document))


def _find_stray_nodes(entries: Sequence[Entry], protocol: ChunkProtocol) -> Steps[tuple[str, ...]]:
    """Return the documents of part nodes that a session lists, although it says that they do not exist."""
    documents = [key for key in _document_keys(entries) if protocol.is_part_node(key)]
    outcomes = (yield tuple(Head(key, "whose parts these are") for key in documents)) if documents else ()
    return tuple(key for key, outcome in zip(documents, outcomes, strict=True) if not isinstance(outcome, Found))


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
