"""The demonstration: the whole loop on this machine, ending with the verification of its own log."""
