"""PartsStore, and what happens between a call of zarr and the first request."""
