"""A TensorFlow script, as it is: MultiWorkerMirroredStrategy and a CheckpointManager of its own.

phalanx submit examples/tensorflow/job.yaml --follow

The strategy finds the other workers in TF_CONFIG. All workers save, and the chief's files are kept.
"""

import argparse
import os
import shutil
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import tensorflow as tf

FOLDER = "out"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds to wait after each step")
    args = parser.parse_args()
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    worker = strategy.cluster_resolver.task_id or 0
    tf.random.set_seed(0)
    x = tf.random.stateless_normal((600, 8), (0, 0))
    y = x @ tf.random.stateless_normal((8, 1), (0, 1))
    x, y = x[worker::2], y[worker::2]
    with strategy.scope():
        weights = tf.Variable(tf.zeros((8, 1)))
        step = tf.Variable(0, dtype=tf.int64)
    checkpoint = tf.train.Checkpoint(weights=weights, step=step)
    # Variables are mirrored, so all workers take part in a save; only the chief's is kept.
    mine = FOLDER if worker == 0 else f"/tmp/worker-{os.getpid()}"
    manager = tf.train.CheckpointManager(checkpoint, mine, max_to_keep=2)
    newest = tf.train.latest_checkpoint(FOLDER)
    if newest:
        checkpoint.restore(newest)
    print(f"worker {worker} begins at step {int(step.read_value())}", flush=True)

    @tf.function
    def train():
        def replica():
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((x @ weights - y) ** 2)
            gradient = tape.gradient(loss, weights)
            context = tf.distribute.get_replica_context()
            gradient, loss = context.all_reduce("MEAN", [gradient, loss])
            weights.assign_sub(0.1 * gradient)
            step.assign_add(1)
            return loss

        return strategy.reduce("MEAN", strategy.run(replica), axis=None)

    while int(step.read_value()) < args.steps:
        loss = float(train())
        manager.save(checkpoint_number=int(step.read_value()))
        if worker == 0:
            print(f"step {int(step.read_value())}: loss {loss:.6f}", flush=True)
        time.sleep(args.pause)
    if worker != 0:
        shutil.rmtree(mine, ignore_errors=True)


if __name__ == "__main__":
    main()
