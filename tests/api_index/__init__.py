"""Tests of the API index: they run offline, on archives made in memory, source texts, or the index in the wheel."""
