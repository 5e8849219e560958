#include "heard_calls.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

namespace nb = nanobind;

namespace whystall {

namespace {

// Whether a handler of the job's signals raised an exception, in the midst of a listener.
bool is_the_jobs(PyObject* error) {
  try {
    return nb::cast<bool>(nb::module_::import_("whystall.capture.faults").attr("is_the_jobs")(nb::borrow(error)));
  } catch (const std::exception&) {
    return false;
  }
}

// Drops what a listener raised, except what is the job's and what must end the program (Ctrl-C).
bool heard(PyObject* result) {
  if (result != nullptr) {
    Py_DECREF(result);
  } else if (PyErr_ExceptionMatches(PyExc_Exception)) {
    PyObject *type, *error, *traceback;
    PyErr_Fetch(&type, &error, &traceback);
    PyErr_NormalizeException(&type, &error, &traceback);
    if (traceback != nullptr) PyException_SetTraceback(error, traceback);
    if (is_the_jobs(error)) {
      PyErr_Restore(type, error, traceback);
    } else {
      Py_XDECREF(type);
      Py_XDECREF(error);
      Py_XDECREF(traceback);
    }
  }
  return PyErr_Occurred() == nullptr;
}

// --- calls of one object -----------------------------------------------------------------------------------------

// An object is called through a slot of its type, which Python code does not see. A listener there is in no attribute
// of the object and of the class, in no copy, no file, no traceback and no graph of torch's compiler.
struct Watch {
  PyObject* object;  // known by its identity alone: nothing is kept alive
  nb::object before;
  nb::object after;
};

struct Slot {
  ternaryfunc original;
  nb::object type;
  std::vector<std::shared_ptr<Watch>> watches;
};

using Slots = std::unordered_map<PyTypeObject*, Slot>;

Slots& slots() {
  static auto* held = new Slots;  // never destroyed: the interpreter may be gone by then
  return *held;
}

PyObject* call(PyObject* object, PyObject* args, PyObject* kwargs) {
  auto found = slots().end();
  for (PyTypeObject* type = Py_TYPE(object); type != nullptr && found == slots().end(); type = type->tp_base) {
    found = slots().find(type);
  }
  if (found == slots().end()) {
    PyErr_Format(PyExc_TypeError, "'%.200s' object is not callable", Py_TYPE(object)->tp_name);
    return nullptr;
  }
  const ternaryfunc original = found->second.original;
  std::shared_ptr<Watch> watch;
  for (const auto& each : found->second.watches) {
    if (each->object == object) watch = each;
  }
  if (watch == nullptr) return original(object, args, kwargs);
  const nb::object named = kwargs == nullptr ? nb::object(nb::dict()) : nb::borrow(kwargs);
  if (!heard(PyObject_CallFunctionObjArgs(watch->before.ptr(), args, named.ptr(), nullptr))) return nullptr;
  PyObject* result = original(object, args, kwargs);
  if (result != nullptr && !heard(PyObject_CallNoArgs(watch->after.ptr()))) {
    Py_DECREF(result);
    return nullptr;
  }
  return result;
}

class HeardCalls {
 public:
  HeardCalls(const nb::object& object, nb::object before, nb::object after) {
    PyTypeObject* type = Py_TYPE(object.ptr());
    if (PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE) == 0 || type->tp_call == nullptr) {
      throw nb::type_error("only objects of a class written in Python, with __call__, can be heard");
    }
    watch_ = std::make_shared<Watch>(Watch{object.ptr(), std::move(before), std::move(after)});
    auto [place, is_new] = slots().try_emplace(type);
    Slot& slot = place->second;
    if (is_new) slot.type = nb::borrow(reinterpret_cast<PyObject*>(type));
    if (type->tp_call != &call) {
      slot.original = type->tp_call;
      type->tp_call = &call;
    }
    slot.watches.push_back(watch_);
    type_ = type;
  }

  void remove() {
    if (watch_ == nullptr) return;
    const auto found = slots().find(type_);
    auto& watches = found->second.watches;
    watches.erase(std::remove(watches.begin(), watches.end(), watch_), watches.end());
    const std::shared_ptr<Watch> dropped = std::move(watch_);  // what it holds may run code when it is let go
    watch_ = nullptr;
    if (!watches.empty()) return;
    if (type_->tp_call == &call) type_->tp_call = found->second.original;  // else the class was given another __call__
    const Slot emptied = std::move(found->second);
    slots().erase(found);
  }

 private:
  PyTypeObject* type_;
  std::shared_ptr<Watch> watch_;
};

// --- the end of the process --------------------------------------------------------------------------------------

// `os._exit` stays the function it is, for pickles and for `is`; what it calls is ours.
using Fast = PyObject* (*)(PyObject*, PyObject* const*, Py_ssize_t, PyObject*);
PyMethodDef* exit_method = nullptr;
PyCFunction exit_original = nullptr;
PyObject* exit_listener = nullptr;

PyObject* exit_called(PyObject* module, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  const Py_ssize_t given = count + (names == nullptr ? 0 : PyTuple_GET_SIZE(names));
  if (given == 1 && PyLong_Check(args[0]) != 0 && exit_listener != nullptr) {  // else it raises, and the job goes on
    const nb::object listener = nb::borrow(exit_listener);
    if (!heard(PyObject_CallNoArgs(listener.ptr()))) return nullptr;
  }
  return reinterpret_cast<Fast>(reinterpret_cast<void (*)()>(exit_original))(module, args, count, names);
}

void hear_exit(const nb::object& exit, const nb::object& listener) {
  if (!PyCFunction_Check(exit.ptr())) throw nb::type_error("os._exit was replaced: its calls cannot be heard");
  PyMethodDef* method = reinterpret_cast<PyCFunctionObject*>(exit.ptr())->m_ml;
  if (exit_method == nullptr) {
    if (method->ml_flags != (METH_FASTCALL | METH_KEYWORDS)) {
      throw nb::type_error("os._exit takes its arguments in a way that is not known: its calls cannot be heard");
    }
    exit_original = method->ml_meth;
    method->ml_meth = reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&exit_called));
    exit_method = method;
  }
  if (method != exit_method) throw nb::type_error("this is another function than os._exit");
  PyObject* before = exit_listener;
  exit_listener = nb::object(listener).release().ptr();
  Py_XDECREF(before);
}

