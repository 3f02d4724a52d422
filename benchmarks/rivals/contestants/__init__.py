"""One file a contestant: `make(task, **options)` builds network and data, and returns one whole training step.

A step is forward, cross-entropy of the time-mean of the readout's potentials, backward through time, and Adam. It
returns the loss, and has finished when it returns. Data lie in the form the contestant likes best before the first step.
"""
