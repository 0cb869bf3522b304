"""Compare what a trainer's source uses of the engine with what an engine release provides, from source alone.

`conditions` evaluates guards, `uses` collects what the trainer uses, `surface` finds what the engine provides, `rules`
holds behaviour that no name shows, `compare` puts them together.
"""
