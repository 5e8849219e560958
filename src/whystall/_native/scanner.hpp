// The streaming, lenient scanner: bytes of a trace in, columns out, one pass, no tree.
//
// A trace is never held whole. Chunks are appended to a small buffer, complete events are moved
// into columns, and the incomplete rest waits for the next chunk. Whatever is no event is counted
// and skipped, never guessed.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "columns.hpp"
#include "separator.hpp"
#include "strings.hpp"

namespace whystall {

// A time that was not given or is no number.
constexpr std::int64_t kMissing = std::numeric_limits<std::int64_t>::min();

// No key: of an argument that is not kept.
constexpr std::uint32_t kNoKey = std::numeric_limits<std::uint32_t>::max();

// Tables and names of arguments that one file may have; what comes after them is kept together, or counted.
constexpr std::size_t kMostTables = 1024;
constexpr std::size_t kMostKeys = 64 * 1024;

// Process and thread as written; text ids refer to the pool of texts.
struct ThreadKey {
  std::int64_t pid = 0;
  std::int64_t tid = 0;
  std::uint8_t pid_kind = 0;  // 0 absent, 1 number, 2 text
  std::uint8_t tid_kind = 0;
  bool operator==(const ThreadKey& other) const {
    return pid == other.pid && tid == other.tid && pid_kind == other.pid_kind && tid_kind == other.tid_kind;
  }
};

// All events of one category; the fixed keys as columns, every argument as a column of its type.
struct EventTable {
  std::uint32_t number = 0;
  std::uint32_t category = 0;
  bool metadata = false;
  std::uint32_t rows = 0;
  Cells phase{1};
  Cells name{4};
  IntColumn thread;
  Cells start{8};
  IntColumn duration;
  std::vector<ArgumentColumn*> column_of;  // by key id * kKinds + kind, for low ids; null where there is none
  std::deque<ArgumentColumn> columns;      // never moves what it holds
  std::vector<std::uint32_t> column_key;

  // Forgets the events; the columns stay, with their memory.
  void clear();
};

struct ScanCounts {
  std::uint64_t events = 0;
  std::uint64_t bytes = 0;
  std::uint64_t not_objects = 0;       // null, numbers, text or lists where events belong
  std::uint64_t without_phase = 0;     // objects that are no events
  std::uint64_t broken = 0;            // places where the text could not be parsed
  std::uint64_t broken_bytes = 0;      // bytes skipped there
  std::uint64_t quoted_times = 0;      // ts or dur given as text that holds a number
  std::uint64_t nanosecond_times = 0;  // ts too large for microseconds since 1970
  std::uint64_t unfinished_bytes = 0;  // an incomplete event at the end of the file
  std::uint64_t unnamed_arguments = 0;  // arguments left out because the file has too many different names

  void add(const ScanCounts& later) {
    events += later.events;
    bytes += later.bytes;
    not_objects += later.not_objects;
    without_phase += later.without_phase;
    broken += later.broken;
    broken_bytes += later.broken_bytes;
    quoted_times += later.quoted_times;
    nanosecond_times += later.nanosecond_times;
    unfinished_bytes += later.unfinished_bytes;
    unnamed_arguments += later.unnamed_arguments;
  }
};

// What a scanner's first byte belongs to: a document, or the list of events in one.
enum class Begins : std::uint8_t { Document, EventsOfObject, EventsOfArray };

class Scanner {
 public:
  // Values of the top-level keys named in `keep` are kept as raw text; others are skipped.
  Scanner(const std::vector<std::string>& keep, std::uint64_t event_limit, std::uint64_t value_limit,
          Begins begins = Begins::Document);
  Scanner(const Scanner&) = delete;
  Scanner& operator=(const Scanner&) = delete;

  void feed(const char* data, std::size_t size);
  // The same without a copy: `size` bytes of space to write the next ones to, valid until accept().
  char* space(std::size_t size);
  void accept(std::size_t size);
  // Says that no more bytes come. Returns nothing; see the counts and flags.
  void finish();

  // Whether all that came so far was sound and the last event is complete.
  bool is_between_events() const;
  // Adds what another scanner made of the part of the file that follows; that one is then ready for a part further on,
  // still with the memory it has and the texts it knows, and cannot be joined to another than this, which must live as
  // long. Returns false, and does nothing, where one scanner for both would not have come to the sum of the two.
  bool take_over(Scanner& later);

