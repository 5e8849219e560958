#include "snapshot.hpp"

#include <algorithm>
#include <set>

namespace whystall {

namespace {

constexpr std::size_t kMostRows = std::size_t{1} << 31;
constexpr std::size_t kMostStackFrames = 128 << 20;
constexpr std::size_t kMostFrames = 4 << 20;
constexpr std::size_t kMostPools = 1 << 20;
constexpr std::size_t kMostDevices = 1024;

std::uint64_t mixed(std::uint64_t hash, std::uint64_t value) {
  hash = (hash ^ value) * 0xff51afd7ed558ccdULL;
  return hash ^ (hash >> 32);
}

// Keys and words that are looked for, in the order in which they are given their ids.
enum Word : std::uint32_t {
  kAction, kAddr, kSize, kStream, kFrames, kTime, kDeviceFree, kContext, kMetadata, kPoolId, kName, kFile, kLine, kOrigin,
  kStage, kDevice, kAddress, kTotal, kRequested, kSegmentType, kSegmentPool, kExpandable, kBlocks, kState, kHistory, kRealSize,
  kKeyEnd,  // `Found` has a place for each before
  kAlloc = kKeyEnd, kFreeRequested, kFreeCompleted, kSegmentAlloc, kSegmentFree, kSegmentMap, kSegmentUnmap, kOom, kSnapshot,
  kAnnotate, kActionEnd,
  kStart = kActionEnd, kEnd, kStageEnd,
  kSmall = kStageEnd, kLarge, kTypeEnd,
  kActive = kTypeEnd, kAwaiting, kPending, kInactive, kStateEnd
};

}  // namespace

SnapshotReader::SnapshotReader() {
  static_assert(kKeyEnd <= kKeys);
  for (const char* word :
       {"action", "addr", "size", "stream", "frames", "time_us", "device_free", "compile_context", "user_metadata", "pool_id",
        "name", "filename", "line", "fx_original_trace", "stage", "device", "address", "total_size", "requested_size",
        "segment_type", "segment_pool_id", "is_expandable", "blocks", "state", "history", "real_size",
        "alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "segment_map", "segment_unmap", "oom",
        "snapshot", "annotate", "START", "END", "small", "large", "active_allocated", "active_awaiting_free",
        "active_pending_free", "inactive"}) {
    text_id(word);
  }
  pools_.push_back({0, 0});
  pool_ids_.emplace(pools_.front(), 0);
}

std::size_t SnapshotReader::FrameHash::operator()(const FrameKey& key) const {
  std::uint64_t hash = mixed(key.name, std::uint64_t{key.file} << 32 | key.origin);
  return static_cast<std::size_t>(mixed(hash, static_cast<std::uint64_t>(key.line)));
}

bool SnapshotReader::result_is(Shape shape) const {
  return result().tag() == Value::Tag::Object && object(result()).shape == shape;
}

Value SnapshotReader::top(std::string_view key) {
  Value found;
  if (!is_dict()) return found;
  const std::uint32_t id = text_id(key);
  const std::vector<Value>& items = content(object(result()));
  for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
    if (items[i].is_text(id)) found = items[i + 1];
  }
  return found;
}

std::vector<std::uint32_t> SnapshotReader::rows(Value list, Kind kind) const {
  std::vector<std::uint32_t> out;
  if (list.tag() != Value::Tag::Object) return out;
  for (const Value item : content(object(list))) {
    if (!item.is_object()) continue;
    const Object found = object(item);
    if (found.shape == Shape::Folded && found.kind == kind) out.push_back(found.content);
  }
  return out;
}

std::vector<std::vector<std::uint32_t>> SnapshotReader::nested_rows(Value list, Kind kind) const {
  std::vector<std::vector<std::uint32_t>> out;
  if (list.tag() != Value::Tag::Object) return out;
  std::set<std::uint64_t> seen;  // an event is of one device: a list that is named again is not read again
  for (const Value item : content(object(list))) {
    if (item.tag() != Value::Tag::Object || object(item).shape != Shape::List || out.size() >= kMostDevices) continue;
    out.push_back(seen.insert(item.index()).second ? rows(item, kind) : std::vector<std::uint32_t>());
  }
  if (out.empty()) out.push_back(rows(list, kind));
  return out;
}

void SnapshotReader::find(const std::vector<Value>& items, Found& found) const {
  for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
    if (items[i].tag() == Value::Tag::Text && items[i].index() < kKeyEnd) found[items[i].index()] = items[i + 1];
  }
}

