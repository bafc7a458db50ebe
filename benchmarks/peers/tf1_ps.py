"""What users come from: a TensorFlow 1 between-graph parameter-server job, on TensorFlow 2's compat.v1 layer.

One process of the job; ``benchmarks.peers.jobs`` starts one server and two workers. A worker prints one JSON line.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow.compat.v1 as tf

from mpitrain.data.mnist import load

SKIPPED = 20


def parse() -> argparse.Namespace:
    """The flags that such programs have."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--job_name", choices=("ps", "worker"), required=True)
    parser.add_argument("--task_index", type=int, default=0)
    parser.add_argument("--ps_hosts", required=True)
    parser.add_argument("--worker_hosts", required=True)
    parser.add_argument("--issync", type=int, default=0)
    parser.add_argument("--train_steps", type=int, default=500)
    parser.add_argument("--batch_size", type=int, default=100)
    parser.add_argument("--lr", type=float, default=0.001)
    parser.add_argument("--model", choices=("mlp", "lstm", "cnn"), default="mlp")
    parser.add_argument("--dataset", default="mnist")
    return parser.parse_args()


def weights(name: str, shape: list[int], deviation: float) -> tf.Variable:
    """A truncated normal variable."""
    return tf.get_variable(name, shape, initializer=tf.truncated_normal_initializer(stddev=deviation))


def biases(name: str, size: int) -> tf.Variable:
    """A variable of 0.1."""
    return tf.get_variable(name, [size], initializer=tf.constant_initializer(0.1))


class LstmCell:
    """TensorFlow 1's ``BasicLSTMCell``, which does not work beside Keras 3, as ``dynamic_rnn`` asks for one."""

    def __init__(self, inputs: int, units: int) -> None:
        self.output_size, self.state_size = units, (units, units)
        self._kernel = weights("cell", [inputs + units, 4 * units], 1 / math.sqrt(inputs + units))
        self._bias = tf.get_variable("gates", [4 * units], initializer=tf.zeros_initializer())

    def zero_state(self, batch_size: tf.Tensor, dtype: tf.DType) -> tuple[tf.Tensor, ...]:
        return tuple(tf.zeros([batch_size, size], dtype) for size in self.state_size)

    def __call__(
        self, inputs: tf.Tensor, state: tuple[tf.Tensor, tf.Tensor], scope: object = None
    ) -> tuple[tf.Tensor, tuple[tf.Tensor, tf.Tensor]]:
        memory, output = state
        gates = tf.nn.bias_add(tf.matmul(tf.concat([inputs, output], 1), self._kernel), self._bias)
        write, new, forget, read = tf.split(gates, 4, 1)
        memory = memory * tf.sigmoid(forget + 1) + tf.sigmoid(write) * tf.tanh(new)
        output = tf.tanh(memory) * tf.sigmoid(read)
        return output, (memory, output)


def logits_of(model: str, images: tf.Tensor) -> tf.Tensor:
    """The models of mpitrain, written with TensorFlow's own operations."""
    if model == "mlp":
        flat = tf.reshape(images, [-1, 784])
        hidden = tf.nn.relu(tf.nn.xw_plus_b(flat, weights("w1", [784, 100], 1 / 28), biases("b1", 100)))
        return tf.nn.xw_plus_b(hidden, weights("w2", [100, 10], 0.1), biases("b2", 10))
    if model == "lstm":
        rows = tf.nn.xw_plus_b(tf.reshape(images, [-1, 28]), weights("w1", [28, 128], 0.1), biases("b1", 128))
        _, (_, last) = tf.nn.dynamic_rnn(LstmCell(128, 128), tf.reshape(rows, [-1, 28, 128]), dtype=tf.float32)
        return tf.nn.xw_plus_b(last, weights("w2", [128, 10], 0.1), biases("b2", 10))
    layer = images
    for i, (inputs, outputs) in enumerate(((1, 32), (32, 64))):
        layer = tf.nn.conv2d(layer, weights(f"k{i}", [5, 5, inputs, outputs], 0.1), 1, "SAME")
        layer = tf.nn.max_pool2d(tf.nn.relu(layer + biases(f"c{i}", outputs)), 2, 2, "SAME")
    flat = tf.reshape(layer, [-1, 3136])
    hidden = tf.nn.relu(tf.nn.xw_plus_b(flat, weights("w1", [3136, 1024], 0.1), biases("b1", 1024)))
    return tf.nn.xw_plus_b(hidden, weights("w2", [1024, 10], 0.1), biases("b2", 10))


def look_often() -> None:
    """A worker asks each 30 s whether the chief has initialized the variables; a benchmark cannot wait so long."""
    from tensorflow.python.training import session_manager

    class Impatient(session_manager.SessionManager):
        def __init__(self, *args: object, **kwargs: object) -> None:
            super().__init__(*args, **{**kwargs, "recovery_wait_secs": 1})

    session_manager.SessionManager = Impatient


def main() -> None:
    """Serve, or train and print the speed."""
    flags = parse()
    look_often()
    tf.disable_v2_behavior()
    workers = flags.worker_hosts.split(",")
    cluster = tf.train.ClusterSpec({"ps": flags.ps_hosts.split(","), "worker": workers})
    threads = 1 if flags.job_name == "worker" else 2
    config = tf.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=threads)
    server = tf.train.Server(cluster, job_name=flags.job_name, task_index=flags.task_index, config=config)
    if flags.job_name == "ps":
        server.join()
    data = load(flags.dataset).train
    images = data.images[..., None].astype(np.float32) / 255
    labels = np.eye(10, dtype=np.float32)[data.labels]
    chief = flags.task_index == 0
    place = tf.train.replica_device_setter(cluster=cluster, worker_device=f"/job:worker/task:{flags.task_index}")
    with tf.device(place):
        step = tf.train.get_or_create_global_step()
        x = tf.placeholder(tf.float32, [None, 28, 28, 1])
        y = tf.placeholder(tf.float32, [None, 10])
        losses = tf.nn.softmax_cross_entropy_with_logits_v2(logits=logits_of(flags.model, x), labels=y)
        optimizer = tf.train.AdamOptimizer(flags.lr)
        hooks = []
        if flags.issync:
            optimizer = tf.train.SyncReplicasOptimizer(optimizer, len(workers), len(workers))
            hooks.append(optimizer.make_session_run_hook(chief))
        update = optimizer.minimize(tf.reduce_mean(losses), global_step=step)
    random = np.random.default_rng(flags.task_index)
    with tf.train.MonitoredTrainingSession(server.target, chief, hooks=hooks, config=config) as session:
        done, started, counted = 0, 0.0, 0
        reached = 0
        while reached < flags.train_steps:
            if done == SKIPPED:
                started, counted = time.perf_counter(), done
            picked = random.integers(0, len(images), flags.batch_size)
            _, reached = session.run([update, step], {x: images[picked], y: labels[picked]})
            done += 1
        if not counted:
            raise SystemExit(f"worker {flags.task_index} had no more than {done} steps: give more --train_steps")
        rate = (done - counted) * flags.batch_size / (time.perf_counter() - started)
        print(json.dumps({"samples_per_second_per_worker": rate, "global_step": int(reached)}), flush=True)
        # Such jobs have no common end: a worker that closes its session would make the other's last call fail.
        os._exit(0)


if __name__ == "__main__":
    main()
