"""What samples completions."""