std::int64_t SnapshotReader::whole(Value value) const {
  std::int64_t out = kMissing;
  return number(value, out) ? out : kMissing;
}

std::int64_t SnapshotReader::text(Value value) const {
  return value.tag() == Value::Tag::Text ? static_cast<std::int64_t>(value.index()) : -1;
}

// Which of the words from `first` on a text is; -1 where it is another.
std::int64_t SnapshotReader::word(Value value, std::uint32_t first, std::uint32_t last) const {
  const std::int64_t id = text(value);
  return id >= first && id < last ? id - first : -1;
}

void SnapshotReader::fold(Value dict) {
  Found found{};
  const std::vector<Value>& items = content(object(dict));
  if (items.empty()) return;
  find(items, found);
  const auto has = [&found](Word key) { return !found[key].is(Value::Plain::None); };
  if (std::max({events_.rows, segments_.rows, blocks_.rows, annotations_.rows}) >= kMostRows) {
    too_much("it holds more entries than any snapshot");
  } else if (has(kAction)) {
    fold_event(dict, found);
  } else if (has(kFile) && has(kName)) {
    fold_frame(dict, found);
  } else if (has(kBlocks) && has(kTotal)) {
    fold_segment(dict, found);
  } else if (has(kState) && has(kSize)) {
    fold_block(dict, found);
  } else if (has(kStage) && has(kName)) {
    fold_annotation(dict, found);
  }
}

void SnapshotReader::fold_frame(Value dict, const Found& found) {
  const std::int64_t line = whole(found[kLine]);
  const FrameKey key{static_cast<std::uint32_t>(text(found[kName])), static_cast<std::uint32_t>(text(found[kFile])),
                     static_cast<std::uint32_t>(text(found[kOrigin])), line};
  const auto [place, added] = frame_ids_.try_emplace(key, static_cast<std::uint32_t>(frame_ids_.size()));
  if (frame_ids_.size() > kMostFrames) {
    too_much("it holds more different frames than any snapshot");
    return;
  }
  if (added) {
    frames_.name.append(text(found[kName]));
    frames_.file.append(text(found[kFile]));
    frames_.line.append(line);
    frames_.origin.append(text(found[kOrigin]));
  }
  replace(dict, kFrame, place->second);
}

// The number of a list of frames; equal lists have one. -1 where there is none.
std::int64_t SnapshotReader::stack_of(Value list) {
  if (!list.is_object()) return -1;
  const Object object_of = object(list);
  if (object_of.shape == Shape::Folded) return object_of.kind == kStack ? std::int64_t{object_of.content} : -1;
  if (object_of.shape == Shape::Dict) return -1;
  scratch_.clear();
  std::uint64_t hash = 0;
  for (const Value item : content(object_of)) {
    if (!item.is_object()) continue;
    const Object frame = object(item);
    if (frame.shape != Shape::Folded || frame.kind != kFrame) continue;
    scratch_.push_back(frame.content);
    hash = mixed(hash, frame.content + 1);
  }
  if (scratch_.empty()) {
    replace(list, kNothing, 0);
    return -1;
  }
  const auto [from, to] = stack_ids_.equal_range(hash);
  for (auto at = from; at != to; ++at) {
    const std::uint64_t begin = at->second == 0 ? 0 : stack_ends_[at->second - 1];
    const std::uint64_t size = stack_ends_[at->second] - begin;
    if (size == scratch_.size() && std::equal(scratch_.begin(), scratch_.end(), stack_frames_.begin() + static_cast<std::ptrdiff_t>(begin))) {
      replace(list, kStack, at->second);
      return at->second;
    }
  }
  if (stack_frames_.size() + scratch_.size() > kMostStackFrames) {
    too_much("its call stacks are longer than any snapshot's");
    return -1;
  }
  const auto id = static_cast<std::uint32_t>(stack_ends_.size());
  stack_frames_.insert(stack_frames_.end(), scratch_.begin(), scratch_.end());
  stack_ends_.push_back(stack_frames_.size());
  stack_ids_.emplace(hash, id);
  replace(list, kStack, id);
  return id;
}

