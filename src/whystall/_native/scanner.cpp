#include "scanner.hpp"

#include "lists.hpp"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include <charconv>
#include <cmath>

namespace whystall {

namespace {

// Bytes that may be read (never used) past the data, so that short comparisons need no bounds check.
constexpr std::size_t kPadding = 256;
constexpr std::size_t kPredictionsPerCategory = 256;
constexpr std::size_t kPredictedCategories = 64;
constexpr std::size_t kRetryFrom = 64 * 1024;
// Real traces have some twenty categories and a hundred keys; a hostile one must not get a column for each event.
constexpr std::size_t kDenseKeys = 1024;
// How often the file may be parsed in vain, looking for events inside what could not be parsed.
constexpr std::uint64_t kMostRereads = 4;
constexpr std::uint64_t kFreeRereads = 16 << 20;
// Lists as they are written are kept beside their texts up to here.
constexpr std::size_t kMostListBytes = 1 << 20;
constexpr std::uint64_t kLargestMicroseconds = 9'200'000'000'000'000;  // times 1000 still fits 64 bits
constexpr std::uint64_t kLargestNanoseconds = 9'200'000'000'000'000'000;

// Blanks and, leniently, every control character but NUL (which the padding is made of).
inline bool is_space(char c) { return static_cast<unsigned char>(c - 1) < 32; }
inline bool is_digit(char c) { return static_cast<unsigned char>(c - '0') < 10; }
inline bool ends_bare_value(char c) { return c == ',' || c == '}' || c == ']' || is_space(c); }

// Eight bytes as one word, the first byte least significant.
inline std::uint64_t load_word(const char* at) {
  std::uint64_t word;
  std::memcpy(&word, at, sizeof word);
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
  word = __builtin_bswap64(word);
#endif
  return word;
}

// How many of the eight bytes are digits before the first that is none.
inline unsigned leading_digits(std::uint64_t word) {
  const std::uint64_t digits = word ^ 0x3030303030303030;  // a digit becomes its value, anything else 10 or more
  const std::uint64_t others = (digits | (digits + 0x7676767676767676)) & 0x8080808080808080;
  return others == 0 ? 8 : static_cast<unsigned>(__builtin_ctzll(others)) / 8;
}

// Eight bytes that are values of digits as a number, in three multiplications that each join neighbours.
inline std::uint64_t join_digits(std::uint64_t values) {
  values = values * 10 + (values >> 8);
  return (((values & 0x000000ff000000ff) * 0x000f424000000064) +
          (((values >> 16) & 0x000000ff000000ff) * 0x0000271000000001)) >> 32;
}

constexpr std::array<std::uint64_t, 9> kPowersOfTen{1, 10, 100, 1'000, 10'000, 100'000, 1'000'000, 10'000'000, 100'000'000};

// Reads up to eight digits without a loop; returns how many there were. (Loops over digits are mispredicted
// once per number, which costs more than the digits.)
inline unsigned read_eight(const char* at, std::uint64_t& value) {
  const std::uint64_t word = load_word(at);
  const unsigned count = leading_digits(word);
  // The first digit stands lowest: shifted up, the missing ones become leading zeros.
  const std::uint64_t values = count == 0 ? 0 : (word ^ 0x3030303030303030) << (64 - 8 * count);
  value = value * kPowersOfTen[count] + join_digits(values);
  return count;
}

// Reads the digits at `at` while there are at most 18, which always fit. Returns where they end.
inline const char* read_digits(const char* at, std::uint64_t& value) {
  value = 0;
  unsigned count = read_eight(at, value);
  if (count < 8) return at + count;
  count = read_eight(at + 8, value);
  if (count < 8) return at + 8 + count;
  at += 16;
  const char* const last = at + 2;
  while (at < last && is_digit(*at)) value = value * 10 + static_cast<std::uint64_t>(*at++ - '0');
  return at;
}

// The next quote or backslash at or after `at`. May stop past `end` when there is none before it.
const char* find_quote_or_backslash(const char* at, const char* end) {
#if defined(__SSE2__)
  const __m128i quote = _mm_set1_epi8('"');
  const __m128i backslash = _mm_set1_epi8('\\');
  const auto found_in = [&](const char* from) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    const int found = _mm_movemask_epi8(_mm_or_si128(_mm_cmpeq_epi8(bytes, quote), _mm_cmpeq_epi8(bytes, backslash)));
    return static_cast<std::uint64_t>(static_cast<unsigned>(found));
  };
  // Sixty-four bytes at a time: most names end within, so that one branch decides.
  for (; at < end; at += 64) {
    const std::uint64_t found =
        found_in(at) | found_in(at + 16) << 16 | found_in(at + 32) << 32 | found_in(at + 48) << 48;
    if (found != 0) return at + __builtin_ctzll(found);
  }
#else
  while (at < end && *at != '"' && *at != '\\') ++at;
#endif
  return at;
}

struct Decimal {
  std::uint64_t whole = 0;
  std::uint32_t thousandths = 0;
  bool negative = false;
  bool valid = false;
};

// A decimal number as whole and thousandths, exactly; further digits round to nearest.
Decimal parse_decimal(std::string_view token) {
  Decimal out;
  std::size_t at = 0;
  if (at < token.size() && (token[at] == '-' || token[at] == '+')) out.negative = token[at++] == '-';
  const std::size_t first_digit = at;
  for (; at < token.size() && is_digit(token[at]); ++at) {
    if (out.whole > kLargestNanoseconds / 10) return out;
    out.whole = out.whole * 10 + static_cast<std::uint64_t>(token[at] - '0');
  }
  if (at == first_digit) return out;
  if (at < token.size() && token[at] == '.') {
    ++at;
    std::uint32_t scale = 100;
    bool round_up = false;
    for (unsigned place = 0; at < token.size() && is_digit(token[at]); ++at, ++place) {
      if (place < 3) {
        out.thousandths += scale * static_cast<std::uint32_t>(token[at] - '0');
        scale /= 10;
      } else if (place == 3) {
        round_up = token[at] >= '5';
      }
    }
    if (round_up && ++out.thousandths == 1000) {
      out.thousandths = 0;
      ++out.whole;
    }
  }
  if (at < token.size() && (token[at] == 'e' || token[at] == 'E')) {
    double value = 0;
    const auto read = std::from_chars(token.data() + first_digit, token.data() + token.size(), value);
    if (read.ec != std::errc() || read.ptr != token.data() + token.size() || !(value < 9.2e18)) return out;
    out.whole = static_cast<std::uint64_t>(value);
    out.thousandths = static_cast<std::uint32_t>(std::round((value - static_cast<double>(out.whole)) * 1000.0));
    out.whole += out.thousandths / 1000;
    out.thousandths %= 1000;
    out.valid = true;
    return out;
  }
  out.valid = at == token.size();
  return out;
}

std::int64_t in_nanoseconds(const Decimal& microseconds) {
  const auto value = static_cast<std::int64_t>(microseconds.whole * 1000 + microseconds.thousandths);
  return microseconds.negative ? -value : value;
}

// A key with its quotes, as it stands in the first bytes of a word (least significant byte first).
struct FieldKey {
  std::uint64_t word = 0;
  std::uint64_t mask = 0;
  unsigned size = 0;
};

constexpr FieldKey field_key(const char* quoted) {
  FieldKey key;
  for (; quoted[key.size] != '\0'; ++key.size) {
    key.word |= std::uint64_t{static_cast<unsigned char>(quoted[key.size])} << (8 * key.size);
    key.mask |= std::uint64_t{0xff} << (8 * key.size);
  }
  return key;
}

// In the order of Scanner::Field.
constexpr std::array<FieldKey, 11> kFieldKeys{
    field_key("\"ph\""),  field_key("\"cat\""), field_key("\"name\""), field_key("\"pid\""),
    field_key("\"tid\""), field_key("\"ts\""),  field_key("\"dur\""),  field_key("\"id\""),
    field_key("\"bp\""),  field_key("\"s\""),   field_key("\"args\"")};

}  // namespace

// The first byte at or after `at` that is no blank; at the latest the padding's.
const char* Scanner::past_space(const char* at) {
#if defined(__SSE2__)
  const __m128i blank = _mm_set1_epi8(32);
  while (true) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
    const __m128i blanks = _mm_andnot_si128(_mm_cmpeq_epi8(bytes, _mm_setzero_si128()),
                                            _mm_cmpeq_epi8(_mm_max_epu8(bytes, blank), blank));
    const unsigned other = ~static_cast<unsigned>(_mm_movemask_epi8(blanks)) & 0xffffU;
    if (other != 0) return at + __builtin_ctz(other);
    at += 16;
  }
#else
  while (is_space(*at)) ++at;
  return at;
#endif
}

