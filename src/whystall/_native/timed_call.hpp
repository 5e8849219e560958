// A callable that tells two listeners when another callable begins and ends.
//
// It is native so that it leaves no frame in a traceback: what a user sees when the wrapped function
// raises is what they would see without it. A listener that fails is silenced, never the function.
#pragma once

#include <nanobind/nanobind.h>

namespace whystall {

void bind_timed_call(nanobind::module_& m);

}  // namespace whystall
