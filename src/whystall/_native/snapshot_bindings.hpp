// Python's view of the reader of snapshots.
#pragma once

#include <nanobind/nanobind.h>

namespace whystall {

void bind_snapshot(nanobind::module_& m);

}  // namespace whystall
