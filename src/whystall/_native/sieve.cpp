#include "sieve.hpp"

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

bool is_category(const char* event, const char* found) {
  return found - event >= 2 && (found[-1] == 'k' || found[-1] == 'K') && found[-2] == '"';
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
