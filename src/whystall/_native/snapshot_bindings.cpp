#include "snapshot_bindings.hpp"

#include <unistd.h>

#include <cerrno>

#include "lifetimes.hpp"
#include "numpy.hpp"
#include <nanobind/stl/string.h>

#include "snapshot.hpp"

namespace whystall {

using namespace nb::literals;

namespace {

constexpr unsigned kDeepest = 6;
constexpr unsigned kMostNodes = 10'000;

Array column(IntColumn& cells) {
  const unsigned width = cells.width();
  return to_numpy(cells.take(), width);
}

// A small value as Python's own; None for what a snapshot's settings do not hold.
nb::object plain(const SnapshotReader& reader, Value value, unsigned depth, unsigned& left) {
  if (left == 0 || depth > kDeepest) return nb::none();
  --left;
  std::int64_t whole = 0;
  double fraction = 0;
  if (reader.floating(value, fraction)) return nb::float_(fraction);
  if (reader.number(value, whole)) return nb::int_(whole);
  if (value.tag() == Value::Tag::Text) return to_str(reader.texts().text(static_cast<std::uint32_t>(value.index())));
  if (value.is(Value::Plain::True)) return nb::bool_(true);
  if (value.is(Value::Plain::False)) return nb::bool_(false);
  if (value.tag() != Value::Tag::Object) return nb::none();
  const PickleMachine::Object object = reader.object(value);
  if (object.shape == PickleMachine::Shape::Folded) return nb::none();
  const std::vector<Value>& items = reader.content(object);
  if (object.shape == PickleMachine::Shape::Dict) {
    nb::dict out;
    for (std::size_t i = 0; i + 1 < items.size() && left > 0; i += 2) {
      if (items[i].tag() != Value::Tag::Text) continue;
      out[plain(reader, items[i], depth, left)] = plain(reader, items[i + 1], depth + 1, left);
    }
    return out;
  }
  nb::list out;
  for (std::size_t i = 0; i < items.size() && left > 0; ++i) out.append(plain(reader, items[i], depth + 1, left));
  return out;
}

nb::object failure(const SnapshotReader& reader) {
  const PickleFailure& failed = reader.failure();
  static constexpr const char* kKinds[] = {"none", "refused", "damaged", "too much", "cut"};
  if (failed.kind == PickleFailure::Kind::None) return nb::none();
  return nb::make_tuple(kKinds[static_cast<unsigned>(failed.kind)], to_str(failed.what), failed.instruction, failed.place);
}

nb::dict events(SnapshotReader& reader) {
  SnapshotEvents& from = reader.events();
  nb::dict out;
  out["action"] = column(from.action);
  out["address"] = column(from.address);
  out["size"] = column(from.size);
  out["stream"] = column(from.stream);
  out["time"] = column(from.time);
  out["stack"] = column(from.stack);
  out["context"] = column(from.context);
  out["metadata"] = column(from.metadata);
  out["pool"] = column(from.pool);
  return out;
}

nb::dict frames(SnapshotReader& reader) {
  SnapshotFrames& from = reader.frames();
  nb::dict out;
  out["name"] = column(from.name);
  out["file"] = column(from.file);
  out["line"] = column(from.line);
  out["origin"] = column(from.origin);
  out["stack_frames"] = to_numpy(std::vector<std::uint32_t>(reader.stack_frames()));
  out["stack_ends"] = to_numpy(std::vector<std::uint64_t>(reader.stack_ends()));
  return out;
}

nb::dict segments(SnapshotReader& reader) {
  SnapshotSegments& from = reader.segments();
  nb::dict out;
  out["device"] = column(from.device);
  out["address"] = column(from.address);
  out["total"] = column(from.total);
  out["stream"] = column(from.stream);
  out["kind"] = column(from.kind);
  out["expandable"] = column(from.expandable);
  out["stack"] = column(from.stack);
  out["pool"] = column(from.pool);
  out["blocks_begin"] = column(from.blocks_begin);
  out["blocks_end"] = column(from.blocks_end);
  return out;
}

nb::dict blocks(SnapshotReader& reader) {
  SnapshotBlocks& from = reader.blocks();
  nb::dict out;
  out["address"] = column(from.address);
  out["size"] = column(from.size);
  out["requested"] = column(from.requested);
  out["state"] = column(from.state);
  out["stack"] = column(from.stack);
  out["order"] = to_numpy(std::vector<std::uint32_t>(reader.block_order()));
  return out;
}

nb::dict annotations(SnapshotReader& reader) {
  SnapshotAnnotations& from = reader.annotations();
  nb::dict out;
  out["name"] = column(from.name);
  out["stage"] = column(from.stage);
  out["device"] = column(from.device);
  out["time"] = column(from.time);
  return out;
}

nb::list nested(SnapshotReader& reader, const std::string& key) {
  nb::list out;
  for (std::vector<std::uint32_t>& rows : reader.nested_rows(reader.top(key), SnapshotReader::kEvent)) {
    out.append(to_numpy(std::move(rows)));
  }
  return out;
}

Array segment_rows(SnapshotReader& reader, const std::string& key) {
  const Value list = reader.is_list() ? reader.result() : reader.top(key);
  return to_numpy(reader.rows(list, SnapshotReader::kSegment));
}

void feed(SnapshotReader& reader, nb::bytes data) {
  nb::gil_scoped_release release;
  reader.feed(data.c_str(), data.size());
}

// Reads at most `size` bytes from an open file straight into the reader; returns how many came.
std::size_t read_some(SnapshotReader& reader, int file, std::size_t size) {
  ssize_t count = 0;
  int error = 0;
  {
    nb::gil_scoped_release release;
    do {
      count = ::read(file, reader.space(size), size);
      error = errno;
    } while (count < 0 && error == EINTR);
    if (count > 0) reader.accept(static_cast<std::size_t>(count));
  }
  if (count < 0) {
    errno = error;
    PyErr_SetFromErrno(PyExc_OSError);
    throw nb::python_error();
  }
  return static_cast<std::size_t>(count);
}

nb::tuple matched(const Input<std::int8_t>& move, const Input<std::int64_t>& address) {
  if (move.size() != address.size()) throw nb::value_error("columns must have the same length");
  Matched out;
  {
    nb::gil_scoped_release release;
    out = whystall::match_allocations(move.data(), address.data(), move.size());
  }
  return nb::make_tuple(to_numpy(std::move(out.begin)), to_numpy(std::move(out.end)), to_numpy(std::move(out.unmatched)),
                        out.lost);
}

}  // namespace

// What would make a pickle of plain values cost more than its size says; None where nothing would.
nb::object trap_in(nb::bytes data) {
  whystall::PlainPickle pickle;
  {
    nb::gil_scoped_release release;
    pickle.feed(data.c_str(), data.size());
    pickle.end();
  }
  const auto& found = pickle.failure();
  if (found.kind == whystall::PickleFailure::Kind::None) return nb::none();
  return nb::str(found.what.empty() ? "an instruction builds no plain value" : found.what.c_str());
}

void bind_snapshot(nb::module_& m) {
  m.def("pickle_trap", &trap_in, "data"_a);
  m.def("match_allocations", &matched, "move"_a, "address"_a);
  nb::class_<SnapshotReader>(m, "SnapshotReader")
      .def(nb::init<>())
      .def("read", &read_some, "file"_a, "size"_a)
      .def("feed", &feed, "data"_a)
      .def("finish", [](SnapshotReader& reader) { reader.finish(); }, nb::call_guard<nb::gil_scoped_release>())
      .def("done", [](const SnapshotReader& reader) { return reader.done(); })
      .def("failure", &failure)
      .def("is_snapshot", [](SnapshotReader& reader) {
        return reader.has("segments") || reader.has("device_traces") ||
               (reader.is_list() && reader.segments().rows > 0);
      })
      .def("events", &events)
      .def("frames", &frames)
      .def("segments", &segments)
      .def("blocks", &blocks)
      .def("annotations", &annotations)
      .def("traces", &nested, "key"_a)
      .def("segment_rows", &segment_rows, "key"_a)
      .def("annotation_rows", [](SnapshotReader& reader) {
        return to_numpy(reader.rows(reader.top("external_annotations"), SnapshotReader::kAnnotation));
      })
      .def("pools", [](const SnapshotReader& reader) {
        nb::list out;
        for (const auto& pool : reader.pools()) out.append(nb::make_tuple(pool[0], pool[1]));
        return out;
      })
      .def("texts", [](const SnapshotReader& reader) { return to_list(reader.texts()); })
      .def("plain", [](SnapshotReader& reader, const std::string& key) {
        unsigned left = kMostNodes;
        return plain(reader, reader.top(key), 0, left);
      }, "key"_a);
}

}  // namespace whystall
