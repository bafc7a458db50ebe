"""Data sets: reading IDX files, finding and fetching MNIST, batches, and the order of the samples."""
