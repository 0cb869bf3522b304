"""One file for each known issue that can be made to happen, named by its code."""
