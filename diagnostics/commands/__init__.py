"""Small commands: versions, explain, catalog, completion."""
