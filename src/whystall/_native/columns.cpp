#include "columns.hpp"

namespace whystall {

namespace {

template <class From, class To>
void copy_cells(const Cells& from, Cells& to) {
  for (std::size_t i = 0; i < from.size(); ++i) {
    From value;
    std::memcpy(&value, from.data() + i * sizeof(From), sizeof(From));
    to.append(static_cast<To>(value));
  }
}

template <class From>
void copy_cells_to(const Cells& from, Cells& to) {
  switch (to.width()) {
    case 2: copy_cells<From, std::int16_t>(from, to); break;
    case 4: copy_cells<From, std::int32_t>(from, to); break;
    default: copy_cells<From, std::int64_t>(from, to);
  }
}

}  // namespace

void IntColumn::widen(std::int64_t value) {
  unsigned width = cells_.width();
  while (!fits(value, width)) width *= 2;
  Cells wider(width);
  switch (cells_.width()) {
    case 1: copy_cells_to<std::int8_t>(cells_, wider); break;
    case 2: copy_cells_to<std::int16_t>(cells_, wider); break;
    default: copy_cells_to<std::int32_t>(cells_, wider);
  }
  cells_ = std::move(wider);
}

void IntColumn::replace_last(std::int64_t value) {
  if (!fits(value, cells_.width())) widen(value);
  switch (cells_.width()) {
    case 1: cells_.replace_last(static_cast<std::int8_t>(value)); break;
    case 2: cells_.replace_last(static_cast<std::int16_t>(value)); break;
    case 4: cells_.replace_last(static_cast<std::int32_t>(value)); break;
    default: cells_.replace_last(value);
  }
}

void ArgumentColumn::replace_last(std::int64_t bits) {
  if (kind_ == Kind::Float) {
    floats_.replace_last(bits);
  } else {
    integers_.replace_last(bits);
  }
}

void ArgumentColumn::make_sparse() {
  rows_.emplace(4);
  for (std::uint32_t row = 0; row < count_; ++row) rows_->append(row);
}

}  // namespace whystall
