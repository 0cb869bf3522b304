"""Tests; the modules in this folder are helpers of several folders, and tests of documents, packaging and tools."""
