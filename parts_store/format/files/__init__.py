"""Shards that are files of another format: what `zarr.json` says about them, and their bytes."""
