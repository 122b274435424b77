"""A server of a store over HTTP: plain Zarr for every client, and a page with pictures. Needs the extra `serve`."""
