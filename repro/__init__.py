"""Reproduce known issues on unmodified upstream code, with and without each mitigation.

The package runs inside matrix cells, so it needs only Python >= 3.10 and the packages of the cell.
"""
