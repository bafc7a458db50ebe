"""Parameter servers: each holds a shard of the parameters; workers push gradients to them and pull new parameters.

Server 0 decides what is applied, in one numbered log that every server executes in order, so that a gradient is
applied on all shards or on none.
"""
