"""``mpitrain doctor``: what each host of a job is like, and what of it would keep a run from going well."""
