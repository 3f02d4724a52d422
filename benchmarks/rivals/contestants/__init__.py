"""One file per contestant: `make(task, **options)` builds network and data, and returns one whole training step.

A step is forward, cross-entropy of the time-mean of the readout's potentials, backward through time, and Adam. It
returns the loss, and has finished when it returns. Data are in the contestant's preferred form before the first step.
"""
