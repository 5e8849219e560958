// Counts calls of a kind that was met before without going through Python. `whystall doctor --build-counter` compiles it
// against the torch that is installed.
//
// A dispatch mode is called through the interpreter's table of functions. While a counter is open, `Table` stands there in
// place of torch's own: a call that the counter's Python code has described before (same operator, shapes, strides, dtypes
// and scalars) is run and counted here, and every other call, of this counter or of anything else, goes on to torch's table
// as if nothing were in between. What a call is, what it costs and where it belongs is decided in Python alone.
#include <pybind11/pybind11.h>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <c10/core/impl/PyInterpreter.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/PyInterpreter.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/node.h>
#include <torch/csrc/utils/torch_dispatch_mode.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

namespace py = pybind11;

namespace {

using c10::impl::PyInterpreterVTable;
using c10::impl::TorchDispatchModeTLS;
using Signature = std::vector<std::int64_t>;

constexpr int kNoTask = -1;     // what torch answers outside of a backward pass
constexpr int kUnknown = -2;    // Python may have moved on since it was asked last
constexpr std::uint64_t kShared = std::uint64_t{1} << 63;  // nodes from this number on carry all the same one

enum Tag : std::int64_t { kNone, kTensor, kNumber, kUndefined, kInt, kDouble, kBool, kString, kDevice, kList };

// Whether a call with this argument may be counted here; if so, what tells it from others is appended to `out`.
bool describe(const c10::IValue& value, Signature& out) {
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    if (!tensor.defined()) {
      out.push_back(kUndefined);
      return true;
    }
    const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
    if (impl->key_set().has(c10::DispatchKey::Python) || impl->has_symbolic_sizes_strides() || impl->is_nested()) {
      return false;
    }
    const auto type = static_cast<std::int64_t>(c10::typeMetaToScalarType(impl->dtype()));
    if (impl->is_wrapped_number()) {
      out.push_back(kNumber);
      out.push_back(type);
      return true;
    }
    if (impl->layout() != c10::kStrided) return false;
    const c10::IntArrayRef sizes = impl->sizes();
    const c10::IntArrayRef strides = impl->strides();
    out.push_back(kTensor | static_cast<std::int64_t>(sizes.size()) << 8 | type << 40);
    out.insert(out.end(), sizes.begin(), sizes.end());
    out.insert(out.end(), strides.begin(), strides.end());
    return true;
  }
  if (value.isNone()) {
    out.push_back(kNone);
    return true;
  }
  if (value.isInt()) {
    out.push_back(kInt);
    out.push_back(value.toInt());
    return true;
  }
  if (value.isBool()) {
    out.push_back(kBool | static_cast<std::int64_t>(value.toBool()) << 8);
    return true;
  }
  if (value.isDouble()) {
    const double number = value.toDouble();
    std::int64_t bits = 0;
    std::memcpy(&bits, &number, sizeof bits);
    out.push_back(kDouble);
    out.push_back(bits);
    return true;
  }
  if (value.isList()) {
    const c10::ArrayRef<c10::IValue> items = value.toListRef();
    out.push_back(kList | static_cast<std::int64_t>(items.size()) << 8);
    for (const c10::IValue& item : items) {
      if (!describe(item, out)) return false;
    }
    return true;
  }
  if (value.isString()) {
    const std::string& text = value.toStringRef();
    out.push_back(kString | static_cast<std::int64_t>(text.size()) << 8);
    for (std::size_t at = 0; at < text.size(); at += sizeof(std::int64_t)) {
      std::int64_t part = 0;
      std::memcpy(&part, text.data() + at, std::min(sizeof part, text.size() - at));
      out.push_back(part);
    }
    return true;
  }
  if (value.isDevice()) {
    const c10::Device device = value.toDevice();
    out.push_back(kDevice | static_cast<std::int64_t>(device.type()) << 8 | static_cast<std::int64_t>(device.index()) << 24);
    return true;
  }
  return false;
}

std::uint64_t hash_of(const Signature& signature) {
  std::uint64_t hash = 0x9e3779b97f4a7c15;
  for (const std::int64_t part : signature) {
    hash = (hash ^ static_cast<std::uint64_t>(part)) * 0xff51afd7ed558ccd;
    hash ^= hash >> 32;
  }
  return hash;
}

