// Append-only storage that grows without copying and hands its memory on as it is.
//
// A trace of a gigabyte becomes hundreds of megabytes of columns. Growing std::vectors doubles the peak
// (old and new copy live together), and pieces that are joined at the end are copied once more. A mapping
// that the kernel moves (mremap) does neither: pages change their address, not their content, and a page
// that was never touched costs nothing.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

namespace whystall {

// A block of memory: from malloc while small, a mapping of its own when large.
class Block {
 public:
  Block() = default;
  explicit Block(std::size_t bytes) { resize(bytes); }
  Block(Block&& other) noexcept : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Block& operator=(Block&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  ~Block() { release(); }

  char* data() const { return data_; }
  std::size_t size() const { return bytes_; }

  // Grows to `bytes`, keeping what is there.
  void resize(std::size_t bytes) {
    if (bytes <= bytes_) return;
#if defined(__linux__)
    if (is_mapped(bytes_)) {
      void* moved = ::mremap(data_, bytes_, bytes, MREMAP_MAYMOVE);
      if (moved == MAP_FAILED) throw std::bad_alloc();
      data_ = static_cast<char*>(moved);
      bytes_ = bytes;
      want_huge_pages(data_, bytes);
      return;
    }
#endif
    char* fresh = allocate(bytes);
    if (bytes_ > 0) std::memcpy(fresh, data_, bytes_);
    release();
    data_ = fresh;
    bytes_ = bytes;
  }

 private:
  static constexpr std::size_t kMapFrom = 64 * 1024;
  static constexpr std::size_t kHugeFrom = std::size_t{16} << 20;
  static bool is_mapped(std::size_t bytes) { return bytes >= kMapFrom; }
  // Of a large block, as numpy does: to fault four kilobytes in takes longer than to fill them.
  static void want_huge_pages([[maybe_unused]] void* data, [[maybe_unused]] std::size_t bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    if (bytes >= kHugeFrom) ::madvise(data, bytes, MADV_HUGEPAGE);
#endif
  }

  static char* allocate(std::size_t bytes) {
    void* fresh = nullptr;
    if (is_mapped(bytes)) {
      fresh = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (fresh == MAP_FAILED) throw std::bad_alloc();
      want_huge_pages(fresh, bytes);
    } else if ((fresh = std::malloc(bytes)) == nullptr) {
      throw std::bad_alloc();
    }
    return static_cast<char*>(fresh);
  }
  void release() {
    if (data_ == nullptr) return;
    if (is_mapped(bytes_)) {
      ::munmap(data_, bytes_);
    } else {
      std::free(data_);
    }
    data_ = nullptr;
    bytes_ = 0;
  }

  char* data_ = nullptr;
  std::size_t bytes_ = 0;
};

// Elements of one fixed width (1, 2, 4 or 8 bytes), appended at the end.
class Cells {
 public:
  explicit Cells(unsigned width) : width_(width) {}

  unsigned width() const { return width_; }
  std::size_t size() const { return used_ / width_; }
  const char* data() const { return block_.data(); }

  template <class T>
  void append(T value) {
    if (used_ == block_.size()) block_.resize(block_.size() == 0 ? kFirstBytes : block_.size() * 2);
    std::memcpy(block_.data() + used_, &value, sizeof(T));
    used_ += sizeof(T);
  }
  // Appends the low bytes of `value` without asking how wide an element is: always eight bytes are written, and
  // what is too much is overwritten by the next. (A switch on the width is mispredicted column by column.)
  void append_low_bytes(std::int64_t value) {
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    const std::uint64_t low = static_cast<std::uint64_t>(value) << (64 - 8 * width_);
#else
    const auto low = static_cast<std::uint64_t>(value);
#endif
    if (used_ + sizeof low > block_.size()) block_.resize(block_.size() == 0 ? kFirstBytes : block_.size() * 2);
    std::memcpy(block_.data() + used_, &low, sizeof low);
    used_ += width_;
  }
  // The element at an index below size(); T is as wide as an element.
  template <class T>
  T get(std::size_t index) const {
    T value;
    std::memcpy(&value, block_.data() + index * sizeof(T), sizeof(T));
    return value;
  }
  // Appends `count` elements at once; the caller writes them where this returns.
  char* extend(std::size_t count) {
    const std::size_t needed = used_ + count * width_;
    std::size_t bytes = block_.size() == 0 ? kFirstBytes : block_.size();
    while (bytes < needed) bytes *= 2;
    block_.resize(bytes);
    return block_.data() + std::exchange(used_, needed);
  }
  // Appends the elements of cells that are as wide.
  void append_all(const Cells& others) {
    if (others.used_ > 0) std::memcpy(extend(others.size()), others.block_.data(), others.used_);
  }
  // Overwrites any element. Requires index < size().
  template <class T>
  void put(std::size_t index, T value) {
    std::memcpy(block_.data() + index * sizeof(T), &value, sizeof(T));
  }
  // Forgets the elements from `size` on; their memory stays.
  void shrink(std::size_t size) { used_ = size * width_; }
  // The memory with all elements, and nothing left here.
  std::pair<Block, std::size_t> take() { return {std::move(block_), std::exchange(used_, 0) / width_}; }

 private:
  static constexpr std::size_t kFirstBytes = 64;  // a multiple of every width, as are its doubles
  unsigned width_;
  std::size_t used_ = 0;
  Block block_;
};

}  // namespace whystall
