#include "models/latent/latent_shape.hpp"

#include <string>

#include "config/kv_layout.hpp"

namespace kvhive {
namespace {

constexpr std::int64_t kMaxHeadPart = 1024;
constexpr std::int64_t kMaxQueryRank = 1 << 20;

/// A field that must have the one value that the cache's rows have room for.
void read_fixed(const JsonFields& fields, FieldReader& reader, const char* name,
                std::uint32_t known, std::int32_t& target) {
  reader.integer(target, name, kMaxQueryRank);
  if (reader.ok() && target != static_cast<std::int32_t>(known))
    reader.fail(fields.wrong(name, std::to_string(known) + ": latent rows have one size",
                             Errc::unsupported));
}

/// A part of a head, of a size that matrix products take.
void read_part(const JsonFields& fields, FieldReader& reader, const char* name,
               std::int32_t& target) {
  reader.integer(target, name, kMaxHeadPart);
  if (reader.ok() && target % 8 != 0)
    reader.fail(fields.wrong(name, "a multiple of 8", Errc::unsupported));
}

}  // namespace

Expected<LatentShape> read_latent_shape(const JsonFields& fields) {
  FieldReader reader(fields);
  LatentShape shape;
  read_fixed(fields, reader, "kv_lora_rank", kLatentElements, shape.rank);
  read_fixed(fields, reader, "qk_rope_head_dim", kLatentRopeElements, shape.rope);
  read_part(fields, reader, "qk_nope_head_dim", shape.nope);
  read_part(fields, reader, "v_head_dim", shape.value);
  // Left out, it would be the class's 1536; null is none. So it has to be said.
  if (fields.json().contains("q_lora_rank") && !fields.has("q_lora_rank"))
    shape.query_rank = 0;
  else
    reader.integer(shape.query_rank, "q_lora_rank", kMaxQueryRank);
  if (!reader.ok()) return reader.error();
  return shape;
}

}  // namespace kvhive
