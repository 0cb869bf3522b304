"""Renders a verdict: terminal, Markdown, JSON, and one page with the graph as a picture."""