Scanner::Scanner(const std::vector<std::string>& keep, std::uint64_t event_limit, std::uint64_t value_limit,
                 Begins begins)
    : stage_(begins == Begins::Document ? Stage::Start : Stage::Event),
      top_is_array_(begins == Begins::EventsOfArray),
      found_events_(begins != Begins::Document),
      event_limit_(event_limit),
      value_limit_(value_limit),
      keep_(keep.begin(), keep.end()) {
  categories_.intern("", false);
  names_.intern("", false);
  predicted_.resize(kPredictedCategories * kPredictionsPerCategory);
  last_seen_.resize(kMostKeys);
  thread_cache_.fill(0);
}

char* Scanner::space(std::size_t size) {
  if (filled_ + size + kPadding > buffer_.size()) buffer_.resize(filled_ + size + kPadding);
  return buffer_.data() + filled_;
}

void Scanner::feed(const char* data, std::size_t size) {
  if (size > 0) std::memcpy(space(size), data, size);
  accept(size);
}

void Scanner::accept(std::size_t size) {
  counts_.bytes += size;
  if (stage_ == Stage::End) return;
  filled_ += size;
  // An event longer than a chunk is parsed again only once twice as much has come: linear overall.
  if (filled_ < retry_at_ && !last_) return;
  run();
}