// A call that Python has described: its signature, the number that Python gave it, and whether it is one product.
struct Kind {
  Signature signature;
  std::uint32_t number;
  bool product;
};

// What Python made of the call that it was handed last.
struct Outcome {
  enum { kNothing, kPasses, kCounts } what = kNothing;
  std::uint32_t number = 0;
  bool product = false;
};

// What one thread knows and has counted. Only its own thread counts; `guard` is for whoever reads meanwhile.
struct Lane {
  PyObject* mode = nullptr;  // compared, never used
  py::object ask;            // tells where a call belongs; set while the counter is open
  bool awake = false;
  std::int64_t place = -1;   // of what runs in the forward pass now
  bool holds_in_backward = false;  // recomputation, and optimizers that step while gradients come in
  int task = kUnknown;       // the backward pass, node and answer of the last question
  const void* node = nullptr;
  std::uint64_t number = 0;
  std::int64_t node_place = -1;
  Outcome outcome;
  std::unordered_set<const void*> passing;
  std::unordered_multimap<std::uint64_t, Kind> kinds;
  std::unordered_map<std::uint64_t, std::uint64_t> counts;
  std::mutex guard;

  void count(const Kind& kind) {
    const std::int64_t at = where(kind);
    if (at < 0) return;
    const std::lock_guard<std::mutex> lock(guard);
    ++counts[static_cast<std::uint64_t>(at) << 32 | kind.number];
  }

  // As ThreadState.current, which is asked wherever its answer may be another one than before.
  std::int64_t where(const Kind& kind) {
    const int now = torch::autograd::get_current_graph_task_id();
    if (now == kNoTask ? task == kNoTask : holds_in_backward) return place;
    const auto current = torch::autograd::get_current_node();
    const std::uint64_t of_current = current ? current->sequence_nr() : kShared;
    const bool repeats = !kind.product && !c10::GradMode::is_enabled() && of_current < kShared;
    if (repeats && now == task && current.get() == node && of_current == number) return node_place;
    const py::gil_scoped_acquire gil;
    try {
      node_place = ask(kind.number).cast<std::int64_t>();
    } catch (py::error_already_set& error) {  // Ctrl-C; torch carries it to whoever called the operator
      error.restore();
      python_error carried;
      carried.persist();
      throw carried;
    }
    task = now;
    node = repeats ? current.get() : nullptr;
    number = of_current;
    return node_place;
  }

  const Kind* known(const Signature& signature, std::uint64_t hash) const {
    const auto found = kinds.equal_range(hash);
    for (auto kind = found.first; kind != found.second; ++kind) {
      if (kind->second.signature == signature) return &kind->second;  // what a map holds stays where it is
    }
    return nullptr;
  }

  void learn(const void* op, Signature signature, std::uint64_t hash) {
    if (outcome.what == Outcome::kPasses) passing.insert(op);
    if (outcome.what == Outcome::kCounts) kinds.emplace(hash, Kind{std::move(signature), outcome.number, outcome.product});
  }
};

thread_local std::shared_ptr<Lane> here;
thread_local Signature spare;  // its memory serves one call after another

const PyInterpreterVTable* torchs = nullptr;

