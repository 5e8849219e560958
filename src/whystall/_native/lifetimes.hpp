// Which free belongs to which allocation, where addresses are handed out again and again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace whystall {

struct Matched {
  std::vector<std::int64_t> begin;      // the row of each allocation
  std::vector<std::int64_t> end;        // the row that ends it; the number of rows where none does
  std::vector<std::int64_t> unmatched;  // rows that free what was allocated before the first row
  std::uint64_t lost = 0;               // allocations that end because their address is handed out again
};

// What the rows are: `kAllocates`, `kFrees`, or `kSettles`, the second row of a free, which counts where there is no first.
enum class Move : std::int8_t { None, Allocates, Frees, Settles };

Matched match_allocations(const std::int8_t* move, const std::int64_t* address, std::size_t rows);

}  // namespace whystall
