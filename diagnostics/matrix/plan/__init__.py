"""What is to be asked: cells, pairs, releases, and what is expected of them."""
