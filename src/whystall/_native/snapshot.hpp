// CUDA memory snapshots of torch as columns: events, frames, stacks, segments, blocks and annotations.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <map>
#include <unordered_map>
#include <vector>

#include "columns.hpp"
#include "pickle.hpp"

namespace whystall {

// One column each; `kMissing` where a snapshot says nothing, -1 for a missing stack or text.
struct SnapshotEvents {
  IntColumn action, address, size, stream, time, stack, context, metadata, pool;
  std::size_t rows = 0;
};
struct SnapshotFrames {
  IntColumn name, file, line, origin;
};
struct SnapshotSegments {
  IntColumn device, address, total, stream, kind, expandable, stack, pool, blocks_begin, blocks_end;
  std::size_t rows = 0;
};
struct SnapshotBlocks {
  IntColumn address, size, requested, state, stack;
  std::size_t rows = 0;
};
struct SnapshotAnnotations {
  IntColumn name, stage, device, time;
  std::size_t rows = 0;
};

class SnapshotReader final : public PickleMachine {
 public:
  SnapshotReader();

  static constexpr std::int64_t kMissing = std::numeric_limits<std::int64_t>::min();
  enum Kind : std::uint8_t { kEvent = 1, kStack, kPool, kFrame, kSegment, kBlock, kAnnotation, kNothing };

  // The value under a key of the outermost dict; None where there is none.
  Value top(std::string_view key);
  bool has(std::string_view key) { return !top(key).is(Value::Plain::None); }
  bool is_list() const { return result_is(Shape::List); }
  bool is_dict() const { return result_is(Shape::Dict); }
  // The rows of the kind in a list, in its order.
  std::vector<std::uint32_t> rows(Value list, Kind kind) const;
  // The same for each list in a list, or for the list itself where it holds the rows.
  std::vector<std::vector<std::uint32_t>> nested_rows(Value list, Kind kind) const;

  SnapshotEvents& events() { return events_; }
  SnapshotFrames& frames() { return frames_; }
  SnapshotSegments& segments() { return segments_; }
  SnapshotBlocks& blocks() { return blocks_; }
  SnapshotAnnotations& annotations() { return annotations_; }
  const std::vector<std::uint32_t>& stack_frames() const { return stack_frames_; }
  const std::vector<std::uint64_t>& stack_ends() const { return stack_ends_; }
  const std::vector<std::uint32_t>& block_order() const { return block_order_; }
  const std::vector<std::array<std::int64_t, 2>>& pools() const { return pools_; }

 protected:
  void fold(Value dict) override;

 private:
  struct FrameKey {
    std::uint32_t name, file, origin;
    std::int64_t line;
    bool operator==(const FrameKey& other) const {
      return name == other.name && file == other.file && origin == other.origin && line == other.line;
    }
  };
  struct FrameHash {
    std::size_t operator()(const FrameKey& key) const;
  };
  static constexpr std::size_t kKeys = 32;
  using Found = std::array<Value, kKeys>;

  bool result_is(Shape shape) const;
  void find(const std::vector<Value>& items, Found& found) const;
  std::int64_t whole(Value value) const;
  std::int64_t text(Value value) const;
  std::int64_t word(Value value, std::uint32_t first, std::uint32_t last) const;
  std::int64_t stack_of(Value list);
  std::int64_t pool_of(Value pair);
  void fold_event(Value dict, const Found& found);
  void fold_frame(Value dict, const Found& found);
  void fold_segment(Value dict, const Found& found);
  void fold_block(Value dict, const Found& found);
  void fold_annotation(Value dict, const Found& found);

  SnapshotEvents events_;
  SnapshotFrames frames_;
  SnapshotSegments segments_;
  SnapshotBlocks blocks_;
  SnapshotAnnotations annotations_;
  std::unordered_map<FrameKey, std::uint32_t, FrameHash> frame_ids_;
  std::unordered_multimap<std::uint64_t, std::uint32_t> stack_ids_;
  std::vector<std::uint32_t> stack_frames_;
  std::vector<std::uint64_t> stack_ends_;
  std::vector<std::uint32_t> block_order_;  // the blocks of one segment after another
  std::vector<std::array<std::int64_t, 2>> pools_;
  std::map<std::array<std::int64_t, 2>, std::uint32_t> pool_ids_;
  std::vector<std::uint32_t> scratch_;
};

}  // namespace whystall
