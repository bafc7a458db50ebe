"""Where a run lives: the MPI world, its nodes, cores and roles, and how its ranks start, agree, wait and end."""
