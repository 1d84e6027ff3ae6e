#define KVHIVE_MULTIPLIED
#include "tests/emulated/pair_operation.cpp"
