"""What is trained on: data, rewards and the tiny model of the shipped task."""
