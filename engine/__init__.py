"""Decode engines and everything they share."""

import os

_POLICY = "OMP_WAIT_POLICY"
_chosen_here = _POLICY not in os.environ

# Read by OpenMP when torch is imported. With its default, threads that spin at every barrier, one
# busy neighbour on two cores takes decoding from 50 to 1 token/s; sleeping ones keep 20. On an idle
# machine they cost a third, and llama.cpp, which has the same OpenMP, more.
os.environ.setdefault(_POLICY, "PASSIVE")


def wait_as_others_do() -> None:
    """OpenMP's own default again, for comparing with other programs; before torch is imported."""
    if _chosen_here:
        os.environ.pop(_POLICY, None)
