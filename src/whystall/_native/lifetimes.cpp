#include "lifetimes.hpp"

#include <algorithm>

namespace whystall {

namespace {

// What is known of an address: the allocation that holds it, or that nobody does. Open addressing, half full at most.
class Addresses {
 public:
  static constexpr std::int64_t kUnseen = -2;
  static constexpr std::int64_t kFree = -1;

  Addresses() : slots_(1024) {}
  std::int64_t& at(std::int64_t address) {
    if (used_ * 2 >= slots_.size()) widen();
    Slot& slot = find(address);
    if (slot.holder == kUnseen && !slot.taken) {
      slot.taken = true;
      slot.address = address;
      ++used_;
    }
    return slot.holder;
  }

 private:
  struct Slot {
    std::int64_t address = 0;
    std::int64_t holder = kUnseen;
    bool taken = false;
  };
  Slot& find(std::int64_t address) {
    auto hash = static_cast<std::uint64_t>(address) * 0x9e3779b97f4a7c15ULL;
    hash ^= hash >> 32;
    for (std::size_t place = hash & (slots_.size() - 1);; place = (place + 1) & (slots_.size() - 1)) {
      if (!slots_[place].taken || slots_[place].address == address) return slots_[place];
    }
  }
  void widen() {
    std::vector<Slot> old(slots_.size() * 2);
    std::swap(slots_, old);
    for (const Slot& slot : old) {
      if (slot.taken) find(slot.address) = slot;
    }
  }
  std::vector<Slot> slots_;
  std::size_t used_ = 0;
};

}  // namespace

Matched match_allocations(const std::int8_t* move, const std::int64_t* address, std::size_t rows) {
  Matched out;
  const auto is = [move](std::size_t row, Move kind) { return move[row] == static_cast<std::int8_t>(kind); };
  bool asks = false;  // where frees are asked for, one that only settles ended before the record began
  for (std::size_t row = 0; row < rows && !asks; ++row) asks = is(row, Move::Frees);
  std::size_t allocations = 0;
  for (std::size_t row = 0; row < rows; ++row) allocations += is(row, Move::Allocates) ? 1 : 0;
  out.begin.reserve(allocations);
  out.end.reserve(allocations);
  Addresses addresses;
  for (std::size_t row = 0; row < rows; ++row) {
    if (is(row, Move::None)) continue;
    std::int64_t& holder = addresses.at(address[row]);
    if (is(row, Move::Allocates)) {
      if (holder >= 0) {
        out.end[static_cast<std::size_t>(holder)] = static_cast<std::int64_t>(row);
        ++out.lost;
      }
      holder = static_cast<std::int64_t>(out.begin.size());
      out.begin.push_back(static_cast<std::int64_t>(row));
      out.end.push_back(static_cast<std::int64_t>(rows));
    } else {
      if (holder >= 0) out.end[static_cast<std::size_t>(holder)] = static_cast<std::int64_t>(row);
      if (holder == Addresses::kUnseen && (is(row, Move::Frees) || !asks)) {
        out.unmatched.push_back(static_cast<std::int64_t>(row));
      }
      holder = Addresses::kFree;
    }
  }
  return out;
}

}  // namespace whystall
