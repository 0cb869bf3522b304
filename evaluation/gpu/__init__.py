"""GPU checks that fit into ten minutes."""
