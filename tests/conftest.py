"""What every test may lean on: one set of hypothesis settings, and zarr's two pipelines to run under."""

import signal
from collections.abc import Iterator

import pytest
import zarr
from hypothesis import HealthCheck, settings

settings.register_profile(
    "parts_store",
    deadline=None,
    print_blob=True,
    # Our fixtures only set zarr's configuration, which every example may share.
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
settings.load_profile("parts_store")

PIPELINES = {
    "batched": "zarr.core.codec_pipeline.BatchedCodecPipeline",
    "fused": "zarr.core.codec_pipeline.FusedCodecPipeline",
}


@pytest.fixture(params=sorted(PIPELINES))
def pipeline(request: pytest.FixtureRequest) -> Iterator[str]:
    """Runs the test under each of zarr's codec pipelines."""
    name: str = request.param
    with zarr.config.set({"codec_pipeline.path": PIPELINES[name]}):
        yield name


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Let Ctrl-C raise `KeyboardInterrupt`, also where the tests run in the background and ignore interrupts."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
