#include "columns.hpp"

namespace whystall {

namespace {

// Both widths are known to the compiler, which makes the loop one of vectors.
template <class From, class To>
void convert(const char* from, std::size_t count, char* to) {
  for (std::size_t i = 0; i < count; ++i) {
    From value;
    std::memcpy(&value, from + i * sizeof(From), sizeof(From));
    const auto converted = static_cast<To>(value);
    std::memcpy(to + i * sizeof(To), &converted, sizeof(To));
  }
}

template <class From>
void append_converted(const char* from, std::size_t count, Cells& to) {
  char* const out = to.extend(count);
  switch (to.width()) {
    case 1: convert<From, std::int8_t>(from, count, out); break;
    case 2: convert<From, std::int16_t>(from, count, out); break;
    case 4: convert<From, std::int32_t>(from, count, out); break;
    default: convert<From, std::int64_t>(from, count, out);
  }
}

void append_converted(const Cells& from, Cells& to) {
  switch (from.width()) {
    case 1: append_converted<std::int8_t>(from.data(), from.size(), to); break;
    case 2: append_converted<std::int16_t>(from.data(), from.size(), to); break;
    default: append_converted<std::int32_t>(from.data(), from.size(), to);
  }
}

template <class Id>
void look_up_all(const Cells& from, const Ids& ids, Ids& found) {
  for (std::size_t i = 0; i < found.size(); ++i) found[i] = ids[static_cast<std::size_t>(from.get<Id>(i))];
}

}  // namespace

void IntColumn::widen(std::int64_t value) {
  unsigned width = cells_.width();
  while (!fits(value, width)) width *= 2;
  widen_to(width);
}

void IntColumn::widen_to(unsigned width) {
  Cells wider(width);
  append_converted(cells_, wider);
  cells_ = std::move(wider);
}

void IntColumn::append_all(const IntColumn& later) {
  if (later.width() > width()) widen_to(later.width());
  if (later.width() == width()) {
    cells_.append_all(later.cells_);
  } else {
    append_converted(later.cells_, cells_);
  }
}

void IntColumn::append_all(const Ids& values) {
  std::uint32_t bits = 0;  // as wide as the widest value
  for (const std::uint32_t value : values) bits |= value;
  if (!fits(bits, width())) widen(bits);
  append_converted<std::uint32_t>(reinterpret_cast<const char*>(values.data()), values.size(), cells_);
}

void IntColumn::look_up(const Ids& ids, Ids& found) const {
  found.resize(size());
  switch (width()) {
    case 1: look_up_all<std::int8_t>(cells_, ids, found); break;
    case 2: look_up_all<std::int16_t>(cells_, ids, found); break;
    case 4: look_up_all<std::int32_t>(cells_, ids, found); break;
    default: look_up_all<std::int64_t>(cells_, ids, found);
  }
}

void ArgumentColumn::append(const ArgumentColumn& later, std::uint32_t first_row, const Ids& texts, Ids& scratch) {
  if (later.count_ == 0) return;
  if (!rows_ && (later.rows_ || first_row != count_)) make_sparse();
  if (rows_) append_rows(later, first_row);
  switch (kind_) {
    case Kind::Float: floats_.append_all(later.floats_); break;
    case Kind::Integer: integers_.append_all(later.integers_); break;
    default:
      later.integers_.look_up(texts, scratch);
      integers_.append_all(scratch);
  }
  count_ += later.count_;
}

void ArgumentColumn::append_rows(const ArgumentColumn& later, std::uint32_t first_row) {
  char* const out = rows_->extend(later.count_);
  for (std::size_t i = 0; i < later.count_; ++i) {
    const std::uint32_t row = first_row + (later.rows_ ? later.rows_->get<std::uint32_t>(i) : static_cast<std::uint32_t>(i));
    std::memcpy(out + i * sizeof row, &row, sizeof row);
  }
}

void ArgumentColumn::clear() {
  count_ = 0;
  if (rows_) rows_->shrink(0);
  integers_.clear();
  floats_.shrink(0);
}

void ArgumentColumn::make_sparse() {
  rows_.emplace(4);
  for (std::uint32_t row = 0; row < count_; ++row) rows_->append(row);
}

}  // namespace whystall
