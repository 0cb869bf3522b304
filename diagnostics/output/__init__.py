"""Render reports as terminal text, Markdown, HTML, JSON, SARIF, JUnit and GitHub annotations."""
