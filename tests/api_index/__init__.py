"""Tests of the API index run offline, on wheels that are made in memory or on the index in the wheel."""
