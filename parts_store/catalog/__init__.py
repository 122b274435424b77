"""The arrays that a store knows, learnt from the metadata documents that pass through it."""
