"""Collectors: impure, few, and judging nothing."""
