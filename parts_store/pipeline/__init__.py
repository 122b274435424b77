"""The codec pipeline: reads and writes all chunks of a selection at once."""
