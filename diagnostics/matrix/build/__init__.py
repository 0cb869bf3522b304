"""What an answer needs: locks, environments, wheels and their sources."""
