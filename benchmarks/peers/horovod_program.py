"""What a user of Horovod would write today, with TensorFlow 2 and Keras 3; one process for each worker.

    mpirun -np 2 python -m benchmarks.peers.horovod_program --model cnn --steps 100

Horovod's ``DistributedOptimizer`` does not reduce under Keras 3, and its tape and its broadcast know TensorFlow's own
variables alone: so the loop is the user's, over the variables that Keras's wrap.
"""

from __future__ import annotations

import os
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import horovod.tensorflow as hvd
import keras
import tensorflow as tf

from benchmarks.peers.work import read_work, tell


def main() -> None:
    """Train, and let the first rank print the speed."""
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    hvd.init()
    work, _ = read_work()
    model = work.build()
    variables = [variable.value for variable in model.trainable_variables]
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = keras.optimizers.Adam(work.learning_rate)
    optimizer.build(model.trainable_variables)
    hvd.broadcast_variables(variables, root_rank=0)

    @tf.function
    def step(images: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(images, training=True))
        gradients = hvd.DistributedGradientTape(tape).gradient(loss, variables)
        optimizer.apply(gradients, model.trainable_variables)
        return loss

    rate = work.rate(lambda images, labels: step(tf.constant(images), tf.constant(labels)).numpy(), hvd.rank())
    mean = float(hvd.allreduce(tf.constant(rate, tf.float64), op=hvd.Average))
    if hvd.rank() == 0:
        tell(mean)


if __name__ == "__main__":
    main()
