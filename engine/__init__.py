"""Decode engines and everything they share."""

import os

# Read by OpenMP when torch is imported. With its default, threads that spin at every barrier, one
# busy neighbour on two cores takes decoding from 50 to 1 token/s; sleeping ones keep 20.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