struct Table final : PyInterpreterVTable {
  void dispatch(const c10::OperatorHandle& op, torch::jit::Stack* stack) const override {
    const std::shared_ptr<Lane> lane = here;  // held: the operator may run Python code that ends the count
    if (lane == nullptr || !lane->awake || !is_on_top(*lane)) return torchs->dispatch(op, stack);
    const void* id = &op.schema();
    const std::size_t first = stack->size() - op.schema().arguments().size();
    const bool passes = lane->passing.count(id) != 0;
    Signature signature = std::exchange(spare, {});
    signature.clear();
    signature.push_back(static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(id)));
    bool plain = true;
    for (std::size_t at = first; plain && at < stack->size(); ++at) plain = describe((*stack)[at], signature);
    if (!plain) return torchs_way(*lane, op, stack);
    if (passes) {
      run(op, stack);
    } else {
      const std::uint64_t hash = hash_of(signature);
      if (const Kind* kind = lane->known(signature, hash)) {
        run(op, stack);
        lane->count(*kind);
      } else {
        torchs_way(*lane, op, stack);
        // operators of other libraries can be taken back, and another may then have their identity
        if (op.operator_name().name.compare(0, 6, "aten::") == 0) lane->learn(id, std::move(signature), hash);
      }
    }
    spare = std::move(signature);
  }

  static bool is_on_top(const Lane& lane) {
    const std::int64_t modes = TorchDispatchModeTLS::stack_len();
    return modes > 0 && TorchDispatchModeTLS::get_stack_at(modes - 1)->ptr(getPyInterpreter()) == lane.mode;
  }

  // The operator itself, without the mode: as the mode runs it.
  static void run(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
    const torch::torch_dispatch_mode::StashTorchDispatchModeGuard without_mode;
    op.callBoxed(stack);
  }

  // Through Python, which says at its end what it made of the call.
  static void torchs_way(Lane& lane, const c10::OperatorHandle& op, torch::jit::Stack* stack) {
    lane.outcome = {};
    torchs->dispatch(op, stack);
    lane.task = kUnknown;
    lane.node = nullptr;
  }

  // All else is torch's.
  std::string name() const override { return torchs->name(); }
  void incref(PyObject* o) const override { torchs->incref(o); }
  void decref(PyObject* o) const override { torchs->decref(o); }
  bool try_incref(const c10::impl::PyObjectSlot& slot) const override { return torchs->try_incref(slot); }
  std::size_t refcnt(PyObject* o) const override { return torchs->refcnt(o); }
  c10::intrusive_ptr<c10::TensorImpl> detach(const c10::TensorImpl* t) const override { return torchs->detach(t); }
  void reportErrorCallback(PyObject* callback, c10::DispatchKey key) const override {
    torchs->reportErrorCallback(callback, key);
  }
  void python_op_registration_trampoline(const c10::OperatorHandle& op, c10::DispatchKey key, c10::DispatchKeySet keys,
                                         torch::jit::Stack* stack, bool with_keyset, bool with_op) const override {
    torchs->python_op_registration_trampoline(op, key, keys, stack, with_keyset, with_op);
  }
  void throw_abstract_impl_not_imported_error(std::string op, const char* module, const char* context) const override {
    torchs->throw_abstract_impl_not_imported_error(std::move(op), module, context);
  }
  void python_dispatcher(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) const override {
    torchs->python_dispatcher(op, keys, stack);
  }
  bool is_contiguous(const c10::TensorImpl* t, at::MemoryFormat f) const override { return torchs->is_contiguous(t, f); }
  c10::SymBool sym_is_contiguous(const c10::TensorImpl* t, at::MemoryFormat f) const override {
    return torchs->sym_is_contiguous(t, f);
  }
  bool is_strides_like(const c10::TensorImpl* t, at::MemoryFormat f) const override { return torchs->is_strides_like(t, f); }
  bool is_non_overlapping_and_dense(const c10::TensorImpl* t) const override {
    return torchs->is_non_overlapping_and_dense(t);
  }
  c10::Device device(const c10::TensorImpl* t) const override { return torchs->device(t); }
  std::int64_t dim(const c10::TensorImpl* t) const override { return torchs->dim(t); }
  c10::IntArrayRef strides(const c10::TensorImpl* t) const override { return torchs->strides(t); }
  c10::IntArrayRef sizes(const c10::TensorImpl* t) const override { return torchs->sizes(t); }
  c10::SymIntArrayRef sym_sizes(const c10::TensorImpl* t) const override { return torchs->sym_sizes(t); }
  c10::Layout layout(const c10::TensorImpl* t) const override { return torchs->layout(t); }
  std::int64_t numel(const c10::TensorImpl* t) const override { return torchs->numel(t); }
  c10::SymInt sym_numel(const c10::TensorImpl* t) const override { return torchs->sym_numel(t); }
  c10::SymIntArrayRef sym_strides(const c10::TensorImpl* t) const override { return torchs->sym_strides(t); }
  c10::SymInt sym_storage_offset(const c10::TensorImpl* t) const override { return torchs->sym_storage_offset(t); }
  void trace_gpu_event_creation(c10::DeviceType d, std::uintptr_t e) const override { torchs->trace_gpu_event_creation(d, e); }
  void trace_gpu_event_deletion(c10::DeviceType d, std::uintptr_t e) const override { torchs->trace_gpu_event_deletion(d, e); }
  void trace_gpu_event_record(c10::DeviceType d, std::uintptr_t e, std::uintptr_t s) const override {
    torchs->trace_gpu_event_record(d, e, s);
  }
  void trace_gpu_event_wait(c10::DeviceType d, std::uintptr_t e, std::uintptr_t s) const override {
    torchs->trace_gpu_event_wait(d, e, s);
  }
  void trace_gpu_memory_allocation(c10::DeviceType d, std::uintptr_t p) const override {
    torchs->trace_gpu_memory_allocation(d, p);
  }
  void trace_gpu_memory_deallocation(c10::DeviceType d, std::uintptr_t p) const override {
    torchs->trace_gpu_memory_deallocation(d, p);
  }
  void trace_gpu_stream_creation(c10::DeviceType d, std::uintptr_t s) const override { torchs->trace_gpu_stream_creation(d, s); }
  void trace_gpu_device_synchronization(c10::DeviceType d) const override { torchs->trace_gpu_device_synchronization(d); }
  void trace_gpu_stream_synchronization(c10::DeviceType d, std::uintptr_t s) const override {
    torchs->trace_gpu_stream_synchronization(d, s);
  }
  void trace_gpu_event_synchronization(c10::DeviceType d, std::uintptr_t e) const override {
    torchs->trace_gpu_event_synchronization(d, e);
  }
  void reset_backward_hooks(const c10::TensorImpl* t) const override { torchs->reset_backward_hooks(t); }
};

