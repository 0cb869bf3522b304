"""Is this environment sound? Its packages, its machine, what starts, its fleet, and one plan of the remedies."""
