"""An engine behind HTTP: the client's side."""
