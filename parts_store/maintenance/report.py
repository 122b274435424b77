"""Report: what `verify` and `repair` found, as values, as text and as JSON."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

from parts_store.maintenance.diagnosis import Finding, Problem

# How many findings a report shows in words.
_MAX_SHOWN = 100


@dataclass(frozen=True, slots=True)
class Report:
    """What a look at everything below a prefix found, and what of it was put right."""

    findings: tuple[Finding, ...]
    arrays: int
    chunks: int
    objects: int
    # Arrays that could not be looked at, and why.
    not_understood: tuple[tuple[str, str], ...] = ()

    @property
    def is_damaged(self) -> bool:
        """Whether something cannot be read, and was not put right."""
        return bool(self.not_understood) or any(each.problem.is_damage and not each.is_mended for each in self.findings)

    @property
    def is_tidy(self) -> bool:
        """Whether there is nothing to put right; that another program wrote a chunk is nothing of the kind.

        Neither is that a document does not tell other software to refuse the array.
        """
        harmless = (Problem.UNTAGGED, Problem.UNMARKED)
        wrong = [each for each in self.findings if each.problem not in harmless and not each.is_mended]
        return not wrong and not self.not_understood

    @property
    def counts(self) -> dict[str, int]:
        """How many findings there are of each kind."""
        found = Counter(each.problem for each in self.findings)
        return {each.value: found[each] for each in Problem if each in found}

    def to_json(self) -> dict[str, Any]:
        """The report as JSON takes it."""
        findings = [
            {
                "problem": each.problem.value,
                "chunk_key": each.chunk_key,
                "keys": list(each.keys),
                "detail": each.detail,
                "mended": each.is_mended,
            }
            for each in self.findings
        ]
        counts = {"arrays": self.arrays, "chunks": self.chunks, "objects": self.objects}
        not_understood = [{"array": path, "problem": problem} for path, problem in self.not_understood]
        verdict = {"damaged": self.is_damaged, "tidy": self.is_tidy}
        return {**verdict, **counts, "findings": findings, "not_understood": not_understood}

    @property
    def worst_first(self) -> tuple[Finding, ...]:
        """The findings to show in words: at most a hundred, damage before the rest, so that it is not overlooked."""
        ordered = sorted(self.findings, key=lambda each: not each.problem.is_damage or each.is_mended)
        return tuple(ordered[:_MAX_SHOWN])

    @property
    def left_out(self) -> str:
        """How many findings are not in `worst_first`, and how many there are of each kind; empty if there are none."""
        if len(self.findings) <= _MAX_SHOWN:
            return ""
        counts = ", ".join(f"{count} {problem}" for problem, count in self.counts.items())
        return f"and {len(self.findings) - _MAX_SHOWN} more; all together: {counts}"

    def __str__(self) -> str:
        counts = (_count(self.arrays, "array"), _count(self.chunks, "chunk"), _count(self.objects, "object"))
        lines = [f"{counts[0]} with parts, {counts[1]}, {counts[2]}"]
        for each in self.worst_first:
            mended = ", repaired" if each.is_mended else ""
            lines.append(f"{each.problem.value}{mended}: {each.chunk_key}: {each.detail}: {', '.join(each.keys)}")
        if self.left_out:
            lines.append(self.left_out)
        lines += [f"not understood: {path or '/'}: {problem}" for path, problem in self.not_understood]
        return "\n".join([*map(_one_line, lines), self._verdict])

    @property
    def _verdict(self) -> str:
        if self.is_damaged:
            return "damaged"
        if not self.is_tidy:
            return "nothing is damaged; `repair` would remove leftovers"
        return "no problems found" if self.arrays else "no arrays with parts"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _one_line(text: str) -> str:
    """Return text with control characters escaped, which keys may hold."""
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)
