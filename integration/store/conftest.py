"""Both codec pipelines of zarr."""

from typing import Any

import pytest
import zarr

from integration.store.arrays import PIPELINES


@pytest.fixture(params=PIPELINES, ids=["batched", "fused"])
def pipeline(request: pytest.FixtureRequest) -> Any:
    with zarr.config.set({"codec_pipeline.path": request.param}):
        yield request.param
