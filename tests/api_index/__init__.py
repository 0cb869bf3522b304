"""Tests of the API index, offline: wheels are made in memory."""
