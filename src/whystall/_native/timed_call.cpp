#include "timed_call.hpp"

namespace nb = nanobind;

namespace whystall {

namespace {

struct TimedCall {
  nb::object function;
  nb::object before;
  nb::object after;
  bool tells_whose;
  bool tells_result;
};

// Calls a listener; an exception in it is dropped, except what must end the program (Ctrl-C).
void notify(const nb::object& listener, PyObject* told = nullptr) {
  PyObject* result = told == nullptr ? PyObject_CallNoArgs(listener.ptr()) : PyObject_CallOneArg(listener.ptr(), told);
  if (result != nullptr) {
    Py_DECREF(result);
  } else if (PyErr_ExceptionMatches(PyExc_Exception)) {
    PyErr_Clear();
  }
}

// As slots of the type: a call through a method of nanobind's costs a microsecond more, several times a step.
PyObject* call(PyObject* object, PyObject* args, PyObject* kwargs) {
  const TimedCall& self = *nb::inst_ptr<TimedCall>(object);
  const bool told = self.tells_whose && PyTuple_GET_SIZE(args) > 0;
  notify(self.before, told ? PyTuple_GET_ITEM(args, 0) : nullptr);
  if (PyErr_Occurred() != nullptr) return nullptr;
  PyObject* result = PyObject_Call(self.function.ptr(), args, kwargs);
  if (result == nullptr) {
    nb::python_error error;  // takes the exception; `after` runs without it
    notify(self.after, self.tells_result ? Py_None : nullptr);
    PyErr_Clear();
    error.restore();
    return nullptr;
  }
  notify(self.after, self.tells_result ? result : nullptr);
  if (PyErr_Occurred() != nullptr) {
    Py_DECREF(result);
    return nullptr;
  }
  return result;
}

PyObject* bind(PyObject* self, PyObject* instance, PyObject* /*owner*/) {
  return instance == nullptr || instance == Py_None ? Py_NewRef(self) : PyMethod_New(self, instance);
}

PyType_Slot slots[] = {
    {Py_tp_call, reinterpret_cast<void*>(&call)},
    {Py_tp_descr_get, reinterpret_cast<void*>(&bind)},
    {0, nullptr},
};

// What the interpreter calls between two bytecodes of the main thread.
int run_pending(void* held) {
  nb::object call = nb::steal(static_cast<PyObject*>(held));
  notify(call);
  return PyErr_Occurred() == nullptr ? 0 : -1;
}

// False when the interpreter's list of such calls is full.
bool call_on_main_thread(const nb::object& call) {
  PyObject* held = nb::object(call).release().ptr();
  if (Py_AddPendingCall(&run_pending, held) == 0) return true;
  Py_DECREF(held);
  return false;
}

}  // namespace

void bind_timed_call(nb::module_& m) {
  nb::class_<TimedCall>(m, "TimedCall", nb::type_slots(slots))
      .def(
          "__init__",
          [](TimedCall* self, nb::object function, nb::object before, nb::object after, bool tells_whose,
             bool tells_result) {
            new (self) TimedCall{std::move(function), std::move(before), std::move(after), tells_whose, tells_result};
          },
          nb::arg("function"), nb::arg("before"), nb::arg("after"), nb::kw_only(), nb::arg("tells_whose") = false,
          nb::arg("tells_result") = false)
      .def_prop_ro("__wrapped__", [](const TimedCall& self) { return self.function; });
  m.def("call_on_main_thread", &call_on_main_thread, nb::arg("call"));
}

}  // namespace whystall
