"""Random stories of what is done to a scheduler: drawn and shortened by Hypothesis, saved, and played again."""
