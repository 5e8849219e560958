// Python bindings: buffers and numpy arrays in, numpy arrays out; the GIL is released while bytes are scanned.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "numpy.hpp"
#include "replay.hpp"
#include "scanner.hpp"
#include "sieve.hpp"
#include "snapshot_bindings.hpp"
#include "sweep.hpp"
#include "heard_calls.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using whystall::Array;
using whystall::Input;
using whystall::to_list;
using whystall::to_numpy;
using whystall::to_str;

nb::bytes to_bytes(const std::string& text) { return nb::bytes(text.data(), text.size()); }

nb::object thread_part(const whystall::StringPool& texts, std::uint8_t kind, std::int64_t value) {
  if (kind == 0) return nb::none();
  if (kind == 1) return nb::int_(value);
  return to_str(texts.text(static_cast<std::uint32_t>(value)));
}

nb::dict table_to_dict(whystall::Scanner& scanner, whystall::EventTable& table) {
  nb::dict out;
  out["category"] = to_str(scanner.categories().text(table.category));
  out["metadata"] = table.metadata;
  out["rows"] = table.rows;
  out["phase"] = to_numpy(table.phase.take(), 1);
  out["name"] = to_numpy(table.name.take(), 4);
  const unsigned thread_width = table.thread.width();
  out["thread"] = to_numpy(table.thread.take(), thread_width);
  out["start"] = to_numpy(table.start.take(), 8);
  const unsigned duration_width = table.duration.width();
  out["duration"] = to_numpy(table.duration.take(), duration_width);
  nb::list arguments;
  for (std::size_t i = 0; i < table.columns.size(); ++i) {
    whystall::ArgumentColumn& column = table.columns[i];
    nb::object rows = nb::none();
    if (column.sparse()) rows = nb::cast(to_numpy(column.take_rows(), 4));
    const unsigned width = column.width();
    const bool is_float = column.kind() == whystall::Kind::Float;
    arguments.append(nb::make_tuple(to_str(scanner.keys().text(table.column_key[i])), static_cast<int>(column.kind()),
                                    rows, to_numpy(column.take_values(), width, is_float)));
  }
  out["arguments"] = arguments;
  return out;
}

nb::dict counts_to_dict(const whystall::Scanner& scanner) {
  const whystall::ScanCounts& counts = scanner.counts();
  nb::dict out;
  out["events"] = counts.events;
  out["bytes"] = counts.bytes;
  out["not_objects"] = counts.not_objects;
  out["without_phase"] = counts.without_phase;
  out["broken"] = counts.broken;
  out["broken_bytes"] = counts.broken_bytes;
  out["quoted_times"] = counts.quoted_times;
  out["nanosecond_times"] = counts.nanosecond_times;
  out["unnamed_arguments"] = counts.unnamed_arguments;
  out["unfinished_bytes"] = counts.unfinished_bytes;
  out["found_events"] = scanner.found_events();
  out["is_json"] = scanner.is_json();
  out["top_is_array"] = scanner.top_is_array();
  out["closed"] = scanner.closed();
  out["over_limit"] = scanner.over_limit();
  return out;
}

nb::list threads_to_list(whystall::Scanner& scanner) {
  nb::list out;
  for (const whystall::ThreadKey& key : scanner.threads()) {
    out.append(nb::make_tuple(thread_part(scanner.texts(), key.pid_kind, key.pid),
                              thread_part(scanner.texts(), key.tid_kind, key.tid)));
  }
  return out;
}

nb::list texts_at(whystall::Scanner& scanner, const Input<std::int32_t>& ids) {
  nb::list out;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const auto id = static_cast<std::size_t>(ids.data()[i]);
    if (id >= scanner.texts().size()) throw nb::index_error("no text has this id");
    out.append(to_str(scanner.texts().text(static_cast<std::uint32_t>(id))));
  }
  return out;
}

void require(bool condition, const char* what) {
  if (!condition) throw nb::value_error(what);
}

constexpr std::int32_t kMostGroups = 1 << 26;  // threads or labels; each takes memory

