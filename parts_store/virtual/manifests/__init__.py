"""Arrays of references: which ranges of files their chunks are, and what NumPy and xarray need of them."""
