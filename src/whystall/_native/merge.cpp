// Joins what two scanners made of neighbouring parts of one file, as if one scanner had read both.
//
// A scanner that was joined reads a later part of the same file. What it knows by then, the whole has met in the same order:
// only texts, columns and widths that are new to it can be new there.
#include "scanner.hpp"

namespace whystall {

namespace {

// A scanner that is to read on forgets texts from here on: each one that reads holds them a second time.
constexpr std::size_t kMostTextBytes = 1 << 20;

void learn(StringPool& into, const StringPool& from, Ids& ids) {
  while (ids.size() < from.size()) {
    ids.push_back(into.intern(from.text(static_cast<std::uint32_t>(ids.size())), false));
  }
}

std::size_t missing(const StringPool& from, std::size_t known, const StringPool& in) {
  std::size_t count = 0;
  for (std::size_t id = known; id < from.size(); ++id) {
    count += in.find(from.text(static_cast<std::uint32_t>(id)), false) == StringPool::kNone ? 1 : 0;
  }
  return count;
}

}  // namespace

void EventTable::clear() {
  rows = 0;
  phase.shrink(0);
  name.shrink(0);
  thread.clear();
  start.shrink(0);
  duration.clear();
  for (ArgumentColumn& column : columns) column.clear();
}

bool Scanner::is_between_events() const {
  return stage_ == Stage::Event && filled_ == 0 && counts_.broken == 0 && !over_limit_;
}

bool Scanner::can_take_over(const Scanner& later) const {
  const bool crowded = tables_.size() + later.tables_.size() - later.in_whole_.tables > kMostTables ||
                       keys_.size() + missing(later.keys_, later.in_whole_.keys.size(), keys_) > kMostKeys ||
                       counts_.events + later.counts_.events > event_limit_;
  const bool ours = &later != this && (later.in_whole_.whole == nullptr || later.in_whole_.whole == this);
  const bool sound = later.counts_.broken == 0 && later.counts_.unnamed_arguments == 0 && !later.over_limit_;
  return ours && is_between_events() && sound && !crowded;
}

bool Scanner::take_over(Scanner& later) {
  if (!can_take_over(later)) return false;
  learn_ids(later);
  for (EventTable& table : later.tables_) {
    if (table.rows > 0) append(table, later.in_whole_);
    table.clear();
  }
  later.in_whole_.tables = later.tables_.size();
  counts_.add(later.counts_);
  stage_ = later.stage_;
  filled_ = later.filled_;
  for (auto& value : later.kept_) kept_.push_back(std::move(value));
  later.begin_again();
  return true;
}

void Scanner::learn_ids(Scanner& later) {
  IdsInWhole& ids = later.in_whole_;
  ids.whole = this;
  learn(names_, later.names_, ids.names);
  learn(texts_, later.texts_, ids.texts);
  learn(keys_, later.keys_, ids.keys);
  learn(categories_, later.categories_, ids.categories);
  while (ids.threads.size() < later.threads_.size()) {
    ThreadKey key = later.threads_[ids.threads.size()];
    if (key.pid_kind == 2) key.pid = ids.texts[static_cast<std::size_t>(key.pid)];
    if (key.tid_kind == 2) key.tid = ids.texts[static_cast<std::size_t>(key.tid)];
    ids.threads.push_back(thread_of(key));
  }
}

void Scanner::append(const EventTable& from, const IdsInWhole& ids) {
  EventTable& into = table_of(ids.categories[from.category], from.metadata);
  for (std::size_t i = 0; i < from.columns.size(); ++i) {
    const ArgumentColumn& column = from.columns[i];
    column_of(into, ids.keys[from.column_key[i]], column.kind())->append(column, into.rows, ids.texts, scratch_);
  }
  into.rows += from.rows;
  into.phase.append_all(from.phase);
  char* const names = into.name.extend(from.rows);
  for (std::size_t row = 0; row < from.rows; ++row) {
    std::memcpy(names + row * sizeof(std::uint32_t), &ids.names[from.name.get<std::uint32_t>(row)], sizeof(std::uint32_t));
  }
  from.thread.look_up(ids.threads, scratch_);
  into.thread.append_all(scratch_);
  into.start.append_all(from.start);
  into.duration.append_all(from.duration);
}

void Scanner::begin_again() {
  stage_ = Stage::Event;
  filled_ = 0;
  retry_at_ = 0;
  counts_ = ScanCounts();
  kept_.clear();
  if (names_.bytes() + texts_.bytes() > kMostTextBytes) forget_texts();
}

void Scanner::forget_texts() {
  names_ = StringPool();
  names_.intern("", false);
  texts_ = StringPool();
  forget_lists();
  threads_.clear();
  thread_index_.clear();
  in_whole_.names.clear();
  in_whole_.texts.clear();
  in_whole_.threads.clear();
}

}  // namespace whystall
