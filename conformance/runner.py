"""Run a reader on the cases of the kit, and say for each case whether the reader did what is expected."""

import json
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from conformance.cases import Case


@dataclass(frozen=True, slots=True)
class Answer:
    """What a reader has said about one array."""

    is_read: bool
    # The class of the error, None if the reader did not name one.
    name: str | None = None
    message: str = ""
    # Whether the reader was too slow, or ended before it could answer.
    is_lost: bool = False


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one case: what is wrong, None if nothing is."""

    case: Case
    problem: str | None


def judge(case: Case, answer: Answer, written: Path) -> Result:
    """Return whether an answer, and what the reader has written, are as expected."""
    if answer.is_lost:
        return Result(case, f"no answer: {answer.message}")
    if case.error is None:
        named = "" if answer.name is None else f"{answer.name}: "
        return Result(case, case.difference(written) if answer.is_read else f"refused: {named}{answer.message}")
    if answer.is_read:
        return Result(case, f"read, in place of the error {case.error}")
    if answer.name is not None and answer.name != case.error:
        return Result(case, f"the error {answer.name} in place of {case.error}: {answer.message}")
    return Result(case, None)


def run_each(command: Sequence[str], cases: Iterable[Case], timeout: float) -> list[Result]:
    """Start the reader once for each case: `COMMAND FOLDER ARRAY OUT.npy`."""
    results = []
    with TemporaryDirectory(prefix="conformance-") as folder:
        for number, case in enumerate(cases):
            written = Path(folder) / f"{number}.npy"
            results.append(judge(case, _ask(command, case, written, timeout), written))
            written.unlink(missing_ok=True)
    return results


def _ask(command: Sequence[str], case: Case, written: Path, timeout: float) -> Answer:
    try:
        ended = subprocess.run(
            [*command, str(case.folder), case.array, str(written)],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Answer(is_read=False, message=f"not within {timeout:g} s", is_lost=True)
    lines = ended.stderr.strip().splitlines()
    if ended.returncode < 0:
        return Answer(is_read=False, message=f"ended by signal {-ended.returncode}", is_lost=True)
    named = lines.pop().removeprefix("class: ") if lines and lines[-1].startswith("class: ") else None
    message = lines[-1] if lines else f"exit code {ended.returncode}"
    return Answer(ended.returncode == 0, _name_of(named), message)


def run_batch(command: Sequence[str], cases: Sequence[Case], timeout: float) -> list[Result]:
    """Start the reader once for all cases: `COMMAND --batch`, with a line for each case on its standard input."""
    with TemporaryDirectory(prefix="conformance-") as folder:
        paths = [Path(folder) / f"{number}.npy" for number in range(len(cases))]
        triples = [[str(case.folder), case.array, str(path)] for case, path in zip(cases, paths, strict=True)]
        lines, reason = _converse([*command, "--batch"], "".join(f"{json.dumps(each)}\n" for each in triples), timeout)
        answers = [_parse(line) for line in lines[: len(cases)]]
        answers += [Answer(is_read=False, message=reason, is_lost=True)] * (len(cases) - len(answers))
        return [judge(*each) for each in zip(cases, answers, paths, strict=True)]


def _converse(command: Sequence[str], text: str, timeout: float) -> tuple[list[str], str]:
    """Return the lines that a command prints when it reads a text, and why there are not more of them."""
    try:
        ended = subprocess.run(command, input=text, capture_output=True, text=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired as error:
        output: Any = error.stdout or b""
        return output.decode(errors="replace").splitlines(), f"not within {timeout:g} s"
    last = (ended.stderr.strip().splitlines() or [""])[-1]
    return ended.stdout.splitlines(), f"the reader ended with exit code {ended.returncode}: {last}"


def _parse(line: str) -> Answer:
    try:
        found = json.loads(line)
        return Answer(found["ok"] is True, _name_of(found.get("class")), str(found.get("message", "")))
    except (ValueError, TypeError, KeyError, AttributeError):
        return Answer(is_read=False, message=f"not a JSON object with `ok`: {line[:80]}", is_lost=True)


def _name_of(name: object) -> str | None:
    return name if isinstance(name, str) and name not in ("", "None", "null") else None


def table(results: Sequence[Result], *, is_short: bool = False) -> str:
    """Return the results as text: one line for each case, and one for each group of cases."""
    shown = [each for each in results if each.problem is not None or not is_short]
    width = max((len(each.case.name) for each in results), default=0)
    lines = [f"{each.case.name:{width}}  {'ok' if each.problem is None else 'FAILED'}{_why(each)}" for each in shown]
    groups: dict[str, list[Result]] = {}
    for each in results:
        groups.setdefault(each.case.name.partition("/")[0], []).append(each)
    lines += ["", f"{'group':12} {'cases':>5} {'passed':>6}"]
    for name, members in [*groups.items(), ("all", [*results])]:
        lines.append(f"{name:12} {len(members):5} {sum(each.problem is None for each in members):6}")
    return "\n".join(lines)


def _why(result: Result) -> str:
    if result.problem is None:
        return ""
    return f"  {result.problem}\n    {result.case.checks} ({result.case.basis})"