void Scanner::finish() {
  last_ = true;
  accept(0);
  while (stage_ == Stage::Event && filled_ > 0) {
    // Either the file ends inside this event, or something unclosed swallowed events after it.
    const std::size_t left = filled_;
    stage_ = Stage::Resync;
    searched_ = searched_after(left);
    const std::uint64_t broken_bytes = counts_.broken_bytes;
    run();
    if (stage_ == Stage::Resync) {
      counts_.broken_bytes = broken_bytes;
      counts_.unfinished_bytes = left;
      return;
    }
    ++counts_.broken;
  }
  if (stage_ == Stage::Resync) {
    counts_.broken_bytes += filled_;
  } else if (stage_ != Stage::End) {
    counts_.unfinished_bytes = filled_;
  }
}

void Scanner::run() {
  if (buffer_.size() < filled_ + kPadding) buffer_.resize(filled_ + kPadding);
  std::memset(buffer_.data() + filled_, 0, kPadding);
  begin_ = buffer_.data();
  end_ = begin_ + filled_;
  while (stage_ != Stage::End && step()) {
  }
  const auto left = static_cast<std::size_t>(stage_ == Stage::End ? 0 : end_ - begin_);
  if (left > 0) std::memmove(buffer_.data(), begin_, left);
  filled_ = left;
  retry_at_ = left >= kRetryFrom ? left * 2 : 0;
  if (left > value_limit_) {
    ++counts_.broken;
    stage_ = Stage::Resync;
    searched_ = searched_after(left);
    retry_at_ = 0;
  }
}

// Runs one stage once. Returns false when more bytes are needed.
bool Scanner::step() {
  Status status = Status::More;
  failed_ = 1;
  switch (stage_) {
    case Stage::Start: status = start_document(); break;
    case Stage::TopKey: status = top_key(); break;
    case Stage::Event: status = next_event(); break;
    case Stage::Resync: status = resync(); break;
    case Stage::End: return false;
  }
  if (status == Status::Bad) {
    ++counts_.broken;
    stage_ = Stage::Resync;
    searched_ = searched_after(failed_);
    return true;
  }
  return status == Status::Done;
}

// How much of what could not be parsed is passed over: one byte, since events may lie inside it, until
// that has cost too much.
std::size_t Scanner::searched_after(std::size_t failed) {
  wasted_ += failed;
  return wasted_ <= counts_.bytes * kMostRereads + kFreeRereads ? 1 : std::max<std::size_t>(failed, 1);
}

Scanner::Status Scanner::start_document() {
  if (end_ - begin_ < 3 && !last_) return Status::More;
  if (end_ - begin_ >= 3 && std::memcmp(begin_, "\xef\xbb\xbf", 3) == 0) begin_ += 3;
  const char* at = begin_;
  if (skip_space(at) == Status::More) {
    begin_ = at;
    return Status::More;
  }
  begin_ = at + 1;
  if (*at == '[') {
    top_is_array_ = true;
    found_events_ = true;
    stage_ = Stage::Event;
  } else if (*at == '{') {
    stage_ = Stage::TopKey;
  } else {
    is_json_ = false;
    stage_ = Stage::End;
  }
  return Status::Done;
}

Scanner::Status Scanner::top_key() {
  const char* at = begin_;
  while (true) {
    if (skip_space(at) == Status::More) return Status::More;
    if (*at != ',') break;
    ++at;
  }
  begin_ = at;
  if (*at == '}') {
    stage_ = Stage::End;
    return Status::Done;
  }
  std::string_view key;
  bool escaped = false;
  if (*at != '"') return Status::Bad;
  if (const Status status = parse_text(at, key, escaped); status != Status::Done) return status;
  if (const Status status = skip_colon(at); status != Status::Done) return status;
  if (key == "traceEvents" && *at == '[') {
    found_events_ = true;
    stage_ = Stage::Event;
    begin_ = at + 1;
    return Status::Done;
  }
  std::string_view raw;
  if (const Status status = skip_value(at, raw); status != Status::Done) return status;
  if (keep_.count(std::string(key)) > 0) kept_.emplace_back(std::string(key), std::string(raw));
  begin_ = at;
  return Status::Done;
}