template <class A, class B>
whystall::Intervals intervals(const Input<A>& start, const Input<B>& end) {
  require(start.size() == end.size(), "start and end must have the same length");
  std::int64_t first = 0;
  std::int64_t last = 0;
  for (std::size_t i = 0; i < start.size(); ++i) {
    require(start.data()[i] <= end.data()[i], "an interval ends before it starts");
    first = i == 0 ? start.data()[i] : std::min(first, start.data()[i]);
    last = i == 0 ? end.data()[i] : std::max(last, end.data()[i]);
  }
  require(first >= 0 || last <= std::numeric_limits<std::int64_t>::max() + first, "times are too far apart");
  return {start.data(), end.data(), start.size()};
}

nb::tuple nest(const Input<std::int32_t>& thread, const Input<std::int64_t>& start, const Input<std::int64_t>& end,
               const Input<std::uint8_t>& rank) {
  const whystall::Intervals events = intervals(start, end);
  require(thread.size() == events.count && rank.size() == events.count, "columns must have the same length");
  std::int32_t last = -1;
  for (std::size_t i = 0; i < events.count; ++i) {
    require(thread.data()[i] >= 0 && thread.data()[i] < kMostGroups, "a thread is negative or too large");
    last = std::max(last, thread.data()[i]);
  }
  whystall::Nesting out;
  {
    nb::gil_scoped_release release;
    out = whystall::nest(events, thread.data(), static_cast<std::size_t>(last + 1), rank.data());
  }
  return nb::make_tuple(to_numpy(std::move(out.order)), to_numpy(std::move(out.parent)), to_numpy(std::move(out.self_ns)));
}

void require_tree(const Input<std::uint32_t>& order, const Input<std::int32_t>& parent) {
  const std::size_t count = order.size();
  require(parent.size() == count, "columns must have the same length");
  for (std::size_t i = 0; i < count; ++i) {
    require(order.data()[i] < count, "order names no event");
    require(parent.data()[i] < static_cast<std::int64_t>(count), "parent names no event");
  }
}

Array nearest_marked(const Input<std::uint32_t>& order, const Input<std::int32_t>& parent, const Input<std::uint8_t>& marked) {
  const std::size_t count = order.size();
  require_tree(order, parent);
  require(marked.size() == count, "columns must have the same length");
  return to_numpy(whystall::nearest_marked(order.data(), parent.data(), marked.data(), count));
}

Array subtree_sums(const Input<std::uint32_t>& order, const Input<std::int32_t>& parent, const Input<std::int64_t>& values) {
  require_tree(order, parent);
  require(values.size() == order.size(), "columns must have the same length");
  return to_numpy(whystall::subtree_sums(order.data(), parent.data(), values.data(), order.size()));
}

Array outermost(const Input<std::uint32_t>& order, const Input<std::int32_t>& parent, const Input<std::int32_t>& label) {
  require_tree(order, parent);
  require(label.size() == order.size(), "columns must have the same length");
  std::int32_t last = -1;
  for (std::size_t i = 0; i < label.size(); ++i) {
    require(label.data()[i] >= 0 && label.data()[i] < kMostGroups, "a label is negative or too large");
    last = std::max(last, label.data()[i]);
  }
  return to_numpy(whystall::outermost(order.data(), parent.data(), label.data(), static_cast<std::size_t>(last) + 1, order.size()));
}

whystall::Intervals thread_events(const Input<std::int64_t>& start, const Input<std::int64_t>& end,
                                  const Input<std::uint32_t>& order, const Input<std::uint8_t>& state,
                                  const Input<bool>& inherited) {
  const whystall::Intervals events = intervals(start, end);
  require(state.size() == events.count, "columns must have the same length");
  for (std::size_t i = 0; i < order.size(); ++i) require(order.data()[i] < events.count, "order names no event");
  for (std::size_t i = 0; i < state.size(); ++i) require(state.data()[i] < inherited.size(), "a state is unknown");
  require(inherited.size() > 0, "at least one state is needed");
  return events;
}

nb::tuple thread_states(const Input<std::int64_t>& start, const Input<std::int64_t>& end, const Input<std::uint32_t>& order,
                        const Input<std::uint8_t>& state, const Input<bool>& inherited) {
  const whystall::Intervals events = thread_events(start, end, order, state, inherited);
  whystall::States out = whystall::thread_states(events, order.data(), order.size(), state.data(), inherited.data());
  return nb::make_tuple(to_numpy(std::move(out.times)), to_numpy(std::move(out.states)));
}

