"""Archives of many files in Icechunk repositories: as this package adopts them, and as VirtualiZarr's writer does."""
