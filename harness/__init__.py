"""Tilescope: what a CUDA matrix-multiplication kernel does with the hardware, on a machine with a GPU or without one."""