nb::tuple thread_spans(const Input<std::int64_t>& start, const Input<std::int64_t>& end, const Input<std::uint32_t>& order,
                       const Input<std::uint8_t>& state, const Input<bool>& inherited) {
  const whystall::Intervals events = thread_events(start, end, order, state, inherited);
  whystall::Spans out = whystall::thread_spans(events, order.data(), order.size(), state.data(), inherited.data());
  return nb::make_tuple(to_numpy(std::move(out.times)), to_numpy(std::move(out.states)), to_numpy(std::move(out.events)));
}

nb::tuple replay(const Input<std::int64_t>& duration, const Input<std::int64_t>& delay, const Input<std::uint64_t>& first,
                 const Input<std::uint32_t>& source, const Input<std::int64_t>& lag) {
  const std::size_t nodes = duration.size();
  require(delay.size() == nodes && first.size() == nodes + 1, "columns must have the same length");
  require(source.size() == lag.size(), "edges must have a source and a lag each");
  require(first.data()[0] == 0 && first.data()[nodes] == source.size(), "the edges must be those of the nodes");
  for (std::size_t node = 0; node < nodes; ++node) {
    require(first.data()[node] <= first.data()[node + 1] && first.data()[node + 1] <= source.size(),
            "the edges must be listed by target");
    for (std::uint64_t edge = first.data()[node]; edge < first.data()[node + 1]; ++edge) {
      require(source.data()[edge] < node, "an edge must lead to a later node");
    }
  }
  whystall::Replayed out;
  {
    nb::gil_scoped_release release;
    out = whystall::replay(duration.data(), delay.data(), nodes, {first.data(), source.data(), lag.data()});
  }
  return nb::make_tuple(to_numpy(std::move(out.start)), to_numpy(std::move(out.end)), to_numpy(std::move(out.decided_by)));
}

nb::tuple class_states(const Input<std::int64_t>& start, const Input<std::int64_t>& end, const Input<std::uint8_t>& klass) {
  const whystall::Intervals events = intervals(start, end);
  require(klass.size() == events.count, "columns must have the same length");
  for (std::size_t i = 0; i < klass.size(); ++i) require(klass.data()[i] < 8, "a class is above seven");
  whystall::States out = whystall::class_states(events, klass.data());
  return nb::make_tuple(to_numpy(std::move(out.times)), to_numpy(std::move(out.states)));
}

// Feeds any contiguous buffer without copying it first.
void feed(whystall::Scanner& scanner, const nb::handle& data) {
  Py_buffer view;
  if (PyObject_GetBuffer(data.ptr(), &view, PyBUF_SIMPLE) != 0) throw nb::python_error();
  try {
    nb::gil_scoped_release release;
    scanner.feed(static_cast<const char*>(view.buf), static_cast<std::size_t>(view.len));
  } catch (...) {
    PyBuffer_Release(&view);
    throw;
  }
  PyBuffer_Release(&view);
}

// Reads at most `size` bytes of an open file straight into the scanner; returns how many came. They are those that
// `from` names, or for kNext the next ones.
constexpr std::int64_t kNext = -1;

std::size_t read_some(whystall::Scanner& scanner, int file, std::size_t size, std::int64_t from) {
  ssize_t count = 0;
  int error = 0;
  {
    nb::gil_scoped_release release;
    do {
      char* space = scanner.space(size);
      count = from == kNext ? ::read(file, space, size) : ::pread(file, space, size, from);
      error = errno;
    } while (count < 0 && error == EINTR);
    if (count > 0) scanner.accept(static_cast<std::size_t>(count));
  }
  if (count < 0) {
    errno = error;
    PyErr_SetFromErrno(PyExc_OSError);
    throw nb::python_error();
  }
  return static_cast<std::size_t>(count);
}

// What a sieve lets through of the bytes it was given; `wanted` says of a kernel's name, asked once, whether kernels of
// that name are.
nb::bytes let_through(whystall::Sieve& sieve, const nb::callable& wanted) {
  std::string out;
  sieve.sift([&](const std::string& name) { return nb::cast<bool>(wanted(to_str(name))); }, out);
  return to_bytes(out);
}

