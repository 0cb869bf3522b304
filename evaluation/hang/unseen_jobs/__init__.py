"""Start unseen stuck and healthy jobs, and record the verdict of `hang` for each."""
