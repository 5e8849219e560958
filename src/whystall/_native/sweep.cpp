#include "sweep.hpp"

#include <algorithm>
#include <array>
#include <limits>

namespace whystall {

namespace {

struct Entry {
  std::int64_t start;
  std::int64_t end;
  std::uint32_t index;
  std::uint8_t rank;

  bool operator<(const Entry& other) const {
    if (start != other.start) return start < other.start;
    if (end != other.end) return end > other.end;
    if (rank != other.rank) return rank < other.rank;
    return index < other.index;
  }
};

// Events that may still contain a later one, outermost first. An event that ends before a
// later-started one can contain nothing that comes after it, so ends never increase towards the top.
struct Open {
  std::int64_t end;
  std::uint32_t index;
};

// Drops what cannot contain an event over [start, end); calls closed(entry) for each, innermost first.
template <class Closed>
void close_before(std::vector<Open>& stack, std::int64_t start, std::int64_t end, Closed closed) {
  while (!stack.empty() && (stack.back().end <= start || stack.back().end < end)) {
    const Open entry = stack.back();
    stack.pop_back();
    closed(entry);
  }
}

// Nests one thread's sorted events.
void nest_thread(const std::vector<Entry>& entries, Nesting& out) {
  std::vector<Open> stack;
  std::int64_t now = 0;
  const auto run_until = [&](std::int64_t time) {
    // From `now` to `time` the innermost open event that has not ended runs.
    while (!stack.empty() && now < time) {
      const Open& top = stack.back();
      const std::int64_t until = std::min(top.end, time);
      if (until > now) {
        out.self_ns[top.index] += until - now;
        now = until;
      }
      if (top.end > time) break;
      stack.pop_back();
    }
    now = std::max(now, time);
  };
  now = entries.empty() ? 0 : entries.front().start;
  for (const Entry& entry : entries) {
    run_until(entry.start);
    close_before(stack, entry.start, entry.end, [](const Open&) {});
    out.parent[entry.index] = stack.empty() ? -1 : static_cast<std::int32_t>(stack.back().index);
    stack.push_back({entry.end, entry.index});
  }
  run_until(std::numeric_limits<std::int64_t>::max());
}

}  // namespace

Nesting nest(const Intervals& events, const std::int32_t* thread, std::size_t threads, const std::uint8_t* rank) {
  Nesting out;
  out.order.reserve(events.count);
  out.parent.assign(events.count, -1);
  out.self_ns.assign(events.count, 0);
  std::vector<std::size_t> first(threads + 1, 0);
  for (std::size_t i = 0; i < events.count; ++i) ++first[static_cast<std::size_t>(thread[i]) + 1];
  for (std::size_t t = 0; t < threads; ++t) first[t + 1] += first[t];
  std::vector<std::uint32_t> members(events.count);
  std::vector<std::size_t> next(first.begin(), first.end() - 1);
  for (std::size_t i = 0; i < events.count; ++i) {
    members[next[static_cast<std::size_t>(thread[i])]++] = static_cast<std::uint32_t>(i);
  }
  std::vector<Entry> entries;
  for (std::size_t t = 0; t < threads; ++t) {
    entries.clear();
    for (std::size_t m = first[t]; m < first[t + 1]; ++m) {
      const std::uint32_t i = members[m];
      entries.push_back({events.start[i], events.end[i], i, rank[i]});
    }
    std::sort(entries.begin(), entries.end());
    for (const Entry& entry : entries) out.order.push_back(entry.index);
    nest_thread(entries, out);
  }
  return out;
}

std::vector<std::int32_t> nearest_marked(const std::uint32_t* order, const std::int32_t* parent,
                                         const std::uint8_t* marked, std::size_t count) {
  std::vector<std::int32_t> nearest(count, -1);
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint32_t event = order[i];
    const std::int32_t above = parent[event];
    if (above >= 0) nearest[event] = marked[above] != 0 ? above : nearest[static_cast<std::size_t>(above)];
  }
  return nearest;
}

std::vector<std::int64_t> subtree_sums(const std::uint32_t* order, const std::int32_t* parent,
                                       const std::int64_t* values, std::size_t count) {
  std::vector<std::int64_t> sums(values, values + count);
  for (std::size_t i = count; i-- > 0;) {
    const std::uint32_t event = order[i];
    if (parent[event] < 0) continue;
    std::int64_t& above = sums[static_cast<std::size_t>(parent[event])];
    above = static_cast<std::int64_t>(static_cast<std::uint64_t>(above) + static_cast<std::uint64_t>(sums[event]));
  }
  return sums;
}

