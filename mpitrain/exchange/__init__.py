"""How ranks agree on parameters: everything in which the modes differ. It moves and combines numpy buffers, nothing else."""
