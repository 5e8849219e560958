// Where a list ends, found sixty-four bytes at a time.
//
// Lists of shapes are a third of a recording of today, most of it digits and blanks: stepping over each byte of them
// took two fifths of the time that reading took.
#pragma once

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include <cstddef>
#include <cstdint>

namespace whystall {

#if defined(__SSE2__)

// Which of sixty-four bytes are what, the first of them lowest.
struct ListBytes {
  std::uint64_t opening = 0;  // [ or {
  std::uint64_t closing = 0;  // ] or }
  std::uint64_t quote = 0;
  std::uint64_t backslash = 0;

  explicit ListBytes(const char* from) {
    for (unsigned first = 0; first < 64; first += 16) {
      const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + first));
      const __m128i folded = _mm_or_si128(bytes, _mm_set1_epi8(0x20));  // brackets become braces, and nothing else does
      opening |= equal(folded, '{') << first;
      closing |= equal(folded, '}') << first;
      quote |= equal(bytes, '"') << first;
      backslash |= equal(bytes, '\\') << first;
    }
  }

 private:
  static std::uint64_t equal(__m128i bytes, char wanted) {
    return static_cast<unsigned>(_mm_movemask_epi8(_mm_cmpeq_epi8(bytes, _mm_set1_epi8(wanted))));
  }
};

// Each bit the parity of those up to it: set from an opening quote to before the closing one.
inline std::uint64_t parities(std::uint64_t bits) {
  for (unsigned by = 1; by < 64; by *= 2) bits ^= bits << by;
  return bits;
}

// The end of the list or object at `at`; null where that takes a closer look: an object inside, a backslash, or no end
// before `end`. Sixty-three bytes from there on must be readable.
inline const char* end_of_list(const char* at, const char* end) {
  const char* const first = at;
  std::size_t depth = 0;
  std::uint64_t in_text = 0;
  for (; at < end; at += 64) {
    const ListBytes bytes(at);
    if (bytes.backslash != 0) return nullptr;
    const std::uint64_t text = parities(bytes.quote) ^ in_text;
    in_text = std::uint64_t{0} - (text >> 63);
    for (std::uint64_t left = (bytes.opening | bytes.closing) & ~text; left != 0; left &= left - 1) {
      const unsigned place = static_cast<unsigned>(__builtin_ctzll(left));
      if ((bytes.closing >> place & 1) != 0) {
        if (--depth == 0) return at + place < end ? at + place + 1 : nullptr;
      } else {
        ++depth;
        if (at[place] == '{' && at + place != first) return nullptr;
      }
    }
  }
  return nullptr;
}

#else

inline const char* end_of_list(const char* /*at*/, const char* /*end*/) { return nullptr; }

#endif

}  // namespace whystall
