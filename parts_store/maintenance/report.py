"""Problem, Finding and Report: the results of `verify` and `repair` as values, as text and as JSON."""

from collections import Counter
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal

from parts_store import notebook
from parts_store.text import count, printable

# The number of findings that a report prints.
_MAX_SHOWN = 100


class Problem(Enum):
    """A kind of problem with a stored chunk or array."""

    # A part is missing, and no staged copy has its bytes.
    INCOMPLETE = "incomplete"
    # The parts belong to different writes, and no staged copy completes one of them.
    MIXTURE = "mixture"
    # A part has another size than the metadata document or its tag says.
    WRONG_SIZE = "wrong size"
    # Some parts have a tag and some have none: another program wrote them, or a copy lost their tags.
    PARTLY_TAGGED = "partly tagged"
    # The chunk was written with another layout than its array has now. The writer opened the array before the array was
    # created again.
    OTHER_LAYOUT = "other layout"
    # The bytes do not match their checksum.
    CHECKSUM = "checksum"
    # The chunk exists and cannot be read. A session may list a chunk whose bytes are not available.
    UNREADABLE = "unreadable"
    # A codec fails for the bytes of the chunk, or of an inner chunk of a shard.
    UNDECODABLE = "undecodable"
    # An overwrite was committed, and is not complete in place. This library reads it correctly. Other programs read
    # parts of two writes.
    INTERRUPTED = "interrupted"
    # Parts of a chunk that does not exist.
    ORPHANS = "orphans"
    # Objects of the write protocol beside a chunk. Their writer may still be at work.
    LEFTOVERS = "leftovers"
    # Nodes of parts in a session whose array does not exist any more, or was replaced.
    STRAY_NODES = "stray nodes"
    # Other software wrote the shard of an array whose shards are files. Every Zarr program reads it as it is.
    NO_FILE = "no file"
    # No part has a tag: another program wrote the chunk. It is read as it is.
    UNTAGGED = "untagged"
    # Software without concat-parts would misread the array, and its document does not tell it to refuse the array.
    UNMARKED = "unmarked"

    @property
    def is_damage(self) -> bool:
        """Whether reading the chunk fails."""
        return self in _DAMAGE


