// Attention by dot products whose pairs are multiplied one after the other.
#define KVHIVE_MULTIPLIED
#include "kernels/cpu/packed/packed_dots.cpp"
