"""The report of an adoption: which arrays were adopted, and what was skipped."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from parts_store import notebook
from parts_store.text import count, size
from parts_store.virtual.store_access import opening_call

# The largest number of lines of each kind that are shown.
_MAX_SHOWN: Final = 100
# About how many bytes of a manifest a reference takes, and a chunk in the index of a shard: docs/adoption/costs.md.
_REFERENCE_NBYTES: Final = 19
_INDEXED_NBYTES: Final = 5
# What takes part in reading plain references, whatever their codecs are.
_PLAIN_READERS: Final = ("zarr", "icechunk")
# What readers of a rectilinear grid have to set.
_RECTILINEAR: Final = "{'array.rectilinear_chunks': True}"

type Form = Literal["plain", "rectilinear", "shards", "parts", "values", ""]
"""How an array is stored: as an ordinary array of references, on a rectilinear grid, in shards, in parts; or as values.

Empty for an array that was not written.
"""


@dataclass(frozen=True, slots=True)
class OtherForm:
    """What the references of an array would be in the other form: in shards, or as plain references.

    Parameters
    ----------
    form : str
        `"shards"` or `"plain"`.
    references : int
        The number of references to files.
    nbytes_manifests : int
        About how many bytes of manifests and indexes they would take.

    Examples
    --------
    >>> from parts_store.adoption import OtherForm
    >>> OtherForm.of("plain", 1_000_000, 1_000_000).nbytes_manifests
    19000000
    """

    form: Literal["plain", "shards"]
    references: int
    nbytes_manifests: int

    @classmethod
    def of(cls, form: Literal["plain", "shards"], references: int, chunks: int) -> "OtherForm":
        """Return the form of so many references to so many chunks.

        Parameters
        ----------
        form
            `"shards"` or `"plain"`.
        references
            The number of references to files.
        chunks
            The number of chunks that they stand for.
        """
        return cls(form, references, manifest_nbytes(form, references, chunks))


def manifest_nbytes(form: Form, references: int, chunks: int) -> int:
    """Return about how many bytes of manifests and indexes references to chunks take in a form."""
    return _REFERENCE_NBYTES * references + (_INDEXED_NBYTES * chunks if form == "shards" else 0)


@dataclass(frozen=True, slots=True)
class AdoptedArray:
    """An array that was adopted.

    Parameters
    ----------
    path : str
        The path of the array in the store.
    shape : tuple of int
        The shape of the array.
    dtype : str
        The data type of the values, in the byte order of the file.
    chunks : int
        The number of chunks in the file.
    references : int
        The number of references into the file.
    nbytes_referenced : int
        The number of bytes of the file that are chunks of the array.
    nbytes_written : int
        The number of bytes of indexes and values that were written.
    plan : str
        Whether the chunks were grouped into shards, and why.
    loaded : str
        Why values were loaded from the file and stored, or chunks encoded again; empty if all chunks are references,
        or the values are few.
    chunks_written : int
        The number of chunks that were written, because no reference to them is possible.
    form : str
        How the array is stored: `"plain"` references, an ordinary array of Zarr; `"rectilinear"` for the same with
        chunks of several lengths along an axis; `"shards"`; `"parts"` for chunks that are put together of several
        ranges; `"values"` if none of it refers to a file; empty if the array was not written.
    needs : tuple of str
        The packages that register codecs of the array, besides zarr.
    nbytes_copied : int
        The number of bytes of values that were copied from the files.
    nbytes_manifests : int
        About how many bytes the references take in manifests and indexes.
    other : OtherForm, optional
        What the other form would take. None if the array cannot have it, or would gain nothing by it.

    Examples
    --------
    >>> from parts_store.virtual.report import AdoptedArray
    >>> AdoptedArray("x", (6,), "int64", 3, 1, 48, 52).references
    1
    """

    path: str
    shape: tuple[int, ...]
    dtype: str
    chunks: int
    references: int
    nbytes_referenced: int
    nbytes_written: int
    plan: str = ""
    loaded: str = ""
    chunks_written: int = 0
    form: Form = ""
    needs: tuple[str, ...] = ()
    nbytes_copied: int = 0
    nbytes_manifests: int = 0
    other: OtherForm | None = None

    @property
    def readers(self) -> tuple[str, ...]:
        """The packages that read the array together: this one alone, or zarr and icechunk with those for its codecs."""
        if not self.form:
            return ()
        return ("parts_store",) if self.form in ("shards", "parts") else (*_PLAIN_READERS, *self.needs)

    @property
    def line(self) -> str:
        """The array as a line of text."""
        written = f", {count(self.chunks_written, 'chunk')} written" if self.chunks_written else ""
        plan = f" ({self.plan})" if self.plan else ""
        why = f"; copied because: {self.loaded}" if self.loaded else ""
        if self.references or not self.nbytes_copied:
            chunks = f"{count(self.chunks, 'chunk')} in {count(self.references, 'reference')}"
        else:
            chunks, written = f"{size(self.nbytes_copied)} copied", ""
        return f"{self.path}: {self.dtype}{list(self.shape)}, {chunks}{written}{plan}{why}"


@dataclass(frozen=True, slots=True)
class Skipped:
    """A dataset, a group or an attribute that was not adopted.

    Parameters
    ----------
    name : str
        The name in the file.
    reason : str
        Why it was not adopted.
    has_values : bool
        Whether values or attributes are lost. A netCDF dimension without a variable has none.

    Examples
    --------
    >>> from parts_store.virtual.report import Skipped
    >>> print(Skipped("lists", "values of a type that Zarr has none for").reason)
    values of a type that Zarr has none for
    """

    name: str
    reason: str
    has_values: bool = True


@dataclass(frozen=True, slots=True)
class Adoption:
    """A report of what was adopted from files, and what was not.

    Parameters
    ----------
    location : str
        The URL of the file, without passwords; of several files, the first and the number of the others.
    arrays : tuple of AdoptedArray
        The arrays that were adopted.
    skipped : tuple of Skipped
        What was not adopted, and why.
    nbytes_copied : int
        The number of bytes that were copied: of a file, or of values that are stored and not referred to.
    failed : tuple of Skipped
        The files that could not be parsed and were skipped, and why.
    folders : tuple of str
        The URLs of all folders and buckets that the repository may refer to, also those of earlier adoptions. A
        repository has to be opened with them.
    unchecked : tuple of str
        The parsers of other packages that found the arrays, and whose values were not compared with another library.

    Examples
    --------
    >>> from parts_store.virtual.report import AdoptedArray, Adoption
    >>> array = AdoptedArray("x", (6,), "int64", 3, 1, 48, 52)
    >>> report = Adoption("s3://bucket/file.h5", (array,), ())
    >>> report.is_complete, report.references, report.nbytes_copied
    (True, 1, 0)
    """

    location: str
    arrays: tuple[AdoptedArray, ...]
    skipped: tuple[Skipped, ...]
    nbytes_copied: int = 0
    failed: tuple[Skipped, ...] = ()
    folders: tuple[str, ...] = ()
    unchecked: tuple[str, ...] = ()

    @property
    def needs(self) -> tuple[str, ...]:
        """The packages that readers need for the codecs of the files, besides parts_store."""
        return tuple(sorted({package for each in self.arrays for package in each.needs} - {"parts_store"}))

    @property
    def is_complete(self) -> bool:
        """Whether everything in the files that has values was adopted."""
        return not any(each.has_values for each in self.skipped) and not self.failed

    @property
    def loaded(self) -> tuple[AdoptedArray, ...]:
        """The arrays that have values copied from the files, because zarr cannot decode the bytes of some chunks."""
        return tuple(each for each in self.arrays if each.loaded)

    @property
    def references(self) -> int:
        """The number of references into the file."""
        return sum(each.references for each in self.arrays)

    @property
    def nbytes_written(self) -> int:
        """The number of bytes of indexes and small values that were written."""
        return sum(each.nbytes_written for each in self.arrays)

    def how_to_open(self, url: str, *, path: str = "", branch: str = "main", has_options: bool = False) -> list[str]:
        """Return lines of Python that open what was adopted as a dataset.

        Parameters
        ----------
        url : str
            The URL of the repository.
        path : str
            The path of the group.
        branch : str
            The branch of the repository.
        has_options : bool
            Whether the repository needs options of obstore, which are not shown.
        """
        group = f", group={path!r}" if path else ""
        settings = (
            [f"zarr.config.set({_RECTILINEAR})"] if any(each.form == "rectilinear" for each in self.arrays) else []
        )
        return [
            *settings,
            f"repository = {opening_call(url, self.folders, has_options=has_options)}",
            f"store = ps.PartsStore.from_session(repository.readonly_session({branch!r}))",
            f"dataset = xr.open_zarr(store{group}, consolidated=False)",
        ]

    def to_json(self) -> dict[str, Any]:
        """Return the report as a JSON object."""
        arrays = [_as_json(dataclasses.asdict(array)) | {"readers": list(array.readers)} for array in self.arrays]
        skipped = [{"name": each.name, "reason": each.reason} for each in self.skipped]
        return {
            "location": self.location,
            "bytes_copied": self.nbytes_copied,
            "bytes_written": self.nbytes_written,
            "references": self.references,
            "arrays": arrays,
            "skipped": skipped,
            "failed": [{"name": each.name, "reason": each.reason} for each in self.failed],
            "folders": list(self.folders),
            "needs": list(self.needs),
            "unchecked": list(self.unchecked),
        }

    def lines(self) -> list[str]:
        """Return the report as lines of text."""
        lines = [each.line for each in self.arrays[:_MAX_SHOWN]]
        lines += [f"skipped: {each.name}: {each.reason}" for each in self.skipped[:_MAX_SHOWN]]
        lines += [f"failed: {each.name}: {each.reason}" for each in self.failed[:_MAX_SHOWN]]
        return lines + self._after_rows()

    def _after_rows(self) -> list[str]:
        """Return the lines after those of arrays and of what was skipped."""
        lines = [f"not checked: compare some values of {each} with another library" for each in self.unchecked]
        left = sum(max(0, len(each) - _MAX_SHOWN) for each in (self.arrays, self.skipped, self.failed))
        if left:
            lines.append(f"and {left} more")
        referenced = sum(each.nbytes_referenced for each in self.arrays)
        failed = f", {count(len(self.failed), 'file')} failed" if self.failed else ""
        written = self.nbytes_written - sum(each.nbytes_copied for each in self.arrays)
        summary = (
            f"{count(len(self.arrays), 'array')} adopted{self._copied_arrays()}, {len(self.skipped)} skipped{failed}; "
            f"{count(self.references, 'reference')} to {referenced:,} bytes, "
            f"{written:,} bytes of indexes and documents written, {self.nbytes_copied:,} bytes copied"
        )
        return [*lines, *self.form_lines(), summary]

    def _copied_arrays(self) -> str:
        """Return how many arrays have copied values; an empty text if there are none."""
        copied = [each for each in self.arrays if each.nbytes_copied]
        partly = sum(each.references > 0 for each in copied)
        shown = [(len(copied) - partly, "with copied values"), (partly, "with some chunks copied")]
        return "".join(f", {number} {what}" for number, what in shown if number)

    def form_lines(self) -> list[str]:
        """Return a line for each form that arrays were written in: who reads them, and what the other form takes."""
        groups: dict[tuple[Form, tuple[str, ...]], list[AdoptedArray]] = {}
        for each in self.arrays:
            if each.form:
                groups.setdefault((each.form, each.readers), []).append(each)
        return [_form_line(form, readers, arrays) for (form, readers), arrays in groups.items()]

    def __str__(self) -> str:
        return "\n".join([*self.lines(), *self._how()])

    def _how(self) -> list[str]:
        """Return how the repository is opened, and what its readers need."""
        how = [f"to open it: {opening_call(None, self.folders)}"] if self.folders else []
        return how + ([f"to read it: pip install {' '.join(self.needs)}"] if self.needs else [])

    def _repr_html_(self) -> str:
        rows = [
            (
                each.path or "/",
                f"{each.dtype} {list(each.shape)}",
                f"{each.chunks:,}",
                f"{each.references:,}",
                each.form,
                each.loaded,
            )
            for each in self.arrays[:_MAX_SHOWN]
        ]
        rows += [(each.name, f"skipped: {each.reason}", "", "", "", "") for each in self.skipped[:_MAX_SHOWN]]
        rows += [(each.name, f"failed: {each.reason}", "", "", "", "") for each in self.failed[:_MAX_SHOWN]]
        states = ["good"] * len(self.arrays[:_MAX_SHOWN])
        states += ["open" if each.has_values else "good" for each in self.skipped[:_MAX_SHOWN]]
        states += ["bad"] * len(self.failed[:_MAX_SHOWN])
        caption = f"Adoption of {self.location}: {'complete' if self.is_complete else 'not complete'}"
        columns = ("array", "type and shape", "chunks", "references", "form", "copied, because")
        note = "\n".join([*self._after_rows(), *self._how()])
        return notebook.grid(
            caption, columns, rows, note=note, states=states, state="good" if self.is_complete else "open"
        )


def _as_json(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a part of a report in JSON."""
    return {
        name.replace("nbytes", "bytes"): list(value)
        if isinstance(value, tuple)
        else _as_json(value)
        if isinstance(value, dict)
        else value
        for name, value in fields.items()
    }


