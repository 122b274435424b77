"""The report of an adoption: which arrays were adopted, and what was skipped."""

import dataclasses
from dataclasses import dataclass
from typing import Any

from parts_store import notebook
from parts_store.text import count
from parts_store.virtual.store_access import opening_call

# The largest number of lines of each kind that are shown.
_MAX_SHOWN = 100


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

    @property
    def line(self) -> str:
        """The array as a line of text."""
        written = f", {count(self.chunks_written, 'chunk')} written" if self.chunks_written else ""
        plan = f" ({self.plan})" if self.plan else ""
        loaded = f"; loaded: {self.loaded}" if self.loaded else ""
        chunks = f"{count(self.chunks, 'chunk')} in {count(self.references, 'reference')}"
        return f"{self.path}: {self.dtype}{list(self.shape)}, {chunks}{written}{plan}{loaded}"


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
        The number of bytes of the file that were copied, without indexes and small values.
    failed : tuple of Skipped
        The files that could not be parsed and were skipped, and why.
    folders : tuple of str
        The URLs of all folders and buckets that the repository may refer to, also those of earlier adoptions. A
        repository has to be opened with them.
    needs : tuple of str
        The packages that readers need for the codecs of the files, besides parts_store.
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
    needs: tuple[str, ...] = ()
    unchecked: tuple[str, ...] = ()

    @property
    def is_complete(self) -> bool:
        """Whether everything in the files that has values was adopted."""
        return not any(each.has_values for each in self.skipped) and not self.failed

    @property
    def loaded(self) -> tuple[AdoptedArray, ...]:
        """The arrays whose values were loaded from the files and stored, because zarr cannot decode their bytes."""
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
        return [
            f"repository = {opening_call(url, self.folders, has_options=has_options)}",
            f"store = ps.PartsStore.from_session(repository.readonly_session({branch!r}))",
            f"dataset = xr.open_zarr(store{group}, consolidated=False)",
        ]

    def to_json(self) -> dict[str, Any]:
        """Return the report as a JSON object."""
        arrays = [
            {name.replace("nbytes", "bytes"): value for name, value in dataclasses.asdict(array).items()}
            | {"shape": list(array.shape)}
            for array in self.arrays
        ]
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
        lines += [f"not checked: compare some values of {each} with another library" for each in self.unchecked]
        left = sum(max(0, len(each) - _MAX_SHOWN) for each in (self.arrays, self.skipped, self.failed))
        if left:
            lines.append(f"and {left} more")
        referenced = sum(each.nbytes_referenced for each in self.arrays)
        loaded = f", {len(self.loaded)} of them loaded" if self.loaded else ""
        failed = f", {count(len(self.failed), 'file')} failed" if self.failed else ""
        lines.append(
            f"{count(len(self.arrays), 'array')} adopted{loaded}, {len(self.skipped)} skipped{failed}; "
            f"{referenced:,} bytes referred to, {self.nbytes_written:,} bytes of indexes and values written, "
            f"{self.nbytes_copied:,} bytes copied"
        )
        return lines

    def __str__(self) -> str:
        how = [f"to open it: {opening_call(None, self.folders)}"] if self.folders else []
        needs = [f"to read it: pip install {' '.join(self.needs)}"] if self.needs else []
        return "\n".join([*self.lines(), *how, *needs])

    def _repr_html_(self) -> str:
        rows = [
            (
                each.path or "/",
                f"{each.dtype} {list(each.shape)}",
                f"{each.chunks:,}",
                f"{each.references:,}",
                each.loaded,
            )
            for each in self.arrays[:_MAX_SHOWN]
        ]
        rows += [(each.name, f"skipped: {each.reason}", "", "", "") for each in self.skipped[:_MAX_SHOWN]]
        rows += [(each.name, f"failed: {each.reason}", "", "", "") for each in self.failed[:_MAX_SHOWN]]
        caption = f"Adoption of {self.location}: {'complete' if self.is_complete else 'not complete'}"
        columns = ("array", "type and shape", "chunks", "references", "loaded, because")
        return notebook.grid(caption, columns, rows, note=self.lines()[-1])