// The number of a pool's pair of numbers; that of all that lies in no private pool is 0.
std::int64_t SnapshotReader::pool_of(Value pair) {
  if (!pair.is_object()) return 0;
  const Object object_of = object(pair);
  if (object_of.shape == Shape::Folded) return object_of.kind == kPool ? std::int64_t{object_of.content} : 0;
  const std::vector<Value>& items = content(object_of);
  if (object_of.shape == Shape::Dict || items.size() != 2) return 0;
  const std::array<std::int64_t, 2> key{whole(items[0]), whole(items[1])};
  const auto [place, added] = pool_ids_.try_emplace(key, static_cast<std::uint32_t>(pools_.size()));
  if (added) pools_.push_back(key);
  if (pools_.size() > kMostPools) too_much("it holds more pools of memory than any snapshot");
  replace(pair, kPool, place->second);
  return place->second;
}

void SnapshotReader::fold_event(Value dict, const Found& found) {
  const std::int64_t action = word(found[kAction], kAlloc, kActionEnd);
  events_.action.append(action);
  events_.address.append(whole(found[action == kOom - kAlloc ? kDeviceFree : kAddr]));
  events_.size.append(whole(found[kSize]));
  events_.stream.append(whole(found[kStream]));
  events_.time.append(whole(found[kTime]));
  events_.stack.append(stack_of(found[kFrames]));
  events_.context.append(text(found[kContext]));
  events_.metadata.append(text(found[kMetadata]));
  events_.pool.append(pool_of(found[kPoolId]));
  replace(dict, kEvent, static_cast<std::uint32_t>(events_.rows++));
}

void SnapshotReader::fold_segment(Value dict, const Found& found) {
  const auto begin = static_cast<std::int64_t>(block_order_.size());
  if (found[kBlocks].tag() == Value::Tag::Object && object(found[kBlocks]).shape == Shape::List) {
    for (const std::uint32_t row : rows(found[kBlocks], kBlock)) block_order_.push_back(row);
    replace(found[kBlocks], kNothing, 0);  // each list is read once, however often it is named
  }
  segments_.device.append(whole(found[kDevice]));
  segments_.address.append(whole(found[kAddress]));
  segments_.total.append(whole(found[kTotal]));
  segments_.stream.append(whole(found[kStream]));
  segments_.kind.append(word(found[kSegmentType], kSmall, kTypeEnd));
  segments_.expandable.append(found[kExpandable].is(Value::Plain::True) ? 1 : 0);
  segments_.stack.append(stack_of(found[kFrames]));
  segments_.pool.append(pool_of(found[kSegmentPool]));
  segments_.blocks_begin.append(begin);
  segments_.blocks_end.append(static_cast<std::int64_t>(block_order_.size()));
  replace(dict, kSegment, static_cast<std::uint32_t>(segments_.rows++));
}

// Old snapshots say what a block was last used for in a history, whose first entry is the newest.
void SnapshotReader::fold_block(Value dict, const Found& found) {
  std::int64_t requested = whole(found[kRequested]);
  std::int64_t stack = stack_of(found[kFrames]);
  std::int64_t address = whole(found[kAddress]);
  const Value history = found[kHistory];
  if (history.tag() == Value::Tag::Object && object(history).shape == Shape::List) {
    const std::vector<Value> entries = content(object(history));
    for (std::size_t i = 0; i < entries.size(); ++i) {
      if (entries[i].tag() != Value::Tag::Object || object(entries[i]).shape != Shape::Dict) continue;
      Found newest{};
      find(content(object(entries[i])), newest);
      const std::int64_t of = stack_of(newest[kFrames]);
      if (i == 0) {
        stack = stack < 0 ? of : stack;
        requested = requested == kMissing ? whole(newest[kRealSize]) : requested;
        address = address == kMissing ? whole(newest[kAddr]) : address;
      }
      replace(entries[i], kNothing, 0);
    }
    replace(history, kNothing, 0);
  }
  const std::int64_t state = word(found[kState], kActive, kStateEnd);
  blocks_.address.append(address);
  blocks_.size.append(whole(found[kSize]));
  blocks_.requested.append(requested);
  blocks_.state.append(state == kPending - kActive ? kAwaiting - kActive : state);
  blocks_.stack.append(stack);
  replace(dict, kBlock, static_cast<std::uint32_t>(blocks_.rows++));
}

void SnapshotReader::fold_annotation(Value dict, const Found& found) {
  annotations_.name.append(text(found[kName]));
  annotations_.stage.append(word(found[kStage], kStart, kStageEnd));
  annotations_.device.append(whole(found[kDevice]));
  annotations_.time.append(whole(found[kTime]));
  replace(dict, kAnnotation, static_cast<std::uint32_t>(annotations_.rows++));
}

}  // namespace whystall
