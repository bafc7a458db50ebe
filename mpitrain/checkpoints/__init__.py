"""Checkpoints as files: what is in them, and how they are written, found, checked and read. No MPI and no Keras."""