Scanner::Status Scanner::next_event() {
  const char* at = begin_;
  while (true) {
    if (skip_space(at) == Status::More) {
      begin_ = at;
      return Status::More;
    }
    if (*at != ',') break;
    ++at;
  }
  begin_ = at;
  if (*at == ']') {
    ++begin_;
    stage_ = top_is_array_ ? Stage::End : Stage::TopKey;
    return Status::Done;
  }
  if (*at == '{') {
    const Status status = parse_event(at);
    if (status == Status::Done) begin_ = at;
    if (status == Status::Bad) failed_ = static_cast<std::size_t>(at - begin_);
    return status;
  }
  std::string_view raw;
  const Status status = skip_value(at, raw);
  if (status == Status::Done) {
    ++counts_.not_objects;
    begin_ = at;
  }
  return status;
}

// Finds the next place where an event starts. In a Kineto trace `{"ph"` starts an event and can
// stand nowhere else: inside a JSON string the quotes would be escaped.
Scanner::Status Scanner::resync() {
  const char* const from = begin_;
  const char* at = std::min(from + searched_, end_);
  searched_ = 0;
  for (; at < end_; ++at) {
    at = static_cast<const char*>(std::memchr(at, '{', static_cast<std::size_t>(end_ - at)));
    if (at == nullptr) {
      at = end_;
      break;
    }
    const char* key = at + 1;
    const bool cut = skip_space(key) == Status::More || end_ - key < 4;
    if (cut && !last_) break;
    if (!(phase_first_ ? starts_event(at) : follows_event(at))) continue;
    counts_.broken_bytes += static_cast<std::uint64_t>(at - from);
    begin_ = at;
    stage_ = Stage::Event;
    found_events_ = true;
    return Status::Done;
  }
  // Keep a little, so that what precedes a brace is still known when it comes.
  const char* const kept = std::max(from, std::min(at, end_ - 64));
  counts_.broken_bytes += static_cast<std::uint64_t>(kept - from);
  begin_ = kept;
  searched_ = static_cast<std::size_t>(at - kept);
  return Status::More;
}

// Whether `{"ph"` stands at `at`, in a trace whose events all begin so.
bool Scanner::starts_event(const char* at) const {
  if (!phase_first_) return false;
  ++at;
  return skip_space(at) == Status::Done && end_ - at >= 4 && std::memcmp(at, "\"ph\"", 4) == 0;
}

// Whether only "}," stands between the brace at `at` and what precedes it.
bool Scanner::follows_event(const char* at) const {
  const auto back_over_space = [&](const char*& p) {
    while (p > begin_ && is_space(p[-1])) --p;
  };
  back_over_space(at);
  if (at == begin_ || at[-1] != ',') return false;
  --at;
  back_over_space(at);
  return at > begin_ && at[-1] == '}';
}

Scanner::Status Scanner::parse_event(const char*& at) {
  Event event;
  pending_.clear();
  unnamed_ = 0;
  ++serial_;
  ++at;
  Field previous = Field::Other;
  bool first = true;
  while (true) {
    Field field = Field::Other;
    bool ended = false;
    ExpectedField& expected = expected_[static_cast<unsigned char>(event.phase) % kPhases][static_cast<std::size_t>(previous)];
    if (const Status status = find_field(at, expected, field, ended); status != Status::Done) return status;
    if (ended) break;
    previous = field;
    if (const Status status = parse_field(at, event, field); status != Status::Done) return status;
    if (first) event.phase_first = field == Field::Phase;
    first = false;
  }
  if (!event.has_phase) {
    ++counts_.without_phase;
    return Status::Done;
  }
  if (!saw_event_) {
    saw_event_ = true;
    phase_first_ = event.phase_first;
  }
  commit(event);
  return Status::Done;
}

// Which of the keys with a column stands at `at` (a quote).
Scanner::Field Scanner::field_at(const char* at) {
  const std::uint64_t word = load_word(at);
  for (std::size_t field = 0; field < kFieldKeys.size(); ++field) {
    if ((word & kFieldKeys[field].mask) == kFieldKeys[field].word) return static_cast<Field>(field);
  }
  return Field::Other;
}

