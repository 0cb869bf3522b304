"""The command `triage`: find the known issue behind the logs of a failed run."""
