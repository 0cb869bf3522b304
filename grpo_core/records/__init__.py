"""Steps that are recorded and replayed."""
