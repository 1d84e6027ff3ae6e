// Is compiled for its target's precompiled headers only.
