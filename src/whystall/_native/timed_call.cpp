#include "timed_call.hpp"

namespace nb = nanobind;

namespace whystall {

namespace {

struct TimedCall {
  nb::object function;
  nb::object before;
  nb::object after;
};

// Calls a listener; an exception in it is dropped, except what must end the program (Ctrl-C).
void notify(const nb::object& listener) {
  PyObject* result = PyObject_CallNoArgs(listener.ptr());
  if (result != nullptr) {
    Py_DECREF(result);
  } else if (PyErr_ExceptionMatches(PyExc_Exception)) {
    PyErr_Clear();
  }
}

nb::object call(const TimedCall& self, const nb::args& args, const nb::kwargs& kwargs) {
  notify(self.before);
  if (PyErr_Occurred() != nullptr) throw nb::python_error();
  PyObject* result = PyObject_Call(self.function.ptr(), args.ptr(), kwargs.ptr());
  if (result == nullptr) {
    nb::python_error error;  // takes the exception; `after` runs without it
    notify(self.after);
    PyErr_Clear();
    throw error;
  }
  notify(self.after);
  if (PyErr_Occurred() != nullptr) {
    Py_DECREF(result);
    throw nb::python_error();
  }
  return nb::steal(result);
}

}  // namespace

void bind_timed_call(nb::module_& m) {
  nb::class_<TimedCall>(m, "TimedCall")
      .def(
          "__init__",
          [](TimedCall* self, nb::object function, nb::object before, nb::object after) {
            new (self) TimedCall{std::move(function), std::move(before), std::move(after)};
          },
          nb::arg("function"), nb::arg("before"), nb::arg("after"))
      .def("__call__", &call)
      .def(
          "__get__",
          [](nb::handle self, nb::handle instance, nb::handle) -> nb::object {
            if (instance.is_none()) return nb::borrow(self);
            PyObject* bound = PyMethod_New(self.ptr(), instance.ptr());
            if (bound == nullptr) throw nb::python_error();
            return nb::steal(bound);
          },
          nb::arg("instance").none(), nb::arg("owner").none() = nb::none())
      .def_prop_ro("__wrapped__", [](const TimedCall& self) { return self.function; });
}

}  // namespace whystall
