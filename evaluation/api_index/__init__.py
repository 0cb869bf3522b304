"""Evaluation of the API index against Python itself."""