// Of the next bytes of an open file, at most `size`: how many came, and what is let through; None at its end.
nb::object sift_file(whystall::Sieve& sieve, int file, std::size_t size, const nb::callable& wanted) {
  ssize_t count = 0;
  do {
    count = ::read(file, sieve.space(size), size);
  } while (count < 0 && errno == EINTR);
  if (count < 0) {
    PyErr_SetFromErrno(PyExc_OSError);
    throw nb::python_error();
  }
  if (count == 0) return nb::none();
  sieve.accept(static_cast<std::size_t>(count));
  return nb::make_tuple(static_cast<std::size_t>(count), let_through(sieve, wanted));
}

nb::bytes sift_bytes(whystall::Sieve& sieve, const nb::bytes& data, const nb::callable& wanted) {
  if (data.size() > 0) std::memcpy(sieve.space(data.size()), data.data(), data.size());
  sieve.accept(data.size());
  return let_through(sieve, wanted);
}

}  // namespace

NB_MODULE(_ext, m) {
  // Wrapped functions live as long as the program; its end must not be commented on in a user's terminal.
  nb::set_leak_warnings(false);
  whystall::bind_heard_calls(m);
  whystall::bind_snapshot(m);
  nb::class_<whystall::Scanner>(m, "Scanner")
      .def(
          "__init__",
          [](whystall::Scanner* at, const std::vector<std::string>& keep, std::uint64_t events, std::uint64_t value,
             std::uint8_t begins) {
            require(begins <= 2, "begins must be 0 (a document), 1 (events of an object) or 2 (events of a list)");
            new (at) whystall::Scanner(keep, events, value, static_cast<whystall::Begins>(begins));
          },
          "keep"_a, "event_limit"_a, "value_limit"_a, "begins"_a = 0)
      .def("feed", &feed, "data"_a)
      .def("read", &read_some, "file"_a, "size"_a, "start"_a = kNext)
      .def("is_between_events", &whystall::Scanner::is_between_events)
      // a part knows its whole by its address, which must not become another's
      .def("take_over", &whystall::Scanner::take_over, "later"_a, nb::keep_alive<2, 1>(),
           nb::call_guard<nb::gil_scoped_release>())
      .def("finish", &whystall::Scanner::finish, nb::call_guard<nb::gil_scoped_release>())
      .def("counts", &counts_to_dict)
      .def("take_tables",
           [](whystall::Scanner& scanner) {
             nb::list out;
             for (whystall::EventTable& table : scanner.tables()) out.append(table_to_dict(scanner, table));
             return out;
           })
      .def("names", [](whystall::Scanner& scanner) { return to_list(scanner.names()); })
      .def("texts", &texts_at, "ids"_a)
      .def("text_count", [](whystall::Scanner& scanner) { return scanner.texts().size(); })
      .def("threads", &threads_to_list)
      .def("kept", [](const whystall::Scanner& scanner) {
        nb::list out;
        for (const auto& [key, value] : scanner.kept()) {
          out.append(nb::make_tuple(to_str(whystall::decode_json_text(key)), to_bytes(value)));
        }
        return out;
      });
  nb::class_<whystall::Sieve>(m, "Sieve")
      .def(nb::init<std::size_t>(), "longest"_a)
      .def("read", &sift_file, "file"_a, "size"_a, "wanted"_a)
      .def("feed", &sift_bytes, "data"_a, "wanted"_a)
      .def("finish", [](whystall::Sieve& sieve) {
        std::string out;
        sieve.finish(out);
        return to_bytes(out);
      });
  m.def("nest", &nest, "thread"_a, "start"_a, "end"_a, "rank"_a);
  m.def("nearest_marked", &nearest_marked, "order"_a, "parent"_a, "marked"_a);
  m.def("subtree_sums", &subtree_sums, "order"_a, "parent"_a, "values"_a);
  m.def("outermost", &outermost, "order"_a, "parent"_a, "label"_a);
  m.def("thread_states", &thread_states, "start"_a, "end"_a, "order"_a, "state"_a, "inherited"_a);
  m.def("thread_spans", &thread_spans, "start"_a, "end"_a, "order"_a, "state"_a, "inherited"_a);
  m.def("replay", &replay, "duration"_a, "delay"_a, "first"_a, "source"_a, "lag"_a);
  m.def("class_states", &class_states, "start"_a, "end"_a, "klass"_a);
}
