"""The PyCUDA backend. `pycuda` is imported in here alone, when a GPU is opened; importing the modules needs none of it.

Kernels run in a process of their own (worker.py), started by client.py: one that crashes or hangs takes only that with it.
"""
