#include "strings.hpp"

#include <algorithm>

namespace whystall {

namespace {

// Length of the valid UTF-8 sequence at text[at], or 0 where there is none.
std::size_t utf8_length(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(at);
  if (lead < 0x80) return 1;
  std::size_t length = 0;
  std::uint32_t lowest = 0;
  std::uint32_t code = 0;
  if ((lead & 0xe0) == 0xc0) {
    length = 2, lowest = 0x80, code = lead & 0x1f;
  } else if ((lead & 0xf0) == 0xe0) {
    length = 3, lowest = 0x800, code = lead & 0x0f;
  } else if ((lead & 0xf8) == 0xf0) {
    length = 4, lowest = 0x10000, code = lead & 0x07;
  } else {
    return 0;
  }
  if (at + length > text.size()) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(at + i) & 0xc0) != 0x80) return 0;
    code = (code << 6) | (byte(at + i) & 0x3f);
  }
  const bool surrogate = code >= 0xd800 && code <= 0xdfff;
  return code < lowest || code > 0x10ffff || surrogate ? 0 : length;
}

void append_utf8(std::string& out, std::uint32_t code) {
  if (code < 0x80) {
    out += static_cast<char>(code);
  } else if (code < 0x800) {
    out += static_cast<char>(0xc0 | (code >> 6));
    out += static_cast<char>(0x80 | (code & 0x3f));
  } else if (code < 0x10000) {
    out += static_cast<char>(0xe0 | (code >> 12));
    out += static_cast<char>(0x80 | ((code >> 6) & 0x3f));
    out += static_cast<char>(0x80 | (code & 0x3f));
  } else {
    out += static_cast<char>(0xf0 | (code >> 18));
    out += static_cast<char>(0x80 | ((code >> 12) & 0x3f));
    out += static_cast<char>(0x80 | ((code >> 6) & 0x3f));
    out += static_cast<char>(0x80 | (code & 0x3f));
  }
}

constexpr std::uint32_t kReplacement = 0xfffd;

// Four hexadecimal digits at raw[at], or -1.
std::int32_t hex4(std::string_view raw, std::size_t at) {
  if (at + 4 > raw.size()) return -1;
  std::int32_t value = 0;
  for (std::size_t i = at; i < at + 4; ++i) {
    const char c = raw[i];
    std::int32_t digit = -1;
    if (c >= '0' && c <= '9') digit = c - '0';
    if (c >= 'a' && c <= 'f') digit = c - 'a' + 10;
    if (c >= 'A' && c <= 'F') digit = c - 'A' + 10;
    if (digit < 0) return -1;
    value = value * 16 + digit;
  }
  return value;
}

// Decodes the \uXXXX escape at raw[at] (a surrogate pair takes two). Returns characters read, or 0.
std::size_t append_unicode_escape(std::string_view raw, std::size_t at, std::string& out) {
  const std::int32_t first = hex4(raw, at + 2);
  if (first < 0) return 0;
  if (first < 0xd800 || first > 0xdfff) {
    append_utf8(out, static_cast<std::uint32_t>(first));
    return 6;
  }
  const bool pair = first <= 0xdbff && at + 12 <= raw.size() && raw[at + 6] == '\\' && raw[at + 7] == 'u';
  const std::int32_t second = pair ? hex4(raw, at + 8) : -1;
  if (second >= 0xdc00 && second <= 0xdfff) {
    append_utf8(out, 0x10000 + ((static_cast<std::uint32_t>(first) - 0xd800) << 10) +
                         (static_cast<std::uint32_t>(second) - 0xdc00));
    return 12;
  }
  append_utf8(out, kReplacement);
  return 6;
}

// Decodes the escape at raw[at] (a backslash). An escape that JSON does not know stays as written.
std::size_t append_escape(std::string_view raw, std::size_t at, std::string& out) {
  if (at + 1 >= raw.size()) {
    out += '\\';
    return 1;
  }
  switch (raw[at + 1]) {
    case '"': out += '"'; return 2;
    case '\\': out += '\\'; return 2;
    case '/': out += '/'; return 2;
    case 'b': out += '\b'; return 2;
    case 'f': out += '\f'; return 2;
    case 'n': out += '\n'; return 2;
    case 'r': out += '\r'; return 2;
    case 't': out += '\t'; return 2;
    case 'u':
      if (const std::size_t read = append_unicode_escape(raw, at, out)) return read;
      break;
    default: break;
  }
  out += '\\';
  return 1;
}

}  // namespace

bool is_valid_utf8(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = utf8_length(text, at);
    if (length == 0) return false;
    at += length;
  }
  return true;
}

std::string decode_json_text(std::string_view raw) {
  std::string out;
  out.reserve(raw.size());
  for (std::size_t at = 0; at < raw.size();) {
    if (raw[at] == '\\') {
      at += append_escape(raw, at, out);
      continue;
    }
    const std::size_t length = utf8_length(raw, at);
    if (length == 0) {
      append_utf8(out, kReplacement);
      ++at;
    } else {
      out.append(raw.substr(at, length));
      at += length;
    }
  }
  return out;
}

std::uint32_t StringPool::insert(std::string_view raw, bool has_escape, std::uint64_t hash) {
  if (holds_ == Holds::Texts && (has_escape || !is_valid_utf8(raw))) {
    const std::string decoded = decode_json_text(raw);
    // What is written becomes an alias of what is meant, so that equal texts share one id.
    const std::uint32_t id = intern(decoded, false);
    place({hash, store(raw), raw.size(), id, has_escape});
    return id;
  }
  const auto id = static_cast<std::uint32_t>(texts_.size());
  const char* text = store(raw);
  texts_.emplace_back(text, raw.size());
  place({hash, text, raw.size(), id, false});
  return id;
}

void StringPool::place(const Slot& slot) {
  if (++used_ * 2 > slots_.size()) {
    std::vector<Slot> wider(slots_.size() * 2);
    std::swap(slots_, wider);
    for (const Slot& old : wider) {
      if (old.text != nullptr) put(old);
    }
  }
  put(slot);
}

void StringPool::put(const Slot& slot) {
  std::size_t at = slot.hash & mask();
  while (slots_[at].text != nullptr) at = (at + 1) & mask();
  slots_[at] = slot;
}

const char* StringPool::store(std::string_view text) {
  if (arena_left_ < text.size() + 1) {
    arena_.emplace_back(std::max(kArena, text.size() + 1));
    arena_at_ = arena_.back().data();
    arena_left_ = arena_.back().size();
  }
  char* stored = arena_at_;
  if (!text.empty()) std::memcpy(stored, text.data(), text.size());
  arena_at_ += text.size() + 1;
  arena_left_ -= text.size() + 1;
  bytes_ += text.size();
  return stored;
}

}  // namespace whystall
