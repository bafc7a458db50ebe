# shellcheck shell=sh
# Sourced by the other scripts, and before an mpirun by hand. Open MPI's mpirun refuses two things before Python even
# starts; these settings allow them. Other MPIs ignore them.

# Running as root: containers and fresh machines often have no other user.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

# More ranks than cores: three ranks on a laptop of two cores are slower than two, but they work.
# The first is Open MPI 5's, the second version 4's.
export PRTE_MCA_rmaps_default_mapping_policy="${PRTE_MCA_rmaps_default_mapping_policy:-:OVERSUBSCRIBE}"
export OMPI_MCA_rmaps_base_oversubscribe="${OMPI_MCA_rmaps_base_oversubscribe:-1}"
