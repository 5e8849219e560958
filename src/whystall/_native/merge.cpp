// Joins what two scanners made of neighbouring parts of one file, as if one scanner had read both.
#include "scanner.hpp"

namespace whystall {

namespace {

using Ids = std::vector<std::uint32_t>;

Ids interned(StringPool& into, const StringPool& from) {
  Ids ids(from.size());
  for (std::size_t id = 0; id < from.size(); ++id) {
    ids[id] = into.intern(from.text(static_cast<std::uint32_t>(id)), false);
  }
  return ids;
}

std::size_t missing(const StringPool& from, const StringPool& in) {
  std::size_t count = 0;
  for (std::size_t id = 0; id < from.size(); ++id) {
    count += in.find(from.text(static_cast<std::uint32_t>(id)), false) == StringPool::kNone ? 1 : 0;
  }
  return count;
}

}  // namespace

void IntColumn::append_all(const IntColumn& later) {
  if (later.width() == width()) {
    cells_.append_all(later.cells_);
    return;
  }
  for (std::size_t i = 0; i < later.size(); ++i) append(later.at(i));
}

void ArgumentColumn::append(const ArgumentColumn& later, std::uint32_t first_row, const Ids& texts) {
  if (later.count_ == 0) return;
  if (!rows_ && (later.rows_ || first_row != count_)) make_sparse();
  if (rows_) {
    for (std::size_t i = 0; i < later.count_; ++i) {
      rows_->append(first_row + (later.rows_ ? later.rows_->get<std::uint32_t>(i) : static_cast<std::uint32_t>(i)));
    }
  }
  if (kind_ == Kind::Float) {
    floats_.append_all(later.floats_);
  } else if (kind_ == Kind::Integer) {
    integers_.append_all(later.integers_);
  } else {
    for (std::size_t i = 0; i < later.count_; ++i) {
      integers_.append(texts[static_cast<std::size_t>(later.integers_.at(i))]);
    }
  }
  last_row_ = first_row + later.last_row_;
  count_ += later.count_;
}

bool Scanner::is_between_events() const {
  return stage_ == Stage::Event && filled_ == 0 && counts_.broken == 0 && !over_limit_;
}

bool Scanner::take_over(Scanner& later) {
  const bool crowded = tables_.size() + later.tables_.size() > kMostTables ||
                       keys_.size() + missing(later.keys_, keys_) > kMostKeys ||
                       counts_.events + later.counts_.events > event_limit_;
  if (!is_between_events() || crowded || later.counts_.broken > 0 || later.counts_.unnamed_arguments > 0) return false;
  const Ids names = interned(names_, later.names_);
  const Ids texts = interned(texts_, later.texts_);
  const Ids keys = interned(keys_, later.keys_);
  const Ids categories = interned(categories_, later.categories_);
  Ids threads;
  for (ThreadKey key : later.threads_) {
    if (key.pid_kind == 2) key.pid = texts[static_cast<std::size_t>(key.pid)];
    if (key.tid_kind == 2) key.tid = texts[static_cast<std::size_t>(key.tid)];
    threads.push_back(thread_of(key));
  }
  for (EventTable& from : later.tables_) {
    EventTable& into = table_of(categories[from.category], from.metadata);
    for (std::size_t i = 0; i < from.columns.size(); ++i) {
      column_of(into, keys[from.column_key[i]], from.columns[i].kind())->append(from.columns[i], into.rows, texts);
    }
    into.rows += from.rows;
    into.phase.append_all(from.phase);
    for (std::size_t i = 0; i < from.name.size(); ++i) into.name.append(names[from.name.get<std::uint32_t>(i)]);
    for (std::size_t i = 0; i < from.thread.size(); ++i) {
      into.thread.append(threads[static_cast<std::size_t>(from.thread.at(i))]);
    }
    into.start.append_all(from.start);
    into.duration.append_all(from.duration);
    from = EventTable();
  }
  counts_.add(later.counts_);
  stage_ = later.stage_;
  filled_ = later.filled_;
  for (auto& value : later.kept_) kept_.push_back(std::move(value));
  return true;
}

}  // namespace whystall