  const ScanCounts& counts() const { return counts_; }
  bool found_events() const { return found_events_; }
  bool is_json() const { return is_json_; }
  bool top_is_array() const { return top_is_array_; }
  bool closed() const { return stage_ == Stage::End; }
  bool over_limit() const { return over_limit_; }
  std::deque<EventTable>& tables() { return tables_; }
  StringPool& names() { return names_; }
  StringPool& texts() { return texts_; }
  StringPool& keys() { return keys_; }
  StringPool& categories() { return categories_; }
  const std::vector<ThreadKey>& threads() const { return threads_; }
  const std::vector<std::pair<std::string, std::string>>& kept() const { return kept_; }

 private:
  enum class Stage { Start, TopKey, Event, Resync, End };
  enum class Status { Done, More, Bad };

  enum class Field : std::uint8_t { Phase, Category, Name, Process, Thread, Start, Duration, Id, Binding, Scope, Arguments, Other };
  struct PendingValue {
    // Without it the vector copies one from the stack, where it was just written in narrower pieces: that stalls.
    PendingValue(std::uint32_t of, Kind as, std::int64_t value) : key(of), kind(as), bits(value) {}
    std::uint32_t key;  // kNoKey: taken back, a null came after it
    Kind kind;
    std::int64_t bits;
  };
  struct Event {
    bool has_phase = false;
    bool phase_first = false;
    bool quoted_time = false;
    bool nanosecond_time = false;
    char phase = 0;
    std::uint32_t category = 0;
    std::uint32_t name = 0;
    ThreadKey thread;
    std::int64_t start = kMissing;
    std::int64_t duration = kMissing;
  };
  struct LastSeen {  // of a key: in which event, and where in pending_
    std::uint32_t event = 0;
    std::uint32_t place = 0;
  };
  struct Predicted {
    Separator separator;
    std::uint32_t key = 0;
  };
  struct ExpectedField {
    Separator separator;
    Field field = Field::Other;
  };
  struct IdsInWhole {  // by this scanner's own ids, as far as that one took them over
    const Scanner* whole = nullptr;
    std::size_t tables = 0;  // how many of them it has
    Ids names;
    Ids texts;
    Ids keys;
    Ids categories;
    Ids threads;
  };

  void run();
  bool step();
  Status start_document();
  Status top_key();
  Status next_event();
  Status resync();
  bool starts_event(const char* at) const;
  bool follows_event(const char* at) const;

  Status parse_event(const char*& at);
  static Field field_at(const char* at);
  Status find_key(const char*& at, bool& ended);
  Status find_field(const char*& at, ExpectedField& expected, Field& field, bool& ended);
  Status parse_field(const char*& at, Event& event, Field field);
  Status parse_label(const char*& at, Event& event, Field field);
  static void set_phase(Event& event, std::string_view text, bool escaped);
  Status parse_other_field(const char*& at);
  Status parse_arguments(const char*& at, std::uint32_t category);
  Status find_argument(const char*& at, Predicted& next, bool& ended);
  Status parse_argument(const char*& at, std::uint32_t key);
  std::uint32_t key_of(std::string_view key, bool escaped);
  // Keeps a value of the event that is being parsed; of several under one key the last one counts.
  void remember(std::uint32_t key, Kind kind, std::int64_t bits) {
    if (key == kNoKey) {
      ++unnamed_;
      return;
    }
    LastSeen& seen = last_seen_[key];
    if (seen.event == serial_) {
      pending_[seen.place] = {key, kind, bits};
      return;
    }
    seen = {serial_, static_cast<std::uint32_t>(pending_.size())};
    pending_.emplace_back(key, kind, bits);
  }
  void take_back(std::uint32_t key);
  std::size_t searched_after(std::size_t failed);
  Status parse_time(const char*& at, std::int64_t& nanoseconds, Event& event);
  Status parse_odd_time(const char*& at, std::int64_t& nanoseconds, Event& event);
  Status parse_thread_part(const char*& at, std::int64_t& value, std::uint8_t& kind);
  Status parse_text(const char*& at, std::string_view& text, bool& has_escape);
  Status skip_value(const char*& at, std::string_view& raw);
  Status skip_bare(const char*& at, std::string_view& raw);
  static const char* past_space(const char* at);
  Status skip_space(const char*& at) const {
    if (static_cast<unsigned char>(*at - 1) < 32) at = past_space(at);
    return at < end_ ? Status::Done : Status::More;
  }
  Status skip_colon(const char*& at) const {
    if (at[0] == ':' && at[1] == ' ' && static_cast<unsigned char>(at[2]) > 32) {
      at += 2;
      return at < end_ ? Status::Done : Status::More;
    }
    if (skip_space(at) == Status::More) return Status::More;
    if (*at != ':') return Status::Bad;
    ++at;
    return skip_space(at);
  }
  Status skip_list(const char*& at, std::string_view& raw);
  static bool parse_number(std::string_view token, Kind& kind, std::int64_t& bits);
  std::uint32_t list_id(std::string_view raw);
  void forget_lists() {
    lists_ = StringPool(StringPool::Holds::Sources);
    list_texts_.clear();
  }
  std::string_view in_one_spelling(std::string_view raw);
  void commit(const Event& event);
  EventTable& table_of(const Event& event);
  EventTable& table_of(std::uint32_t category, bool metadata);
  ArgumentColumn* column_of(EventTable& table, std::uint32_t key, Kind kind);
  std::uint32_t thread_of(const ThreadKey& key);
  bool can_take_over(const Scanner& later) const;
  void learn_ids(Scanner& later);
  void append(const EventTable& from, const IdsInWhole& ids);
  void begin_again();
  void forget_texts();

