// Replay of a dependency graph whose nodes are listed in an order that every edge follows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace whystall {

// Edges by their target: those into node n are first[n] to first[n + 1]. A node starts `lag` after the source
// ends, yet never before the source starts.
struct Edges {
  const std::uint64_t* first;
  const std::uint32_t* source;
  const std::int64_t* lag;
};

struct Replayed {
  std::vector<std::int64_t> start;
  std::vector<std::int64_t> end;
  std::vector<std::int64_t> decided_by;  // the edge that decided when a node could start, or -1
};

// Start and end of every node: it waits for all its edges, then for its own `delay`. A node without edges
// starts at its delay. Every source must be smaller than its target.
Replayed replay(const std::int64_t* duration, const std::int64_t* delay, std::size_t nodes, const Edges& edges);

}  // namespace whystall