_DAMAGE = (
    Problem.INCOMPLETE,
    Problem.MIXTURE,
    Problem.WRONG_SIZE,
    Problem.PARTLY_TAGGED,
    Problem.OTHER_LAYOUT,
    Problem.CHECKSUM,
    Problem.UNREADABLE,
    Problem.UNDECODABLE,
)
# Neither damage nor something that `repair` would change unless the caller asks for it.
_HARMLESS = (Problem.UNTAGGED, Problem.UNMARKED)
_WRITE_OR_DELETE = "write the chunk again, or delete it: `repair` with drop_incomplete"
# What to do next.
_NEXT = {
    Problem.INCOMPLETE: _WRITE_OR_DELETE,
    Problem.MIXTURE: "copy or write the chunk again; after a mirror, try `repair` with retag",
    Problem.WRONG_SIZE: _WRITE_OR_DELETE,
    Problem.PARTLY_TAGGED: "`repair` with retag if its parts belong together, otherwise write the chunk again",
    Problem.OTHER_LAYOUT: _WRITE_OR_DELETE,
    Problem.CHECKSUM: "write the chunk again from its source",
    Problem.UNREADABLE: "restore the file, its permission or the target of the link, or write the chunk again",
    Problem.UNDECODABLE: "write the chunk again from its source, or delete its key",
    Problem.INTERRUPTED: "`repair` completes it",
    Problem.ORPHANS: "if the main part was lost, restore it first; then `repair` removes the others",
    Problem.LEFTOVERS: "`repair` removes them if their writer has ended",
    Problem.STRAY_NODES: "`repair` removes them",
    Problem.NO_FILE: "`repair` makes a file of it",
    Problem.UNTAGGED: "nothing, it is read correctly; `repair` with retag adds tags",
    Problem.UNMARKED: "`repair` with must_understand adds the mark",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem with a chunk, and whether it was repaired.

    Parameters
    ----------
    problem
        The kind of problem.
    chunk_key
        The key of the chunk; the path of the array if the problem is with the array; the folder beside a chunk if
        nothing else of that chunk exists.
    keys
        The keys of the objects that are missing, wrong or left over.
    detail
        The problem in words.
    is_repaired
        Whether `repair` has solved the problem.
    is_deleted
        Whether `repair` has solved it by deleting the chunk, as `drop_incomplete` asks for. Its data is lost.
    """

    problem: Problem
    chunk_key: str
    keys: tuple[str, ...]
    detail: str
    is_repaired: bool = False
    is_deleted: bool = False

    @property
    def label(self) -> str:
        """The problem, and whether it was repaired, as text."""
        result = ", deleted" if self.is_deleted else ", repaired" if self.is_repaired else ""
        return f"{self.problem.value}{result}"

    @property
    def advice(self) -> str:
        """What to do next, as text."""
        if self.is_deleted:
            return "write the chunk again; until then it is read as fill values"
        return "nothing to do" if self.is_repaired else _NEXT[self.problem]

    @property
    def state(self) -> Literal["good", "open", "bad"]:
        """The state in which the finding is shown: repaired, to be repaired, or damage."""
        if self.is_repaired and not self.is_deleted:
            return "good"
        return "bad" if self.problem.is_damage and not self.is_deleted else "open"

    def to_json(self) -> dict[str, Any]:
        """Return the finding as JSON values."""
        return {
            "problem": self.problem.value,
            "chunk_key": self.chunk_key,
            "keys": list(self.keys),
            "detail": self.detail,
            "repaired": self.is_repaired,
            "deleted": self.is_deleted,
            "advice": self.advice,
        }


@dataclass(frozen=True, slots=True)
class Report:
    """A report on all chunks of arrays with parts, or whose shards are files, below a prefix.

    Parameters
    ----------
    findings
        The problems that were found.
    arrays
        The number of these arrays.
    chunks
        The number of their chunks.
    objects
        The number of objects that the chunks consist of.
    not_understood
        The paths of arrays that could not be checked, each with the reason.

    Examples
    --------
    >>> store = ps.PartsStore.from_url("memory://")
    >>> array = ps.create_array(
    ...     store, "a", parts=[ps.Part("", size=4), ps.Part(".tail")], shape=(8,), chunks=(4,), dtype="int32"
    ... )
    >>> array[:] = 7
    >>> report = store.verify()
    >>> print(report)
    1 array checked, 2 chunks, 4 objects
    no problems found
    >>> report.is_damaged, report.is_clean
    (False, True)
    """

    findings: tuple[Finding, ...]
    arrays: int
    chunks: int
    objects: int
    not_understood: tuple[tuple[str, str], ...] = ()

    @property
    def is_damaged(self) -> bool:
        """Whether a chunk or an array cannot be read, and was not repaired."""
        damaged = (each.problem.is_damage and not each.is_repaired for each in self.findings)
        return bool(self.not_understood) or any(damaged)

    @property
    def is_clean(self) -> bool:
        """Whether there is nothing to repair.

        Chunks of other programs (`UNTAGGED`) need no repair, nor do documents that do not tell other software to refuse
        the array (`UNMARKED`).
        """
        open_ones = (each.problem not in _HARMLESS and not each.is_repaired for each in self.findings)
        return not self.not_understood and not any(open_ones)

    @property
    def counts(self) -> dict[str, int]:
        """The number of findings for each problem."""
        found = Counter(each.problem for each in self.findings)
        return {each.value: found[each] for each in Problem if each in found}

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return {
            "damaged": self.is_damaged,
            "clean": self.is_clean,
            "arrays": self.arrays,
            "chunks": self.chunks,
            "objects": self.objects,
            "findings": [each.to_json() for each in self.findings],
            "not_understood": [{"array": path, "problem": problem} for path, problem in self.not_understood],
        }

    @property
    def worst_first(self) -> tuple[Finding, ...]:
        """The findings to print: at most a hundred, damage first."""
        ordered = sorted(self.findings, key=lambda each: not each.problem.is_damage or each.is_repaired)
        return tuple(ordered[:_MAX_SHOWN])

    @property
    def omitted(self) -> str:
        """A line that counts the findings not in `worst_first`; empty if there are none."""
        if len(self.findings) <= _MAX_SHOWN:
            return ""
        counts = ", ".join(f"{number} {problem}" for problem, number in self.counts.items())
        return f"and {len(self.findings) - _MAX_SHOWN} more; all together: {counts}"

    @property
    def _counted(self) -> str:
        chunks, objects = count(self.chunks, "chunk"), count(self.objects, "object")
        return f"{count(self.arrays, 'array')} checked, {chunks}, {objects}"

    def __str__(self) -> str:
        shown = (
            f"{each.label}: {each.chunk_key}: {each.detail}: {', '.join(each.keys)} -> {each.advice}"
            for each in self.worst_first
        )
        lines = [self._counted, *shown, *filter(None, [self.omitted])]
        lines += [f"not understood: {path or '/'}: {problem}" for path, problem in self.not_understood]
        return "\n".join([*map(printable, lines), self._verdict])

    @property
    def _verdict(self) -> str:
        if self.is_damaged:
            return "damaged"
        if not self.is_clean:
            open_ones = {each.problem for each in self.findings if not each.is_repaired}
            repairs = (
                (Problem.INTERRUPTED, "complete interrupted overwrites"),
                (Problem.NO_FILE, "make files of shards again"),
            )
            repair = next((what for problem, what in repairs if problem in open_ones), "remove leftovers")
            return f"nothing is damaged; `repair` would {repair}"
        if deleted := sum(each.is_deleted for each in self.findings):
            return f"nothing is damaged now; {count(deleted, 'damaged chunk')} deleted"
        return "no problems found" if self.arrays else "no arrays with parts or shard files"

    def _repr_html_(self) -> str:
        rows = [
            (each.label, each.chunk_key, f"{each.detail}: {', '.join(each.keys)}", each.advice)
            for each in self.worst_first
        ]
        rows += [("not understood", path or "/", problem, "") for path, problem in self.not_understood]
        states = [each.state for each in self.worst_first] + ["bad"] * len(self.not_understood)
        state = "bad" if self.is_damaged else "good" if self.is_clean else "open"
        columns = ("problem", "chunk", "detail", "what to do")
        note = "\n".join(filter(None, (self.omitted, self._counted)))
        return notebook.grid(f"Report: {self._verdict}", columns, rows, note=note, states=states, state=state)
