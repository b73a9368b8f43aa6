"""A TensorFlow script: collectives before and after strangers came."""

import os
import time

import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()


@tf.function
def total():
    return strategy.reduce("sum", strategy.run(lambda: tf.ones([])), axis=None)


assert float(total()) == 2.0
print("meeting", flush=True)
while not os.path.exists(os.environ["STRANGERS_GONE"]):
    time.sleep(0.1)
assert float(total()) == 2.0
