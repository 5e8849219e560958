// Columns as numpy arrays, texts as Python's.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "memory.hpp"
#include "strings.hpp"

namespace whystall {

namespace nb = nanobind;

template <class T>
using Input = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Array = nb::ndarray<nb::numpy, nb::ndim<1>>;

// The array takes the memory over; nothing is copied.
inline Array to_numpy(std::pair<Block, std::size_t>&& cells, std::size_t width, bool is_float = false) {
  const std::size_t count = cells.second;
  auto* owned = new Block(std::move(cells.first));
  nb::capsule owner(owned, [](void* p) noexcept { delete static_cast<Block*>(p); });
  nb::dlpack::dtype type = nb::dtype<std::int64_t>();
  if (is_float) type = nb::dtype<double>();
  if (!is_float && width == 1) type = nb::dtype<std::int8_t>();
  if (!is_float && width == 2) type = nb::dtype<std::int16_t>();
  if (!is_float && width == 4) type = nb::dtype<std::int32_t>();
  // numpy refuses a null pointer even for no elements
  void* data = owned->data() != nullptr ? static_cast<void*>(owned->data()) : static_cast<void*>(owned);
  return Array(data, {count}, owner, {}, type);
}

template <class T>
Array to_numpy(std::vector<T>&& values) {
  auto* owned = new std::vector<T>(std::move(values));
  nb::capsule owner(owned, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  void* data = owned->data() != nullptr ? static_cast<void*>(owned->data()) : static_cast<void*>(owned);
  return Array(data, {owned->size()}, owner, {}, nb::dtype<T>());
}

inline nb::str to_str(std::string_view text) { return nb::str(text.data(), text.size()); }

inline nb::list to_list(const StringPool& pool) {
  nb::list out;
  for (std::uint32_t id = 0; id < pool.size(); ++id) out.append(to_str(pool.text(id)));
  return out;
}

}  // namespace whystall
