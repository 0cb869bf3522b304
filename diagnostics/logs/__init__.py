"""Formats of log lines: prefixes, JSON envelopes, wrapped lines, tracebacks, and names of metrics."""
