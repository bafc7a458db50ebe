"""One thread and no GPU, before TensorFlow is imported."""

import os

os.environ.update(
    OMP_NUM_THREADS="1",
    TF_NUM_INTRAOP_THREADS="1",
    TF_NUM_INTEROP_THREADS="1",
    CUDA_VISIBLE_DEVICES="-1",
    TF_CPP_MIN_LOG_LEVEL="2",
    KERAS_BACKEND="tensorflow",
)
