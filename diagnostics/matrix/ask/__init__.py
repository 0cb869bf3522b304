"""The questions: one layer a file, and the contract between two wheels."""