// Never freed: a thread may be inside when the program ends.
const Table* const table = new Table;
int counters = 0;
bool standing = false;

void stand_in() {
  ++counters;
  if (standing) return;
  torchs = getPyInterpreter()->vtable_;
  getPyInterpreter()->vtable_ = table;
  standing = true;
}

void stand_aside() {
  if (--counters > 0 || getPyInterpreter()->vtable_ != table) return;
  getPyInterpreter()->vtable_ = torchs;
  standing = false;
}

// Python's end of a lane: without it the lane sleeps, though its thread may still hold it.
struct Handle {
  std::shared_ptr<Lane> lane = std::make_shared<Lane>();
  explicit Handle(py::handle mode) { lane->mode = mode.ptr(); }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle() { rest(); }

  void wake(py::object ask) {
    lane->ask = std::move(ask);
    lane->task = kUnknown;
    lane->node = nullptr;
    lane->awake = true;
  }

  void rest() {
    lane->awake = false;
    lane->ask = py::object();
  }

  void set_place(std::int64_t place, bool holds_in_backward) {
    lane->place = place;
    lane->holds_in_backward = holds_in_backward;
  }

  void enter_thread() { here = lane; }
  void made_nothing() { lane->outcome = {}; }
  void made_passing() { lane->outcome.what = Outcome::kPasses; }
  void made_known(std::uint32_t number, bool product) {
    lane->outcome = {Outcome::kCounts, number, product};
    enter_thread();  // which another counter may have entered since
  }

  // Calls by place and number since the last time.
  py::list take() {
    std::unordered_map<std::uint64_t, std::uint64_t> counts;
    {
      const std::lock_guard<std::mutex> lock(lane->guard);
      counts.swap(lane->counts);
    }
    py::list out;
    for (const auto& [key, count] : counts) out.append(py::make_tuple(key >> 32, key & 0xffffffff, count));
    return out;
  }
};

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("stand_in", &stand_in);
  m.def("stand_aside", &stand_aside);
  m.def("stands_in", [] { return standing; });
  py::class_<Handle>(m, "Lane")
      .def(py::init<py::handle>(), py::arg("mode"))
      .def("wake", &Handle::wake, py::arg("ask"))
      .def("rest", &Handle::rest)
      .def("enter_thread", &Handle::enter_thread)
      .def("set_place", &Handle::set_place, py::arg("place"), py::arg("holds_in_backward"))
      .def("made_nothing", &Handle::made_nothing)
      .def("made_passing", &Handle::made_passing)
      .def("made_known", &Handle::made_known, py::arg("number"), py::arg("product"))
      .def("take", &Handle::take);
}
