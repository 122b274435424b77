"""Whole arrays whose shards are files, as one file of another format: a VRT, an HDF5 file or OME-XML."""
