"""zarr's own tests of codec pipelines, codecs and selections pass with our pipeline on a PartsStore."""

import re

import pytest

from integration.zarr_suite.__main__ import run_tests

# `make zarr-tests` runs all files, with all pipelines, with and without parts, in all places.
SUITES = {
    "pipelines": (
        *("tests/test_codec_pipeline.py", "tests/test_codec_pipeline_suite.py"),
        *("tests/test_fused_pipeline.py", "tests/test_pipeline_parity.py"),
    ),
    "codecs": ("tests/test_codecs",),
    "selections": ("tests/test_indexing.py",),
}


@pytest.mark.slow
@pytest.mark.parametrize("suite", SUITES)
def test_zarrs_own_tests_pass_with_our_pipeline(suite: str) -> None:
    ended = run_tests(("ours", "parts", "memory"), files=SUITES[suite])
    assert ended.returncode == 0, ended.stdout
    used = re.search(r"our pipeline: (\d+) read, (\d+) written", ended.stdout)
    assert used is not None
    assert min(map(int, used.groups())) > 0
