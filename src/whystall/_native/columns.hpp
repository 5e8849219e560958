// Columns of a scanned trace: integers that widen as needed, and values that may be absent.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "memory.hpp"

namespace whystall {

// Signed integers in the narrowest of 1, 2, 4 or 8 bytes that holds all of them.
class IntColumn {
 public:
  void append(std::int64_t value) {
    if (!fits(value, cells_.width())) widen(value);
    cells_.append_low_bytes(value);
  }
  void append_all(const IntColumn& later);
  void replace_last(std::int64_t value);
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
  Cells cells_{1};
};

enum class Kind : std::uint8_t { Integer, Float, Text, Raw };
constexpr unsigned kKinds = 4;

// The values of one argument of one type. Rows are stored only from the first gap on.
class ArgumentColumn {
 public:
  explicit ArgumentColumn(Kind kind) : kind_(kind) {}
  // Rows must not decrease; the same row again replaces its value (JSON: the last one wins).
  void append(std::uint32_t row, std::int64_t bits) {
    if (count_ > 0 && row == last_row_) {
      replace_last(bits);
      return;
    }
    if (!rows_ && row != count_) make_sparse();
    if (rows_) rows_->append(row);
    if (kind_ == Kind::Float) {
      floats_.append(bits);
    } else {
      integers_.append(bits);
    }
    last_row_ = row;
    ++count_;
  }
  // The values of a later part of the file, whose rows count from `first_row` and whose texts have other ids here.
  void append(const ArgumentColumn& later, std::uint32_t first_row, const std::vector<std::uint32_t>& texts);
  Kind kind() const { return kind_; }
  std::size_t size() const { return count_; }
  bool sparse() const { return rows_.has_value(); }
  unsigned width() const { return kind_ == Kind::Float ? 8 : integers_.width(); }
  std::pair<Block, std::size_t> take_rows() { return rows_->take(); }
  std::pair<Block, std::size_t> take_values() { return kind_ == Kind::Float ? floats_.take() : integers_.take(); }

 private:
  void replace_last(std::int64_t bits);
  void make_sparse();
  Kind kind_;
  std::uint32_t last_row_ = 0;
  std::size_t count_ = 0;
  std::optional<Cells> rows_;
  IntColumn integers_;
  Cells floats_{8};
};

}  // namespace whystall
