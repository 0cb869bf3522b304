"""Data sets, rewards, and the tiny model of the shipped task."""
