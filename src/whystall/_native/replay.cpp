#include "replay.hpp"

#include <algorithm>
#include <limits>

namespace whystall {

namespace {

// Times come from files: they may be absurd, but must not overflow.
std::int64_t added(std::int64_t a, std::int64_t b) {
  std::int64_t sum = 0;
  if (!__builtin_add_overflow(a, b, &sum)) return sum;
  return b < 0 ? std::numeric_limits<std::int64_t>::min() : std::numeric_limits<std::int64_t>::max();
}

}  // namespace

Replayed replay(const std::int64_t* duration, const std::int64_t* delay, std::size_t nodes, const Edges& edges) {
  Replayed out;
  out.start.resize(nodes);
  out.end.resize(nodes);
  out.decided_by.assign(nodes, -1);
  for (std::size_t node = 0; node < nodes; ++node) {
    std::int64_t ready = 0;
    std::int64_t decided_by = -1;
    for (std::uint64_t edge = edges.first[node]; edge < edges.first[node + 1]; ++edge) {
      const std::uint32_t source = edges.source[edge];
      const std::int64_t allowed = std::max(added(out.end[source], edges.lag[edge]), out.start[source]);
      if (decided_by < 0 || allowed > ready) {
        ready = allowed;
        decided_by = static_cast<std::int64_t>(edge);
      }
    }
    out.start[node] = added(ready, delay[node]);
    out.end[node] = added(out.start[node], duration[node]);
    out.decided_by[node] = decided_by;
  }
  return out;
}

}  // namespace whystall
