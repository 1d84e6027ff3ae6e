#include "models/config/rope_config.hpp"

#include <algorithm>
#include <cmath>
#include <string>

namespace kvhive {
namespace {

constexpr std::int64_t kMaxPositions = std::int64_t{1} << 30;
constexpr double kMaxTheta = 1e12;
constexpr double kMaxFactor = 1e6;

void read_llama3(const JsonFields& scaling, FieldReader& reader, RopeScaling& rope) {
  reader.take(rope.factor, scaling.number("factor", 1, kMaxFactor));
  reader.take(rope.low_freq_factor, scaling.number("low_freq_factor", 1e-3, 1e6));
  reader.take(rope.high_freq_factor, scaling.number("high_freq_factor", 1e-3, 1e6));
  reader.take(rope.original_max_position,
              scaling.integer("original_max_position_embeddings", 1, kMaxPositions));
  // Llama 4 Scout has equal ones: no pair is between the two.
  if (reader.ok() && rope.high_freq_factor < rope.low_freq_factor)
    reader.fail(scaling.wrong("high_freq_factor", "at least low_freq_factor"));
}

/// YaRN's factor for a context that is `scale` times as long.
double yarn_mscale(double scale, double mscale) {
  return scale <= 1 ? 1 : 0.1 * mscale * std::log(scale) + 1;
}

/// The fields as transformers' _compute_yarn_parameters() reads them; 0 counts as absent for the
/// betas and the mscales, as there.
void read_yarn(const JsonFields& fields, const JsonFields& scaling, const RopeDefaults& defaults,
               double rope_theta, FieldReader& reader, RopeScaling& rope) {
  constexpr const char* kOriginal = "original_max_position_embeddings";
  if (fields.has(kOriginal) && scaling.has(kOriginal) &&
      fields.json().at(kOriginal) != scaling.json().at(kOriginal))
    return reader.fail(fields.wrong(kOriginal, "the same as in " + scaling.where()));
  reader.take(rope.original_max_position,
              (fields.has(kOriginal) ? fields : scaling)
                  .integer_or(kOriginal, defaults.max_position, 1, kMaxPositions));
  if (reader.ok() && rope_theta <= 1)
    reader.fail(failure(Errc::bad_format, scaling.where() +
                                              ": yarn needs a rope_theta of more than 1, not " +
                                              std::to_string(rope_theta)));
  if (!reader.ok()) return;
  const double longer =
      static_cast<double>(defaults.max_position) / static_cast<double>(rope.original_max_position);
  reader.take(rope.factor, scaling.number_or("factor", std::max(longer, 1.0), 1, kMaxFactor));
  const auto positive = [&](double& target, const char* name, double fallback) {
    reader.take(target, scaling.number_or(name, fallback, 0, 1e6));
    if (target == 0) target = fallback;
  };
  positive(rope.beta_fast, "beta_fast", 32);
  positive(rope.beta_slow, "beta_slow", 1);
  reader.take(rope.is_truncated, scaling.boolean_or("truncate", true));
  double mscale = 0, mscale_all_dim = 0;
  positive(mscale, "mscale", 0);
  positive(mscale_all_dim, "mscale_all_dim", 0);
  if (!reader.ok()) return;
  if (rope.beta_fast < rope.beta_slow)
    return reader.fail(scaling.wrong(scaling.has("beta_fast") ? "beta_fast" : "beta_slow",
                                     "beta_fast (32) to be at least beta_slow (1)"));
  if (mscale_all_dim > 0) rope.score_mscale = yarn_mscale(rope.factor, mscale_all_dim);
  const bool has_mscales = mscale > 0 && mscale_all_dim > 0;
  const double implied =
      has_mscales ? yarn_mscale(rope.factor, mscale) / yarn_mscale(rope.factor, mscale_all_dim)
                  : yarn_mscale(rope.factor, 1);
  reader.take(rope.attention_factor, scaling.number_or("attention_factor", implied, 1e-3, 1e3));
}

/// All of a head is rotated. Transformers 5 has the field here, and in the config before.
void check_partial(const JsonFields& scaling, FieldReader& reader) {
  double part = 1;
  reader.take(part, scaling.number_or("partial_rotary_factor", 1, 0, 1));
  if (reader.ok() && part != 1)
    reader.fail(
        scaling.wrong("partial_rotary_factor", "1: all of a head is rotated", Errc::unsupported));
}

void read_scaling(const JsonFields& fields, const JsonFields& scaling, const RopeDefaults& defaults,
                  FieldReader& reader, RopeConfig& rope) {
  reader.take(rope.theta, scaling.number_or("rope_theta", rope.theta, 1, kMaxTheta));
  check_partial(scaling, reader);
  const std::string key = scaling.has("rope_type") ? "rope_type" : "type";
  std::string kind;
  reader.take(kind, scaling.text(key));
  if (!reader.ok() || kind == "default") return;
  if (kind == "linear") {
    rope.scaling.kind = RopeScaling::Kind::linear;
    reader.take(rope.scaling.factor, scaling.number("factor", 1, kMaxFactor));
  } else if (kind == "llama3") {
    rope.scaling.kind = RopeScaling::Kind::llama3;
    read_llama3(scaling, reader, rope.scaling);
  } else if (kind == "yarn") {
    rope.scaling.kind = RopeScaling::Kind::yarn;
    read_yarn(fields, scaling, defaults, rope.theta, reader, rope.scaling);
  } else {
    reader.fail(scaling.wrong(key, "default, linear, llama3 or yarn", Errc::unsupported));
  }
}

/// Transformers 5's rope_parameters of a model whose layers rotate in two ways: an object for each.
void read_by_layer_type(const JsonFields& fields, const JsonFields& parameters,
                        const RopeDefaults& defaults, FieldReader& reader, RopeConfigs& rope) {
  for (const auto& [name, of] :
       {std::pair{"full_attention", &rope.full}, {"sliding_attention", &rope.sliding}}) {
    if (!parameters.has(name)) continue;
    const auto scaling = parameters.object(name);
    if (!scaling) return reader.fail(forward_error(scaling));
    read_scaling(fields, *scaling, defaults, reader, *of);
  }
}

/// The object of the scaling, if there is one: what it is called.
std::string scaling_name(const JsonFields& fields) {
  return fields.has("rope_parameters") ? "rope_parameters" : "rope_scaling";
}

}  // namespace

Expected<RopeConfigs> read_rope(const JsonFields& fields, const RopeDefaults& defaults) {
  FieldReader reader(fields);
  RopeConfigs rope;
  const bool has_two = defaults.local_theta > 0;
  reader.take(rope.full.theta, fields.number_or("rope_theta", defaults.theta, 1, kMaxTheta));
  rope.sliding = rope.full;
  if (has_two)
    reader.take(rope.sliding.theta,
                fields.number_or("rope_local_base_freq", defaults.local_theta, 1, kMaxTheta));
  const std::string key = scaling_name(fields);
  if (reader.ok() && fields.has("rope_parameters") && fields.has("rope_scaling") &&
      fields.json().at("rope_scaling") != fields.json().at("rope_parameters"))
    reader.fail(
        fields.wrong("rope_scaling", "what rope_parameters says, or none", Errc::unsupported));
  if (!reader.ok()) return reader.error();
  if (!fields.has(key)) return rope;
  const auto scaling = fields.object(key);
  if (!scaling) return forward_error(scaling);
  if (has_two && (scaling->has("full_attention") || scaling->has("sliding_attention")))
    read_by_layer_type(fields, *scaling, defaults, reader, rope);
  else
    read_scaling(fields, *scaling, defaults, reader, rope.full);
  if (!has_two) rope.sliding = rope.full;
  if (!reader.ok()) return reader.error();
  return rope;
}

}  // namespace kvhive