// Goes to the quote that opens an object's next key, or over the object's end.
inline Scanner::Status Scanner::find_key(const char*& at, bool& ended) {
  while (true) {
    if (skip_space(at) == Status::More) return Status::More;
    if (*at == '"') return Status::Done;
    if (*at == '}') {
      ++at;
      ended = true;
      return Status::Done;
    }
    if (*at != ',') return Status::Bad;
    ++at;
  }
}

// Goes to the next field's value (of one without a column of its own: to its key), or over the event's end.
Scanner::Status Scanner::find_field(const char*& at, ExpectedField& expected, Field& field, bool& ended) {
  if (expected.separator.stands_at(at) && at + expected.separator.size() < end_) {
    at += expected.separator.size();
    field = expected.field;
    return skip_space(at);
  }
  const char* const from = at;
  if (const Status status = find_key(at, ended); status != Status::Done || ended) return status;
  field = field_at(at);
  if (field == Field::Other) return Status::Done;
  at += kFieldKeys[static_cast<std::size_t>(field)].size;
  if (const Status status = skip_colon(at); status != Status::Done) return status;
  expected.separator.learn(from, at);
  expected.field = field;
  return Status::Done;
}

Scanner::Status Scanner::parse_field(const char*& at, Event& event, Field field) {
  if (field == Field::Other) return parse_other_field(at);
  switch (field) {
    case Field::Start: return parse_time(at, event.start, event);
    case Field::Duration: return parse_time(at, event.duration, event);
    case Field::Process: return parse_thread_part(at, event.thread.pid, event.thread.pid_kind);
    case Field::Thread: return parse_thread_part(at, event.thread.tid, event.thread.tid_kind);
    case Field::Id: return parse_argument(at, id_key_);
    case Field::Binding: return parse_argument(at, binding_key_);
    case Field::Scope: return parse_argument(at, scope_key_);
    case Field::Arguments:
      return *at == '{' ? parse_arguments(at, event.category) : parse_argument(at, key_of(".args", false));
    default: return parse_label(at, event, field);
  }
}

// Phase, category or name: text, though a number is taken as it is written.
Scanner::Status Scanner::parse_label(const char*& at, Event& event, Field field) {
  if (field == Field::Phase && at[0] == '"' && at[1] != '\\' && at[1] != '"' && at[2] == '"' && at + 3 < end_) {
    event.has_phase = true;
    event.phase = at[1];
    at += 3;
    return Status::Done;
  }
  std::string_view text;
  bool escaped = false;
  if (*at == '"') {
    if (const Status status = parse_text(at, text, escaped); status != Status::Done) return status;
  } else if (const Status status = skip_value(at, text); status != Status::Done) {
    return status;
  } else if (text == "null") {
    text = text.substr(0, 0);
  }
  if (field == Field::Phase) {
    set_phase(event, text, escaped);
  } else if (field == Field::Category) {
    if (text != categories_.text(last_category_) || escaped) last_category_ = categories_.intern(text, escaped);
    event.category = last_category_;
  } else {
    event.name = names_.intern(text, escaped);
  }
  return Status::Done;
}

void Scanner::set_phase(Event& event, std::string_view text, bool escaped) {
  const std::string decoded = escaped ? decode_json_text(text) : std::string(text);
  event.has_phase = !decoded.empty();
  event.phase = decoded.empty() ? '\0' : decoded.front();
}

// A key of the event itself that has no column of its own, stored as an argument named ".key".
Scanner::Status Scanner::parse_other_field(const char*& at) {
  std::string_view key;
  bool escaped = false;
  if (const Status status = parse_text(at, key, escaped); status != Status::Done) return status;
  if (const Status status = skip_colon(at); status != Status::Done) return status;
  std::string dotted = ".";
  dotted.append(key);
  return parse_argument(at, key_of(dotted, escaped));
}

// The id of an argument's name, kNoKey when there are too many of them already.
std::uint32_t Scanner::key_of(std::string_view key, bool escaped) {
  if (keys_.size() < kMostKeys) return keys_.intern(key, escaped);
  const std::uint32_t known = keys_.find(key, escaped);
  return known == StringPool::kNone ? kNoKey : known;
}

void Scanner::take_back(std::uint32_t key) {
  if (key != kNoKey && last_seen_[key].event == serial_) pending_[last_seen_[key].place].key = kNoKey;
}