std::vector<std::uint8_t> outermost(const std::uint32_t* order, const std::int32_t* parent,
                                    const std::int32_t* label, std::size_t labels, std::size_t count) {
  std::vector<std::uint8_t> out(count, 0);
  std::vector<std::uint32_t> open_of_label(labels, 0);
  std::vector<std::uint32_t> stack;
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint32_t event = order[i];
    while (!stack.empty() && static_cast<std::int32_t>(stack.back()) != parent[event]) {
      --open_of_label[static_cast<std::size_t>(label[stack.back()])];
      stack.pop_back();
    }
    out[event] = open_of_label[static_cast<std::size_t>(label[event])]++ == 0 ? 1 : 0;
    stack.push_back(event);
  }
  return out;
}

namespace {

// Walks through one thread's time: emit(from, until, state, event) for each stretch with one innermost event
// (-1: none). `order` lists the thread's events.
template <class Emit>
void walk_thread(const Intervals& events, const std::uint32_t* order, std::size_t count, const std::uint8_t* state,
                 const bool* inherited, Emit emit) {
  struct Running {
    std::int64_t end;
    std::uint8_t state;
    std::int64_t event;
  };
  std::vector<Running> stack;
  std::int64_t now = count == 0 ? 0 : events.start[order[0]];
  const auto advance = [&](std::int64_t until, std::uint8_t code, std::int64_t event) {
    if (until <= now) return;
    emit(now, until, code, event);
    now = until;
  };
  const auto run_until = [&](std::int64_t time) {
    while (!stack.empty() && now < time) {
      const Running top = stack.back();
      advance(std::min(top.end, time), top.state, top.event);
      if (top.end > time) break;
      stack.pop_back();
    }
    if (now < time) advance(time, 0, -1);
  };
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint32_t event = order[i];
    const std::int64_t start = events.start[event];
    const std::int64_t end = events.end[event];
    run_until(start);
    while (!stack.empty() && (stack.back().end <= start || stack.back().end < end)) stack.pop_back();
    const bool inherits = !stack.empty() && inherited[stack.back().state];
    stack.push_back({end, inherits ? stack.back().state : state[event], static_cast<std::int64_t>(event)});
  }
  while (!stack.empty()) {
    advance(stack.back().end, stack.back().state, stack.back().event);
    stack.pop_back();
  }
}

}  // namespace

States thread_states(const Intervals& events, const std::uint32_t* order, std::size_t count,
                     const std::uint8_t* state, const bool* inherited) {
  States out;
  std::int64_t last = count == 0 ? 0 : events.start[order[0]];
  walk_thread(events, order, count, state, inherited,
              [&](std::int64_t from, std::int64_t until, std::uint8_t code, std::int64_t) {
                if (out.states.empty() || out.states.back() != code) {
                  out.times.push_back(from);
                  out.states.push_back(code);
                }
                last = until;
              });
  out.times.push_back(last);
  return out;
}

Spans thread_spans(const Intervals& events, const std::uint32_t* order, std::size_t count, const std::uint8_t* state,
                   const bool* inherited) {
  Spans out;
  std::int64_t last = count == 0 ? 0 : events.start[order[0]];
  walk_thread(events, order, count, state, inherited,
              [&](std::int64_t from, std::int64_t until, std::uint8_t code, std::int64_t event) {
                if (out.states.empty() || out.states.back() != code || out.events.back() != event) {
                  out.times.push_back(from);
                  out.states.push_back(code);
                  out.events.push_back(static_cast<std::int32_t>(event));
                }
                last = until;
              });
  out.times.push_back(last);
  return out;
}

States class_states(const Intervals& events, const std::uint8_t* klass) {
  struct Edge {
    std::int64_t time;
    std::uint8_t klass;
    bool operator<(const Edge& other) const { return time < other.time; }
  };
  std::vector<Edge> starts(events.count);
  std::vector<Edge> ends(events.count);
  for (std::size_t i = 0; i < events.count; ++i) {
    starts[i] = {events.start[i], klass[i]};
    ends[i] = {events.end[i], klass[i]};
  }
  std::sort(starts.begin(), starts.end());
  std::sort(ends.begin(), ends.end());
  States out;
  std::array<std::uint32_t, 8> active{};
  std::uint8_t mask = 0;
  for (std::size_t s = 0, e = 0; e < events.count;) {
    const std::int64_t now = s < events.count ? std::min(starts[s].time, ends[e].time) : ends[e].time;
    for (; e < events.count && ends[e].time == now; ++e) --active[ends[e].klass];
    for (; s < events.count && starts[s].time == now; ++s) ++active[starts[s].klass];
    std::uint8_t next = 0;
    for (unsigned bit = 0; bit < active.size(); ++bit) {
      next = static_cast<std::uint8_t>(next | (active[bit] != 0 ? 1U << bit : 0U));
    }
    if (out.times.empty() || next != mask) {
      out.times.push_back(now);
      out.states.push_back(next);
      mask = next;
    }
  }
  if (!out.times.empty()) out.states.pop_back();  // after the last end nothing runs
  return out;
}

}  // namespace whystall
