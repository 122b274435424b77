"""Backends: object stores by obstore, local disks, Icechunk sessions. No other modules import obstore or Icechunk."""
