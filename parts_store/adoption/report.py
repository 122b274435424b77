"""What became of a file that was adopted."""

from dataclasses import dataclass
from typing import Any

# So many lines are shown of each kind.
_MAX_SHOWN = 100


@dataclass(frozen=True, slots=True)
class AdoptedArray:
    """An array that can be read as Zarr now."""

    path: str
    shape: tuple[int, ...]
    dtype: str
    chunks: int
    references: int
    nbytes_referenced: int
    # Values and indexes that were written.
    nbytes_written: int


@dataclass(frozen=True, slots=True)
class Skipped:
    """Something in the file that cannot be read as Zarr, and why."""

    name: str
    reason: str
    # Whether there were values, or attributes, that are not to be had now.
    has_values: bool = True


@dataclass(frozen=True, slots=True)
class Adoption:
    """What was adopted of a file, and what was not."""

    location: str
    arrays: tuple[AdoptedArray, ...]
    skipped: tuple[Skipped, ...]
    # Of the file's data; what is written beside it are indexes and small values.
    nbytes_copied: int = 0

    @property
    def is_complete(self) -> bool:
        """Whether everything in the file that has values can be read as Zarr now."""
        return not any(each.has_values for each in self.skipped)

    @property
    def references(self) -> int:
        """How many references into the file there are."""
        return sum(each.references for each in self.arrays)

    @property
    def nbytes_written(self) -> int:
        """How many bytes were written: indexes, and values that were too few for a reference."""
        return sum(each.nbytes_written for each in self.arrays)

    def to_json(self) -> dict[str, Any]:
        """The report as JSON takes it."""
        arrays = [
            {
                "path": each.path,
                "shape": list(each.shape),
                "dtype": each.dtype,
                "chunks": each.chunks,
                "references": each.references,
                "bytes_referenced": each.nbytes_referenced,
                "bytes_written": each.nbytes_written,
            }
            for each in self.arrays
        ]
        skipped = [{"name": each.name, "reason": each.reason} for each in self.skipped]
        return {
            "location": self.location,
            "bytes_copied": self.nbytes_copied,
            "bytes_written": self.nbytes_written,
            "references": self.references,
            "arrays": arrays,
            "skipped": skipped,
        }

    def __str__(self) -> str:
        lines = [
            f"{each.path}: {each.dtype}{list(each.shape)}, {each.chunks:,} chunks in {each.references:,} references"
            for each in self.arrays[:_MAX_SHOWN]
        ]
        lines += [f"skipped: {each.name}: {each.reason}" for each in self.skipped[:_MAX_SHOWN]]
        left = max(0, len(self.arrays) - _MAX_SHOWN) + max(0, len(self.skipped) - _MAX_SHOWN)
        if left:
            lines.append(f"and {left} more")
        referenced = sum(each.nbytes_referenced for each in self.arrays)
        lines.append(
            f"{len(self.arrays)} arrays adopted, {len(self.skipped)} skipped; {referenced:,} bytes referred to, "
            f"{self.nbytes_written:,} bytes of indexes and values written, {self.nbytes_copied:,} bytes copied"
        )
        return "\n".join(lines)
