"""The parameter vector: its layout, optimizers on slices of it, and the gradient step that reads it."""