def _form_line(form: Form, readers: Sequence[str], arrays: Sequence[AdoptedArray]) -> str:
    """Return who reads the arrays of one form, and what those of them that could have the other form would take."""
    who = f"readable with {', '.join(readers[:-1])} and {readers[-1]}" if len(readers) > 1 else "for parts_store only"
    if form == "rectilinear":
        who += f" after zarr.config.set({_RECTILINEAR})"
    if form == "values":
        return f"copied values: {count(len(arrays), 'array')}, {who}"
    names = {
        "plain": "plain references",
        "rectilinear": "references on a rectilinear grid",
        "shards": "shards",
        "parts": "chunks of several parts",
    }
    references, nbytes = (
        sum(values) for values in zip(*((a.references, a.nbytes_manifests) for a in arrays), strict=True)
    )
    line = (
        f"{names[form]}: {count(len(arrays), 'array')}, {count(references, 'reference')}, about {size(nbytes)}, {who}"
    )
    others = [(array.references, array.other) for array in arrays if array.other is not None]
    if not others:
        return line
    after = sum(other.references for _, other in others)
    about = size(sum(other.nbytes_manifests for _, other in others))
    if form == "shards":
        return f"{line}; as plain references (`shard_chunks=1`) they would be {after:,}, about {about}"
    before = sum(references for references, _ in others)
    in_shards = f"{before:,} of them would be {after:,}, about {about}, for parts_store only"
    return f"{line}; in shards (`shard_chunks=4095`) {in_shards}"