// --- the interval after which Python gives its lock up --------------------------------------------------------------

// A program that asks for it is told what it would be without us, also while it is shorter for our sake.
PyMethodDef* get_method = nullptr;
PyMethodDef* set_method = nullptr;
PyCFunction get_original = nullptr;
PyCFunction set_original = nullptr;
PyObject* usual_interval = nullptr;  // while ours is in force

PyObject* interval_asked(PyObject* module, PyObject* nothing) {
  return usual_interval != nullptr ? Py_NewRef(usual_interval) : get_original(module, nothing);
}

PyObject* interval_chosen(PyObject* module, PyObject* seconds) {
  PyObject* result = set_original(module, seconds);
  if (result != nullptr) Py_CLEAR(usual_interval);  // the program's own choice
  return result;
}

PyMethodDef* method_of(const nb::object& function, int flags) {
  if (!PyCFunction_Check(function.ptr())) throw nb::type_error("this is no function of Python's own");
  PyMethodDef* method = reinterpret_cast<PyCFunctionObject*>(function.ptr())->m_ml;
  if (method->ml_flags != flags) throw nb::type_error("this function takes its arguments in a way that is not known");
  return method;
}

void shorten_interval(const nb::object& get, const nb::object& set, const nb::object& seconds) {
  if (get_method == nullptr) {
    PyMethodDef* asked = method_of(get, METH_NOARGS);
    set_method = method_of(set, METH_O);
    get_method = asked;
    get_original = get_method->ml_meth;
    set_original = set_method->ml_meth;
    get_method->ml_meth = &interval_asked;
    set_method->ml_meth = &interval_chosen;
  }
  if (usual_interval != nullptr) return;
  PyObject* usual = get_original(nullptr, nullptr);
  if (usual == nullptr) throw nb::python_error();
  PyObject* result = set_original(nullptr, seconds.ptr());
  if (result == nullptr) {
    Py_DECREF(usual);
    throw nb::python_error();
  }
  Py_DECREF(result);
  usual_interval = usual;
}

// Whether it was still ours.
bool restore_interval() {
  if (usual_interval == nullptr) return false;
  PyObject* result = set_original(nullptr, usual_interval);
  Py_CLEAR(usual_interval);
  if (result == nullptr) throw nb::python_error();
  Py_DECREF(result);
  return true;
}

double interval_in_force(const nb::object& get) {
  const nb::object seconds =
      get_original != nullptr ? nb::steal(get_original(nullptr, nullptr)) : nb::steal(PyObject_CallNoArgs(get.ptr()));
  if (!seconds.is_valid()) throw nb::python_error();
  return nb::cast<double>(seconds);
}

// --- pauses of the garbage collector -------------------------------------------------------------------------------

// Called by the collector, which drops what a callback raises. No handler of a signal runs in here, since no Python does.
class Pauses {
 public:
  void call(const nb::object& phase, const nb::object& /*counts*/) {
    const auto now = std::chrono::steady_clock::now();
    if (PyUnicode_Check(phase.ptr()) != 0 && PyUnicode_CompareWithASCIIString(phase.ptr(), "start") == 0) {
      began_ = now;
      within_ = true;
    } else if (within_) {
      total_ += now - began_;
      within_ = false;
    }
  }

  std::int64_t take_us() {
    const auto taken = std::chrono::duration_cast<std::chrono::microseconds>(total_);
    total_ = {};
    return taken.count();
  }

 private:
  std::chrono::steady_clock::time_point began_;
  std::chrono::steady_clock::duration total_{};
  bool within_ = false;
};

// --- calls on the main thread ------------------------------------------------------------------------------------

// What the interpreter calls between two bytecodes of the main thread.
int run_pending(void* held) {
  const nb::object pending = nb::steal(static_cast<PyObject*>(held));
  return heard(PyObject_CallNoArgs(pending.ptr())) ? 0 : -1;
}

// False when the interpreter's list of such calls is full.
bool call_on_main_thread(const nb::object& pending) {
  PyObject* held = nb::object(pending).release().ptr();
  if (Py_AddPendingCall(&run_pending, held) == 0) return true;
  Py_DECREF(held);
  return false;
}

}  // namespace

void bind_heard_calls(nb::module_& m) {
  nb::class_<HeardCalls>(m, "HeardCalls")
      .def(nb::init<const nb::object&, nb::object, nb::object>(), nb::arg("object"), nb::arg("before"),
           nb::arg("after"))
      .def("remove", &HeardCalls::remove);
  nb::class_<Pauses>(m, "Pauses")
      .def(nb::init<>())
      .def("__call__", &Pauses::call, nb::arg("phase"), nb::arg("counts"))
      .def("take_us", &Pauses::take_us);
  m.def("hear_exit", &hear_exit, nb::arg("exit"), nb::arg("listener"));
  m.def("shorten_interval", &shorten_interval, nb::arg("get"), nb::arg("set"), nb::arg("seconds"));
  m.def("restore_interval", &restore_interval);
  m.def("interval_in_force", &interval_in_force, nb::arg("get"));
  m.def("call_on_main_thread", &call_on_main_thread, nb::arg("pending"));
}

}  // namespace whystall
