"""Starting a run without knowing the MPI: host files, the launcher that fits, checks of the hosts beforehand."""
