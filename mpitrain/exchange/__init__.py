"""How ranks agree on parameters: all in which the modes differ. It moves and combines numpy buffers, nothing else."""