Scanner::Status Scanner::parse_arguments(const char*& at, std::uint32_t category) {
  Predicted* const predictions = &predicted_[(category % kPredictedCategories) * kPredictionsPerCategory];
  std::uint32_t previous = 0;
  ++at;
  while (true) {
    // The key after this key is nearly always the same as last time: one comparison, no hashing.
    Predicted& next = predictions[previous % kPredictionsPerCategory];
    if (next.separator.stands_at(at) && at + next.separator.size() < end_) {
      at += next.separator.size();
      if (skip_space(at) == Status::More) return Status::More;
    } else {
      bool ended = false;
      if (const Status status = find_argument(at, next, ended); status != Status::Done) return status;
      if (ended) return Status::Done;
    }
    const std::uint32_t key = next.key;
    previous = key + 1;
    if (const Status status = parse_argument(at, key); status != Status::Done) return status;
  }
}

// Goes to the next argument's value and learns what it passed, or goes over the end of the arguments.
Scanner::Status Scanner::find_argument(const char*& at, Predicted& next, bool& ended) {
  const char* const from = at;
  if (const Status status = find_key(at, ended); status != Status::Done || ended) return status;
  std::string_view key;
  bool escaped = false;
  if (const Status status = parse_text(at, key, escaped); status != Status::Done) return status;
  next.separator.forget();
  next.key = key_of(key, escaped);
  if (const Status status = skip_colon(at); status != Status::Done) return status;
  if (next.key != kNoKey) next.separator.learn(from, at);
  return Status::Done;
}

Scanner::Status Scanner::parse_argument(const char*& at, std::uint32_t key) {
  const char first = *at;
  if (is_digit(first)) {
    std::uint64_t value = 0;
    const char* const last = read_digits(at, value);
    if (last < end_ && ends_bare_value(*last)) {
      at = last;
      remember(key, Kind::Integer, static_cast<std::int64_t>(value));
      return Status::Done;
    }
  }
  std::string_view text;
  if (first == '"') {
    bool escaped = false;
    if (const Status status = parse_text(at, text, escaped); status != Status::Done) return status;
    remember(key, Kind::Text, texts_.intern(text, escaped));
    return Status::Done;
  }
  if (first == '[' || first == '{') {
    if (const Status status = skip_list(at, text); status != Status::Done) return status;
    remember(key, Kind::Raw, list_id(text));
    return Status::Done;
  }
  if (const Status status = skip_bare(at, text); status != Status::Done) return status;
  if (text == "null") {
    take_back(key);
    return Status::Done;
  }
  Kind kind = Kind::Raw;
  std::int64_t bits = 0;
  if (!parse_number(text, kind, bits)) {
    kind = Kind::Raw;
    bits = texts_.intern(text, false);
  }
  remember(key, kind, bits);
  return Status::Done;
}

// The id of a list or an object, whose text is the same however it is written. Most were written before as they are now.
std::uint32_t Scanner::list_id(std::string_view raw) {
  if (lists_.bytes() > kMostListBytes) forget_lists();
  const std::uint32_t list = lists_.intern(raw, false);
  if (list == list_texts_.size()) list_texts_.push_back(texts_.intern(in_one_spelling(raw), false));
  return list_texts_[list];
}

// A list or an object with a blank after each comma and colon and no other outside of strings: however a file is laid
// out, the same value is the same text.
std::string_view Scanner::in_one_spelling(std::string_view raw) {
  bool is_so = true;
  bool in_text = false;
  for (std::size_t i = 0; i < raw.size() && is_so; ++i) {
    const char c = raw[i];
    if (in_text) {
      if (c == '\\') ++i;
      in_text = c != '"';
    } else if (c == '"') {
      in_text = true;
    } else if (c == ',' || c == ':') {
      is_so = i + 2 < raw.size() && raw[i + 1] == ' ' && !is_space(raw[i + 2]);
      ++i;
    } else {
      is_so = !is_space(c);
    }
  }
  if (is_so) return raw;
  respelled_.clear();
  in_text = false;
  for (std::size_t i = 0; i < raw.size(); ++i) {
    const char c = raw[i];
    if (!in_text && is_space(c)) continue;
    respelled_.push_back(c);
    if (in_text) {
      if (c == '\\' && i + 1 < raw.size()) respelled_.push_back(raw[++i]);
      in_text = c != '"';
    } else if (c == '"') {
      in_text = true;
    } else if (c == ',' || c == ':') {
      respelled_.push_back(' ');
    }
  }
  return respelled_;
}

