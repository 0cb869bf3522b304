"""Print or render reports as terminal text, Markdown, HTML, JSON, SARIF, JUnit and GitHub annotations.

The package also filters findings, escapes control characters, redacts secrets and identities, prints known issues and
published release pairs, and shows progress.
"""
