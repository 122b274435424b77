"""Reports as values, as text and as JSON."""

import html
import json
from dataclasses import replace

import pytest

from parts_store.maintenance.report import Finding, Problem, Report


def finding(problem: Problem, *, is_repaired: bool = False, number: int = 0) -> Finding:
    return Finding(problem, f"a/c/{number}", (f"a/c/{number}.tail", f"a/c/{number}"), "of some kind", is_repaired)


DAMAGE = {
    Problem.INCOMPLETE,
    Problem.MIXTURE,
    Problem.WRONG_SIZE,
    Problem.PARTLY_TAGGED,
    Problem.OTHER_LAYOUT,
    Problem.CHECKSUM,
    Problem.UNREADABLE,
    Problem.UNDECODABLE,
}


@pytest.mark.parametrize("is_repaired", [False, True])
@pytest.mark.parametrize("problem", Problem)
def test_report_says_whether_it_is_damaged_or_clean(problem: Problem, is_repaired: bool) -> None:
    report = Report((finding(problem, is_repaired=is_repaired),), 1, 4, 8)
    assert problem.is_damage == (problem in DAMAGE)
    assert report.is_damaged == (problem in DAMAGE and not is_repaired)
    assert report.is_clean == (is_repaired or problem in (Problem.UNTAGGED, Problem.UNMARKED))
    assert report.counts == {problem.value: 1}
    assert all(word in str(report) for word in (problem.value, "a/c/0", "a/c/0.tail", "of some kind"))
    assert ("no problems found" in str(report)) == report.is_clean


def test_report_to_json_has_every_field() -> None:
    findings = tuple(finding(problem, number=number) for number, problem in enumerate(Problem))
    report = Report(findings, 2, 9, 18, (("b", "not understood"),))
    data = report.to_json()
    assert json.loads(json.dumps(data)) == data
    assert data == {
        "damaged": True,
        "clean": False,
        "arrays": 2,
        "chunks": 9,
        "objects": 18,
        "findings": [
            {
                "problem": each.value,
                "chunk_key": f"a/c/{number}",
                "keys": [f"a/c/{number}.tail", f"a/c/{number}"],
                "detail": "of some kind",
                "repaired": False,
                "deleted": False,
                "advice": findings[number].advice,
            }
            for number, each in enumerate(Problem)
        ],
        "not_understood": [{"array": "b", "problem": "not understood"}],
    }


@pytest.mark.parametrize("problem", Problem)
def test_every_finding_ends_with_what_to_do_next(problem: Problem) -> None:
    open_one = finding(problem)
    solved, deleted = replace(open_one, is_repaired=True), replace(open_one, is_repaired=True, is_deleted=True)
    assert open_one.advice != solved.advice == "nothing to do"
    for each, label in ((open_one, ""), (solved, ", repaired"), (deleted, ", deleted")):
        (_, line, *_) = str(Report((each,), 1, 1, 1)).splitlines()
        assert line.startswith(f"{problem.value}{label}: ")
        assert line.endswith(f" -> {each.advice}")
        assert html.escape(each.advice) in Report((each,), 1, 1, 1)._repr_html_()
    assert str(Report((deleted,), 1, 1, 1)).endswith("nothing is damaged now; 1 damaged chunk deleted")


def test_array_that_is_not_understood_is_damage() -> None:
    report = Report((), 0, 0, 0, (("", "why"),))
    assert report.is_damaged
    assert not report.is_clean
    assert str(report).splitlines()[1:] == ["not understood: /: why", "damaged"]
    assert str(Report((), 0, 0, 0)).endswith("\nno arrays with parts or shard files")


def test_long_report_shows_damage_first() -> None:
    many = [finding(Problem.UNTAGGED, number=number) for number in range(200)]
    report = Report((*many, finding(Problem.MIXTURE, number=999)), 1, 201, 402)
    lines = str(report).splitlines()
    assert lines[1].startswith("mixture: a/c/999")
    assert lines[-2] == "and 101 more; all together: 1 mixture, 200 untagged"
    assert report.counts == {"mixture": 1, "untagged": 200}
