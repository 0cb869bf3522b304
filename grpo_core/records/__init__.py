"""Steps recorded, replayed and checked."""
