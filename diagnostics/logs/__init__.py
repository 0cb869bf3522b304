"""Parse the formats of log lines: prefixes, JSON envelopes, tracebacks, and metrics."""
