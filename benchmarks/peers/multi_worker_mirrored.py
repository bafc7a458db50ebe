"""``tf.distribute.MultiWorkerMirroredStrategy`` with a Keras 3 model; one process for each worker.

    python -m benchmarks.peers.multi_worker_mirrored --model cnn --steps 100 --hosts a:1111,b:2222 --task 0

``Model.fit`` of Keras 3 fails under this strategy, so the loop is the user's. Keras's optimizer sums the gradients over
the workers itself.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import tensorflow as tf

from benchmarks.peers.work import read_work, tell


def main() -> None:
    """Train and print the speed."""
    tf.config.threading.set_intra_op_parallelism_threads(1)
    # Collectives wait in a thread of the same pool.
    tf.config.threading.set_inter_op_parallelism_threads(2)
    work, flags = read_work(("hosts", str), ("task", int))
    workers = flags.hosts.split(",")
    task = {"type": "worker", "index": flags.task}
    os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": workers}, "task": task})
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = work.build()
        optimizer = keras.optimizers.Adam(work.learning_rate)
        optimizer.build(model.trainable_variables)
        loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def replica(images: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(images, training=True)) / len(workers)
        gradients = tape.gradient(loss, [variable.value for variable in model.trainable_variables])
        optimizer.apply(gradients, model.trainable_variables)
        return loss

    @tf.function
    def step(images: Any, labels: Any) -> Any:
        return strategy.run(replica, (images, labels))

    tell(work.rate(lambda images, labels: step(tf.constant(images), tf.constant(labels)).numpy(), flags.task))
    # Such workers have no common end: one that leaves may take its last message to the other with it.
    time.sleep(1)
    os._exit(0)


if __name__ == "__main__":
    main()
