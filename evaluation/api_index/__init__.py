"""Compare the API index, and the imports between packages, with what Python does."""
