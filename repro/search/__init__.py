"""The search for stories in which a scheduler fails."""
