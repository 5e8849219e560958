// Sweeps over intervals: nesting of host events, states of a thread, classes active on a device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace whystall {

// Intervals [start, end) of `count` events.
struct Intervals {
  const std::int64_t* start;
  const std::int64_t* end;
  std::size_t count;
};

struct Nesting {
  std::vector<std::uint32_t> order;   // events by thread, then start, then longest first
  std::vector<std::int32_t> parent;   // innermost event of the thread that contains the event, or -1
  std::vector<std::int64_t> self_ns;  // time in which the event was the latest-started one running
};

// Nests events per thread. `thread` is in [0, threads). Equal intervals nest by `rank`, lower outside,
// then by index. Events that overlap partly are siblings; their common time belongs to the later one.
Nesting nest(const Intervals& events, const std::int32_t* thread, std::size_t threads, const std::uint8_t* rank);

// The nearest ancestor that is marked, or -1. `order` must list parents before their children.
std::vector<std::int32_t> nearest_marked(const std::uint32_t* order, const std::int32_t* parent,
                                         const std::uint8_t* marked, std::size_t count);

// Per event the sum of `values` over itself and everything inside it.
std::vector<std::int64_t> subtree_sums(const std::uint32_t* order, const std::int32_t* parent,
                                       const std::int64_t* values, std::size_t count);

// Which events lie inside no event of the same label (so that recursion counts once).
std::vector<std::uint8_t> outermost(const std::uint32_t* order, const std::int32_t* parent,
                                    const std::int32_t* label, std::size_t labels, std::size_t count);

struct States {
  std::vector<std::int64_t> times;    // times[i] to times[i + 1] is in states[i]
  std::vector<std::uint8_t> states;   // one fewer than times
};

// What one thread was doing at each instant: the state of the latest-started event running, or of its
// outermost ancestor whose state is inherited; 0 between events. `order` lists the thread's events.
States thread_states(const Intervals& events, const std::uint32_t* order, std::size_t count,
                     const std::uint8_t* state, const bool* inherited);

struct Spans {
  std::vector<std::int64_t> times;    // times[i] to times[i + 1] is one stretch
  std::vector<std::uint8_t> states;   // its state, as thread_states has it
  std::vector<std::int32_t> events;   // the innermost event running, or -1
};

// The same stretches, cut also where the innermost event changes.
Spans thread_spans(const Intervals& events, const std::uint32_t* order, std::size_t count, const std::uint8_t* state,
                   const bool* inherited);

// Which of up to eight classes had an event running at each instant, as a bit mask.
States class_states(const Intervals& events, const std::uint8_t* klass);

}  // namespace whystall
