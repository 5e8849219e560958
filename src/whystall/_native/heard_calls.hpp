// Calls that are heard without a trace in what Python sees: no attribute, no frame, no other object in the place of one.
//
// Calls of one object go through a slot of its type; `os._exit` calls through the function that it consists of. A
// listener that fails is silenced, never what it listens to.
#pragma once

#include <nanobind/nanobind.h>

namespace whystall {

void bind_heard_calls(nanobind::module_& m);

}  // namespace whystall
