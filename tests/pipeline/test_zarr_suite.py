"""zarr's own tests of codec pipelines, codecs and selections pass with our pipeline on a PartsStore."""

import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import parts_store
from tests.package_sources import sources

FOLDER = Path(__file__).parent
# In the other process, this is the name of our pipeline.
FUSED = "zarr.core.codec_pipeline.FusedCodecPipeline"
SUITES = {
    "pipelines": [
        *("tests/test_codec_pipeline.py", "tests/test_codec_pipeline_suite.py"),
        *("tests/test_fused_pipeline.py", "tests/test_pipeline_parity.py"),
    ],
    "codecs": ["tests/test_codecs"],
    "selections": ["tests/test_indexing.py"],
}
LEFT_OUT = [
    # The test asks whether zarr's own thread pool is used.
    "tests/test_fused_pipeline.py::test_read_write_with_thread_pool",
    # These tests replace the asynchronous `get_ranges`, so they fail with zarr's fused pipeline as well.
    "tests/test_codecs/test_sharding_unit.py::test_load_partial_shard_forwards_global_config_to_get_ranges",
    "tests/test_codecs/test_sharding_unit.py::test_load_partial_shard_per_array_config_overrides_global",
    "tests/test_codecs/test_sharding_unit.py::test_load_partial_shard_uses_config_defaults",
    # The test replaces a method of zarr's own shard index, which our pipeline does not use.
    *(
        f"tests/test_codecs/test_sharding.py::test_sharding_partial_shard_read__index_chunk_slice_fails[{store}-{index}]"
        for store in ("local", "memory")
        for index in ("start", "end")
    ),
]
# The test stores an empty chunk, which is too short for parts: the store refuses it.
LEFT_OUT_WITH_PARTS = [
    f"tests/test_codecs/test_sharding.py::test_sharding_truncated_shard_raises[{how}--{index}-{store}-{pipeline}]"
    for how in ("full read", "partial read", "partial write")
    for index in ("start", "end")
    for store in ("memory", "local")
    for pipeline in (FUSED, "zarr.core.codec_pipeline.BatchedCodecPipeline")
]


@pytest.mark.slow
@pytest.mark.parametrize("chunks", ["whole", "parts"])
@pytest.mark.parametrize("suite", SUITES)
def test_zarrs_own_tests_pass_with_our_pipeline(suite: str, chunks: str) -> None:
    (folder,) = sources("zarr", version("zarr")).iterdir()
    left_out = LEFT_OUT if chunks == "whole" else LEFT_OUT + LEFT_OUT_WITH_PARTS
    options = ["--override-ini=addopts=", "--override-ini=log_cli_level=WARNING", "-pno:cacheprovider", "-pzarr_suite"]
    deselected = [f"--deselect={name}" for name in left_out]
    root = Path(parts_store.__file__).parent.parent
    ended = subprocess.run(
        [sys.executable, "-B", "-m", "pytest", "--quiet", *options, *SUITES[suite], *deselected],
        cwd=folder,
        env=os.environ
        | {"PYTHONPATH": f"{root}{os.pathsep}{FOLDER}", "ZARR_SUITE": chunks, "ZARR_CODEC_PIPELINE__PATH": FUSED},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    used = re.search(r"our pipeline: (\d+) read, (\d+) written", ended.stdout)
    assert used is not None
    assert min(map(int, used.groups())) > 0
