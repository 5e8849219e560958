// Interned strings: each distinct text is stored once and named by a 32-bit id.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "memory.hpp"

namespace whystall {

// Text as valid UTF-8 with JSON escapes resolved; what cannot be decoded becomes U+FFFD.
std::string decode_json_text(std::string_view raw);
bool is_valid_utf8(std::string_view text);

class StringPool {
 public:
  enum class Holds { Texts, Sources };  // sources stay as they are written, valid or not
  explicit StringPool(Holds holds = Holds::Texts) : holds_(holds), slots_(kFirstSlots) {}

  // The id of a JSON string's text as it stands between the quotes.
  std::uint32_t intern(std::string_view raw, bool has_escape) {
    const std::uint64_t hash = hash_of(raw);
    for (std::size_t at = hash & mask();; at = (at + 1) & mask()) {
      const Slot& slot = slots_[at];
      if (slot.text == nullptr) return insert(raw, has_escape, hash);
      if (slot.hash == hash && slot.size == raw.size() && slot.escaped == has_escape &&
          std::memcmp(slot.text, raw.data(), raw.size()) == 0) {
        return slot.id;
      }
    }
  }
  // The same without adding a text: kNone where there is none.
  std::uint32_t find(std::string_view raw, bool has_escape) const {
    const std::uint64_t hash = hash_of(raw);
    for (std::size_t at = hash & mask(); slots_[at].text != nullptr; at = (at + 1) & mask()) {
      const Slot& slot = slots_[at];
      if (slot.hash == hash && slot.size == raw.size() && slot.escaped == has_escape &&
          std::memcmp(slot.text, raw.data(), raw.size()) == 0) {
        return slot.id;
      }
    }
    return kNone;
  }
  static constexpr std::uint32_t kNone = 0xffffffff;
  std::size_t size() const { return texts_.size(); }
  std::string_view text(std::uint32_t id) const { return texts_[id]; }
  std::size_t bytes() const { return bytes_; }

 private:
  struct Slot {
    std::uint64_t hash = 0;
    const char* text = nullptr;
    std::size_t size = 0;
    std::uint32_t id = 0;
    bool escaped = false;  // the key is JSON source with escapes, not the text itself
  };
  static std::uint64_t hash_of(std::string_view text) {
    constexpr std::uint64_t kPrime = 0x9e3779b97f4a7c15ULL;
    const char* at = text.data();
    const char* const end = at + text.size();
    std::uint64_t first = text.size() * kPrime;
    std::uint64_t second = ~first;
    // two lanes, so that one multiplication need not wait for the other
    for (; end - at >= 16; at += 16) {
      first = mix(first ^ word_at(at));
      second = mix(second ^ word_at(at + 8));
    }
    if (end - at >= 8) {
      first = mix(first ^ word_at(at));
      at += 8;
    }
    std::uint64_t tail = 0;
    if (end != at) std::memcpy(&tail, at, static_cast<std::size_t>(end - at));
    return mix(mix(first ^ tail) ^ second);
  }
  static std::uint64_t word_at(const char* at) {
    std::uint64_t word;
    std::memcpy(&word, at, sizeof word);
    return word;
  }
  static std::uint64_t mix(std::uint64_t value) {
    value *= 0xff51afd7ed558ccdULL;
    return value ^ (value >> 32);
  }
  std::size_t mask() const { return slots_.size() - 1; }
  std::uint32_t insert(std::string_view raw, bool has_escape, std::uint64_t hash);
  void place(const Slot& slot);
  void put(const Slot& slot);
  const char* store(std::string_view text);

  static constexpr std::size_t kFirstSlots = 1024;
  static constexpr std::size_t kArena = 64 * 1024;
  Holds holds_;
  std::vector<Slot> slots_;
  std::size_t used_ = 0;
  std::vector<std::string_view> texts_;
  std::vector<Block> arena_;
  std::size_t arena_left_ = 0;
  char* arena_at_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace whystall
