#include "sieve.hpp"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include <cstring>

namespace whystall {

namespace {

constexpr std::string_view kPhase = "\"ph\"";

inline bool is_space(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

// Whether the brace at `at` begins an event.
bool begins_event(const char* at, const char* end) {
  do ++at;
  while (at < end && is_space(*at));
  return static_cast<std::size_t>(end - at) >= kPhase.size() && std::memcmp(at, kPhase.data(), kPhase.size()) == 0;
}

constexpr std::ptrdiff_t kAtOnce = 16;
constexpr std::ptrdiff_t kLongest = 17;  // bytes of the longest word

bool stands_at(const char* at, const char* end, std::string_view text) {
  return static_cast<std::size_t>(end - at) >= text.size() && std::memcmp(at, text.data(), text.size()) == 0;
}

// What begins at `at`.
Sought sought_at(const char* at, const char* end) {
  if (*at != '"') return Sought::Nothing;
  if (stands_at(at, end, "\"kernel\"") || stands_at(at, end, "\"Kernel\"")) return Sought::Kernel;
  if (stands_at(at, end, "\"Collective name\"") || stands_at(at, end, "\"ProfilerStep#")) return Sought::Named;
  return Sought::Nothing;
}

}  // namespace

const char* event_from(const char* at, const char* end) {
  while (at < end) {
    at = static_cast<const char*>(std::memchr(at, '{', static_cast<std::size_t>(end - at)));
    if (at == nullptr) return end;
    if (begins_event(at, end)) return at;
    ++at;
  }
  return end;
}

const char* event_before(const char* begin, const char* end) {
  for (const char* at = end; at > begin;) {
    if (*--at == '{' && begins_event(at, end)) return at;
  }
  return begin;
}

const char* find_text(const char* at, const char* end, std::string_view text) {
  if (at >= end) return end;
  const void* found = ::memmem(at, static_cast<std::size_t>(end - at), text.data(), text.size());
  return found == nullptr ? end : static_cast<const char*>(found);
}

Found next_sought(const char* at, const char* end) {
#if defined(__SSE2__)
  // Two letters of each word, where the word would have them, decide nearly always; sixteen places at a time.
  const auto load = [](const char* from) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from)); };
  const auto is = [](__m128i bytes, char letter) { return _mm_cmpeq_epi8(bytes, _mm_set1_epi8(letter)); };
  for (; end - at >= kAtOnce + kLongest; at += kAtOnce) {
    const __m128i second = load(at + 1);
    const __m128i kernel = _mm_and_si128(is(_mm_or_si128(second, _mm_set1_epi8(0x20)), 'k'), is(load(at + 6), 'l'));
    const __m128i collective = _mm_and_si128(is(second, 'C'), is(load(at + 12), 'n'));
    const __m128i step = _mm_and_si128(is(second, 'P'), is(load(at + 13), '#'));
    const __m128i any = _mm_or_si128(kernel, _mm_or_si128(collective, step));
    for (auto places = static_cast<unsigned>(_mm_movemask_epi8(any)); places != 0; places &= places - 1) {
      const char* const place = at + __builtin_ctz(places);
      const Sought what = sought_at(place, end);
      if (what != Sought::Nothing) return {place, what};
    }
  }
#endif
  for (; at < end; ++at) {
    const Sought what = sought_at(at, end);
    if (what != Sought::Nothing) return {at, what};
  }
  return {end, Sought::Nothing};
}

std::string_view plain_name(const char* event, const char* end) {
  constexpr std::string_view kName = "\"name\"";
  const char* at = find_text(event, end, kName);
  if (at == end || find_text(event, at, "\"args\"") != at) return {};
  at += kName.size();
  while (at < end && (is_space(*at) || *at == ':')) ++at;
  if (at == end || *at != '"') return {};
  const char* const first = ++at;
  while (at < end && *at != '"' && *at != '\\') ++at;
  return at < end && *at == '"' ? std::string_view(first, static_cast<std::size_t>(at - first)) : std::string_view{};
}

char* Sieve::space(std::size_t size) {
  if (filled_ + size > buffer_.size()) buffer_.resize(filled_ + size);
  return buffer_.data() + filled_;
}

void Sieve::finish(std::string& out) {
  out.append(buffer_.data(), filled_);
  filled_ = searched_ = 0;
}

void Sieve::keep_from(const char* at) {
  const auto left = static_cast<std::size_t>(buffer_.data() + filled_ - at);
  std::memmove(buffer_.data(), at, left);
  filled_ = left;
}

}  // namespace whystall
