#include "config/sampling/sampling_params.hpp"

#include <sstream>

namespace kvhive {
namespace {

tl::unexpected<Error> out_of_range(const char* field, double value, const char* wanted) {
  std::ostringstream text;
  text << "sampling: " << field << " = " << value << ", expected " << wanted;
  return failure(Errc::bad_argument, text.str());
}

}  // namespace

// Written so that NaN fails every comparison and is refused.
Expected<SamplingParams> checked(const SamplingParams& params) {
  if (!(params.temperature >= 0 && params.temperature <= 100))
    return out_of_range("temperature", params.temperature, "a number in 0..100");
  if (params.top_k < -1)
    return out_of_range("top_k", params.top_k, "a positive count, or 0 or -1 for all tokens");
  if (!(params.top_p > 0 && params.top_p <= 1))
    return out_of_range("top_p", params.top_p, "a number above 0, at most 1");
  if (!(params.min_p >= 0 && params.min_p <= 1))
    return out_of_range("min_p", params.min_p, "a number in 0..1");
  return params;
}

}  // namespace kvhive
