"""The training loop, evaluation, learning rates, and the trainer that puts a run together."""
