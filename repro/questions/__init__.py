"""Programs that a layer of the matrix runs in a cell."""
