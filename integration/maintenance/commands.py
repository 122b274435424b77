"""Run the command line on a bucket, and parse what it prints."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from integration.conftest import Bucket
from integration.server import Server
from parts_store.maintenance.report import Finding


def options_of(user: Server) -> dict[str, str]:
    return {
        **user.options,
        "virtual_hosted_style_request": "false",
    }


def run(command: str, bucket: Bucket, *arguments: str, user: Server | None = None) -> tuple[int, str, str]:
    """`parts-store`: its exit code, and what it says."""
    options = [f"--option={name}={value}" for name, value in options_of(user or bucket.server).items()]
    program = str(Path(sys.executable).with_name("parts-store"))
    done = subprocess.run(
        [program, command, f"s3://{bucket.name}", *options, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONWARNINGS": "error", "NO_PROXY": "127.0.0.1"},
    )
    return done.returncode, done.stdout, done.stderr


def as_json(findings: list[Finding]) -> list[dict[str, Any]]:
    return sorted(
        (
            {
                "problem": each.problem.value,
                "chunk_key": each.chunk_key,
                "keys": sorted(each.keys),
                "detail": each.detail,
                "repaired": each.is_repaired,
                "deleted": each.is_deleted,
                "advice": each.advice,
            }
            for each in findings
        ),
        key=lambda each: (each["chunk_key"], each["problem"]),
    )


def parsed(text: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Parse what was printed as JSON, and the findings in it."""
    report = json.loads(text)
    return report, [{**each, "keys": sorted(each["keys"])} for each in report["findings"]]
