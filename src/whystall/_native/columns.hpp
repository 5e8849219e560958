// Columns of a scanned trace: integers that widen as needed, and values that may be absent.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "memory.hpp"

namespace whystall {

// Ids, by other ids.
using Ids = std::vector<std::uint32_t>;

// Signed integers in the narrowest of 1, 2, 4 or 8 bytes that holds all of them.
class IntColumn {
 public:
  void append(std::int64_t value) {
    if (!fits(value, cells_.width())) widen(value);
    cells_.append_low_bytes(value);
  }
  // The values of a column whose width is that of a value here or there.
  void append_all(const IntColumn& later);
  void append_all(const Ids& values);
  // What `ids` says of each value, all of which are ids.
  void look_up(const Ids& ids, Ids& found) const;
  // Forgets the values; memory and width stay.
  void clear() { cells_.shrink(0); }
  // Requires index < size().
  std::int64_t at(std::size_t index) const {
    switch (cells_.width()) {
      case 1: return cells_.get<std::int8_t>(index);
      case 2: return cells_.get<std::int16_t>(index);
      case 4: return cells_.get<std::int32_t>(index);
      default: return cells_.get<std::int64_t>(index);
    }
  }
  std::size_t size() const { return cells_.size(); }
  unsigned width() const { return cells_.width(); }
  std::pair<Block, std::size_t> take() { return cells_.take(); }

 private:
  // Whether the value is its own low bytes, extended by their sign.
  static bool fits(std::int64_t value, unsigned width) {
    const unsigned above = 64 - 8 * width;
    return static_cast<std::int64_t>(static_cast<std::uint64_t>(value) << above) >> above == value;
  }
  void widen(std::int64_t value);
  void widen_to(unsigned width);
  Cells cells_{1};
};

enum class Kind : std::uint8_t { Integer, Float, Text, Raw };
constexpr unsigned kKinds = 4;

// The values of one argument of one type. Rows are stored only from the first gap on.
class ArgumentColumn {
 public:
  explicit ArgumentColumn(Kind kind) : kind_(kind) {}
  // Rows must increase.
  void append(std::uint32_t row, std::int64_t bits) {
    if (!rows_ && row != count_) make_sparse();
    if (rows_) rows_->append(row);
    if (kind_ == Kind::Float) {
      floats_.append(bits);
    } else {
      integers_.append(bits);
    }
    ++count_;
  }
  // The values of a later part of the file, whose rows count from `first_row` and whose texts have other ids here.
  void append(const ArgumentColumn& later, std::uint32_t first_row, const Ids& texts, Ids& scratch);
  // Forgets the values; memory, width and whether rows are stored stay.
  void clear();
  Kind kind() const { return kind_; }
  std::size_t size() const { return count_; }
  bool sparse() const { return rows_.has_value(); }
  unsigned width() const { return kind_ == Kind::Float ? 8 : integers_.width(); }
  std::pair<Block, std::size_t> take_rows() { return rows_->take(); }
  std::pair<Block, std::size_t> take_values() { return kind_ == Kind::Float ? floats_.take() : integers_.take(); }

 private:
  void make_sparse();
  void append_rows(const ArgumentColumn& later, std::uint32_t first_row);
  Kind kind_;
  std::size_t count_ = 0;
  std::optional<Cells> rows_;
  IntColumn integers_;
  Cells floats_{8};
};

}  // namespace whystall