bool Scanner::parse_number(std::string_view token, Kind& kind, std::int64_t& bits) {
  const char* const last = token.data() + token.size();
  const auto whole = std::from_chars(token.data(), last, bits);
  if (whole.ptr == last && whole.ec == std::errc()) {
    kind = Kind::Integer;
    return true;
  }
  if (!is_digit(token.front()) && token.front() != '-') return false;
  if (token.size() > 1 && token.front() == '-' && !is_digit(token[1])) return false;  // -inf, -NaN
  if (whole.ptr == last) return false;  // an integer beyond 64 bits stays exact as text
  double value = 0;
  const auto read = std::from_chars(token.data(), last, value);
  if (read.ptr != last || read.ec != std::errc()) return false;
  kind = Kind::Float;
  std::memcpy(&bits, &value, sizeof bits);
  return true;
}

Scanner::Status Scanner::parse_time(const char*& at, std::int64_t& nanoseconds, Event& event) {
  std::uint64_t whole = 0;
  const char* last = read_digits(at, whole);
  if (last > at && whole <= kLargestMicroseconds) {
    std::uint64_t thousandths = 0;
    if (*last == '.' && is_digit(last[1]) && is_digit(last[2]) && is_digit(last[3])) {
      thousandths = static_cast<std::uint64_t>(last[1] - '0') * 100 + static_cast<std::uint64_t>(last[2] - '0') * 10 +
                    static_cast<std::uint64_t>(last[3] - '0');
      last += 4;
    }
    if (last < end_ && ends_bare_value(*last)) {
      at = last;
      nanoseconds = static_cast<std::int64_t>(whole * 1000 + thousandths);
      return Status::Done;
    }
  }
  return parse_odd_time(at, nanoseconds, event);
}

// Times that are not plain decimals with none or three places: signs, exponents, quotes, other lengths.
Scanner::Status Scanner::parse_odd_time(const char*& at, std::int64_t& nanoseconds, Event& event) {
  std::string_view token;
  const bool quoted = *at == '"';
  bool escaped = false;
  const Status status = quoted ? parse_text(at, token, escaped) : skip_value(at, token);
  if (status != Status::Done) return status;
  const bool is_start = &nanoseconds == &event.start;
  const Decimal value = parse_decimal(token);
  nanoseconds = kMissing;
  if (!value.valid || (is_start && value.negative)) return Status::Done;
  event.quoted_time |= quoted;
  if (value.whole <= kLargestMicroseconds) {
    nanoseconds = in_nanoseconds(value);
  } else if (is_start && value.whole <= kLargestNanoseconds) {
    nanoseconds = -static_cast<std::int64_t>(value.whole);
    event.nanosecond_time = true;
  }
  return Status::Done;
}

Scanner::Status Scanner::parse_thread_part(const char*& at, std::int64_t& value, std::uint8_t& kind) {
  std::uint64_t digits = 0;
  const char* const last = read_digits(at, digits);
  if (last > at && last < end_ && ends_bare_value(*last)) {
    at = last;
    value = static_cast<std::int64_t>(digits);
    kind = 1;
    return Status::Done;
  }
  std::string_view text;
  bool escaped = false;
  if (*at == '"') {
    if (const Status status = parse_text(at, text, escaped); status != Status::Done) return status;
  } else {
    if (const Status status = skip_value(at, text); status != Status::Done) return status;
    if (text == "null") {
      kind = 0;
      value = 0;
      return Status::Done;
    }
    const auto read = std::from_chars(text.data(), text.data() + text.size(), value);
    if (read.ec == std::errc() && read.ptr == text.data() + text.size()) {
      kind = 1;
      return Status::Done;
    }
  }
  value = texts_.intern(text, escaped);
  kind = 2;
  return Status::Done;
}

// Reads the string at `at` (a quote); `text` is what stands between the quotes.
Scanner::Status Scanner::parse_text(const char*& at, std::string_view& text, bool& has_escape) {
  const char* const first = at + 1;
  const char* p = first;
  while (true) {
    p = find_quote_or_backslash(p, end_);
    if (p >= end_) return Status::More;
    if (*p == '"') break;
    has_escape = true;
    p += 2;
  }
  text = std::string_view(first, static_cast<std::size_t>(p - first));
  at = p + 1;
  return Status::Done;
}

// Reads any value and returns its source text. No recursion: depth is only counted.
Scanner::Status Scanner::skip_value(const char*& at, std::string_view& raw) {
  const char* const first = at;
  if (*at != '"' && *at != '[' && *at != '{') return skip_bare(at, raw);
  std::size_t depth = 0;
  do {
    if (at >= end_) return Status::More;
    const char c = *at;
    if (c == '"') {
      std::string_view text;
      bool escaped = false;
      if (const Status status = parse_text(at, text, escaped); status != Status::Done) return status;
      continue;
    }
    if (c == '{' && at != first && starts_event(at)) return Status::Bad;  // something was left unclosed
    depth += static_cast<std::size_t>(c == '[' || c == '{');
    depth -= static_cast<std::size_t>(c == ']' || c == '}');
    ++at;
  } while (depth > 0);
  raw = std::string_view(first, static_cast<std::size_t>(at - first));
  return Status::Done;
}

