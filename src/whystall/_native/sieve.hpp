// Lets through what a trace says of collectives, and what lies around its events: some hundredth of the bytes.
//
// Nothing is parsed. In sound JSON `{"ph"` begins an object, `"kernel"` and `"Collective name"` are whole strings and
// `"ProfilerStep#` begins one: a quote inside a text is escaped (a text that goes on so after a quote is let through
// for nothing). So an event is found by looking for strings, at some bytes per cycle, and whoever reads what is let
// through reads whole events as they stand in the file.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace whystall {

class Sieve {
 public:
  // An event of more than `longest` bytes is let through as it is, and so is a file in which none begins within as many.
  explicit Sieve(std::size_t longest) : longest_(longest) {}

  // Space for the next bytes of the file, valid until accept().
  char* space(std::size_t size);
  void accept(std::size_t size) { filled_ += size; }

  // Appends what is let through of the events that are complete: those that name a collective or mark a step, and
  // kernels whose name `wanted` wants, or that have none that could be told.
  template <class Wanted>
  void sift(const Wanted& wanted, std::string& out);

  // Appends the rest of the file, which begins with its last event.
  void finish(std::string& out);

 private:
  static constexpr std::size_t kMostNames = 1 << 20;
  static constexpr std::size_t kLongestBeginning = 64;

  template <class Wanted>
  bool wants(const char* event, const char* end, const Wanted& wanted);
  void keep_from(const char* at);

  std::size_t longest_;
  std::vector<char> buffer_;
  std::size_t filled_ = 0;
  bool at_event_ = false;  // whether the bytes at hand begin with an event; what comes before one is let through
  std::size_t searched_ = 0;
  std::unordered_map<std::string, bool> known_;
};

// What is looked for: `"kernel"`, or as traces of 2021 have it `"Kernel"`; what names a collective or marks a step.
enum class Sought : std::uint8_t { Nothing, Kernel, Named };
struct Found {
  const char* at;
  Sought what;
};

// The first of what is looked for between `at` and `end`, or nothing at `end`.
Found next_sought(const char* at, const char* end);
// The first event that begins at or after `at`, or `end`; the last one that begins before `end`, or `begin`.
const char* event_from(const char* at, const char* end);
const char* event_before(const char* begin, const char* end);
// Where `text` stands between `at` and `end`, or `end`.
const char* find_text(const char* at, const char* end, std::string_view text);
// The name of an event where it stands plainly before its arguments, else nothing.
std::string_view plain_name(const char* event, const char* end);

template <class Wanted>
bool Sieve::wants(const char* event, const char* end, const Wanted& wanted) {
  const std::string_view name = plain_name(event, end);
  if (name.empty()) return true;
  std::string key(name);
  const auto found = known_.find(key);
  if (found != known_.end()) return found->second;
  const bool said = wanted(key);
  if (known_.size() < kMostNames) known_.emplace(std::move(key), said);
  return said;
}

template <class Wanted>
void Sieve::sift(const Wanted& wanted, std::string& out) {
  const char* const begin = buffer_.data();
  const char* const end = begin + filled_;
  const char* at = begin;
  if (!at_event_) {
    at = event_from(begin + searched_, end);
    if (at == end) {
      searched_ = filled_ - std::min(filled_, kLongestBeginning);
      if (filled_ >= longest_) finish(out);
      return;
    }
    out.append(begin, at);
    at_event_ = true;
  }
  const char* const last = event_before(at, end);
  for (Found found = next_sought(at, last); found.at < last; found = next_sought(at, last)) {
    const char* const event = event_before(at, found.at);
    const char* const next = event_from(found.at, last);
    bool kept = false;
    for (; !kept && found.at < next; found = next_sought(found.at + 1, next)) {
      // Behind the end of an object stands another event, which does not begin with its phase.
      kept = found.what == Sought::Named || find_text(event, found.at, "}") != found.at || wants(event, next, wanted);
    }
    if (kept) out.append(event, next);
    at = next;
  }
  keep_from(last);
  if (filled_ > longest_) {
    finish(out);
    at_event_ = false;
  }
}

}  // namespace whystall
