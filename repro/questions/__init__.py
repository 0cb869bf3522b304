"""Programs that a layer of the matrix asks in a cell."""
