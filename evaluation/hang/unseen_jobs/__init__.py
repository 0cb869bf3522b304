"""Stuck and healthy jobs that were labelled before the first run of `hang` on them, and a program that runs them."""