// The same of a list or an object.
Scanner::Status Scanner::skip_list(const char*& at, std::string_view& raw) {
  const char* const last = end_of_list(at, end_);
  if (last == nullptr) return skip_value(at, raw);
  raw = std::string_view(at, static_cast<std::size_t>(last - at));
  at = last;
  return Status::Done;
}

Scanner::Status Scanner::skip_bare(const char*& at, std::string_view& raw) {
  const char* const first = at;
  while (at < end_ && !ends_bare_value(*at) && *at != '"' && *at != '[' && *at != '{') ++at;
  if (at >= end_) return Status::More;
  if (at == first) return Status::Bad;
  raw = std::string_view(first, static_cast<std::size_t>(at - first));
  return Status::Done;
}

void Scanner::commit(const Event& event) {
  if (counts_.events >= event_limit_) {
    over_limit_ = true;
    stage_ = Stage::End;
    return;
  }
  ++counts_.events;
  counts_.unnamed_arguments += unnamed_;
  counts_.quoted_times += event.quoted_time ? 1 : 0;
  counts_.nanosecond_times += event.nanosecond_time ? 1 : 0;
  EventTable& table = table_of(event);
  const std::uint32_t row = table.rows++;
  table.phase.append(event.phase);
  table.name.append(event.name);
  table.thread.append(thread_of(event.thread));
  table.start.append(event.start);
  table.duration.append(event.duration);
  for (const PendingValue& value : pending_) {
    if (value.key == kNoKey) continue;
    column_of(table, value.key, value.kind)->append(row, value.bits);
  }
}

ArgumentColumn* Scanner::column_of(EventTable& table, std::uint32_t key, Kind kind) {
  const std::uint64_t slot = std::uint64_t{key} * kKinds + static_cast<std::uint64_t>(kind);
  const bool rare = key >= kDenseKeys;
  if (!rare && slot >= table.column_of.size()) table.column_of.resize(slot + kKinds, nullptr);
  ArgumentColumn*& column = rare ? rare_columns_[std::uint64_t{table.number} << 40 | slot] : table.column_of[slot];
  if (column == nullptr) {
    table.columns.emplace_back(kind);
    table.column_key.push_back(key);
    column = &table.columns.back();
  }
  return column;
}

EventTable& Scanner::table_of(const Event& event) {
  const bool metadata = event.phase == 'M';
  std::uint32_t category = event.category;
  const std::size_t slot = std::size_t{category} * 2 + (metadata ? 1 : 0);
  if (slot >= table_index_.size()) table_index_.resize(slot + 2, -1);
  if (table_index_[slot] < 0 && tables_.size() >= kMostTables) {
    // kept with the others of its kind, its category as an argument
    remember(category_key_, Kind::Text, texts_.intern(categories_.text(category), false));
    if (other_category_ == 0) other_category_ = categories_.intern("other categories", false);
    category = other_category_;
  }
  return table_of(category, metadata);
}

EventTable& Scanner::table_of(std::uint32_t category, bool metadata) {
  const std::size_t slot = std::size_t{category} * 2 + (metadata ? 1 : 0);
  if (slot >= table_index_.size()) table_index_.resize(slot + 2, -1);
  std::int32_t& index = table_index_[slot];
  if (index < 0) {
    index = static_cast<std::int32_t>(tables_.size());
    tables_.emplace_back();
    tables_.back().number = static_cast<std::uint32_t>(index);
    tables_.back().category = category;
    tables_.back().metadata = metadata;
  }
  return tables_[static_cast<std::size_t>(index)];
}

std::uint32_t Scanner::thread_of(const ThreadKey& key) {
  const auto hash = static_cast<std::uint64_t>(key.pid) * 0x9e3779b97f4a7c15ULL ^
                    static_cast<std::uint64_t>(key.tid) * 0xff51afd7ed558ccdULL ^ (key.pid_kind * 4U + key.tid_kind);
  std::uint32_t& cached = thread_cache_[(hash >> 32) % thread_cache_.size()];
  if (cached < threads_.size() && threads_[cached] == key) return cached;
  for (const std::uint32_t index : thread_index_[hash]) {
    if (threads_[index] == key) return cached = index;
  }
  const auto index = static_cast<std::uint32_t>(threads_.size());
  threads_.push_back(key);
  thread_index_[hash].push_back(index);
  return cached = index;
}

}  // namespace whystall