  std::vector<char> buffer_;
  const char* begin_ = nullptr;
  const char* end_ = nullptr;
  std::size_t failed_ = 0;     // bytes from begin_ to where an event could not be parsed
  std::uint64_t wasted_ = 0;   // bytes that were parsed in vain so far
  std::size_t searched_ = 0;  // while resynchronising: bytes from begin_ known to start no event
  std::size_t filled_ = 0;
  std::size_t retry_at_ = 0;
  bool last_ = false;

  Stage stage_ = Stage::Start;
  bool top_is_array_ = false;
  bool found_events_ = false;
  bool is_json_ = true;
  bool over_limit_ = false;
  bool phase_first_ = true;
  bool saw_event_ = false;
  std::uint64_t event_limit_;
  std::uint64_t value_limit_;

  ScanCounts counts_;
  StringPool names_;
  StringPool texts_;
  StringPool keys_;
  StringPool categories_;
  const std::uint32_t id_key_ = keys_.intern(".id", false);
  const std::uint32_t binding_key_ = keys_.intern(".bp", false);
  const std::uint32_t scope_key_ = keys_.intern(".s", false);
  const std::uint32_t category_key_ = keys_.intern(".cat", false);
  static constexpr std::size_t kPhases = 8;  // told apart by their last bits: X, i, s, f and M differ in them
  using Expected = std::array<ExpectedField, static_cast<std::size_t>(Field::Other) + 1>;
  std::array<Expected, kPhases> expected_{};  // by the event's phase and the field before
  std::uint32_t last_category_ = 0;
  std::uint32_t other_category_ = 0;  // of events whose category came after too many others
  std::vector<PendingValue> pending_;
  std::vector<LastSeen> last_seen_;               // by key id
  std::string respelled_;                         // the list that was spelled anew last
  StringPool lists_{StringPool::Holds::Sources};  // lists and objects as they are written
  Ids list_texts_;                                // their ids among the texts, in one spelling
  std::uint64_t unnamed_ = 0;                     // arguments of that event that are not kept
  std::uint32_t serial_ = 0;                      // of the event that is being parsed
  std::unordered_map<std::uint64_t, ArgumentColumn*> rare_columns_;  // those of high key ids, of all tables
  std::vector<Predicted> predicted_;
  std::deque<EventTable> tables_;
  std::vector<std::int32_t> table_index_;
  std::vector<ThreadKey> threads_;
  std::unordered_map<std::uint64_t, std::vector<std::uint32_t>> thread_index_;
  std::array<std::uint32_t, 256> thread_cache_{};
  std::unordered_set<std::string> keep_;
  std::vector<std::pair<std::string, std::string>> kept_;
  IdsInWhole in_whole_;
  Ids scratch_;  // of one column while it is appended
};

}  // namespace whystall
