"""All ranks are workers; each holds all parameters and applies the same update."""
