#pragma once
// The cases that every implementation of attention is tested with: a pairwise cover of storage,
// heads, sizes, lengths and options.

#include <string>
#include <vector>

#include "kv_fixture.hpp"

namespace kvhive::testing_support {

struct MatrixCase {
  std::string name;
  Shape shape;
  std::vector<SequenceSpec> sequences;
  std::vector<Query> queries;  ///< one for each sequence
  Features features;
};

std::vector<MatrixCase> matrix_cases();

}  // namespace kvhive::testing_support
