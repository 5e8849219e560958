#include "pickle.hpp"

#include <algorithm>
#include <cmath>

namespace whystall {

namespace {

// No snapshot comes near these; together they bound what a hostile file can make of each of its bytes.
constexpr std::size_t kMostStack = 16 << 20;
constexpr std::uint64_t kMostHeld = 96 << 20;
constexpr std::size_t kMostObjects = 48 << 20;
constexpr std::size_t kMostMemo = 160 << 20;
constexpr std::size_t kMostKept = 32 << 20;  // values of the memo that are neither texts nor folded
constexpr std::size_t kMostContents = 8 << 20;
constexpr std::size_t kMostWide = 64 << 20;
constexpr std::size_t kMostTextBytes = 256 << 20;
constexpr std::size_t kMostTexts = 4 << 20;
constexpr std::size_t kLongestText = 16 << 20;
constexpr std::size_t kMemoAhead = 4096;  // how far beyond the end a number may be put
// What the memo's 32 bits hold: the first four kinds of folded values, texts, lists and dicts, holes, and all else.
constexpr std::uint32_t kMemoKinds = 4;
constexpr std::uint32_t kMemoText = 4;
constexpr std::uint32_t kMemoObject = 5;
constexpr std::uint32_t kMemoHole = 6;
constexpr std::uint32_t kMemoKept = 7;
constexpr std::uint64_t kMemoMost = std::uint64_t{1} << 29;
constexpr std::size_t kKeptContent = 4096;  // values of a spare content that keeps its memory

std::uint64_t little_endian(const unsigned char* at, unsigned width) {
  std::uint64_t value = 0;
  for (unsigned i = 0; i < width; ++i) value |= std::uint64_t{at[i]} << (8 * i);
  return value;
}

std::uint64_t pack(const PickleMachine::Object& object) {
  return std::uint64_t{object.content} | static_cast<std::uint64_t>(object.shape) << 32 | std::uint64_t{object.kind} << 40;
}

PickleMachine::Object unpack(std::uint64_t bits) {
  return {static_cast<PickleMachine::Shape>(bits >> 32 & 0xff), static_cast<std::uint8_t>(bits >> 40 & 0xff),
          static_cast<std::uint32_t>(bits)};
}

std::uint64_t cell(const Cells& cells, std::size_t index) {
  std::uint64_t bits;
  std::memcpy(&bits, cells.data() + index * sizeof bits, sizeof bits);
  return bits;
}

}  // namespace

char* PickleMachine::space(std::size_t size) {
  if (filled_ + size > buffer_.size()) buffer_.resize(filled_ + size);
  return buffer_.data() + filled_;
}

void PickleMachine::feed(const char* data, std::size_t size) {
  if (size > 0) std::memcpy(space(size), data, size);
  accept(size);
}

void PickleMachine::accept(std::size_t size) {
  if (stage_ == Stage::End || stage_ == Stage::Failed) return;
  filled_ += size;
  run();
}

void PickleMachine::finish() {
  last_ = true;
  if (stage_ == Stage::End || stage_ == Stage::Failed) return;
  run();
  if (stage_ == Stage::End || stage_ == Stage::Failed) return;
  const bool begun = stage_ == Stage::Running;
  fail(begun ? PickleFailure::Kind::Cut : PickleFailure::Kind::Damaged,
       begun ? "it ends before its last instruction" : "it does not begin like a pickle of protocol 2 or later");
  if (begun) close_what_is_open();
}

void PickleMachine::run() {
  at_ = reinterpret_cast<const unsigned char*>(buffer_.data());
  end_ = at_ + filled_;
  const unsigned char* const begin = at_;
  const std::uint64_t before = consumed_;
  while (stage_ == Stage::Start || stage_ == Stage::Running) {
    consumed_ = before + static_cast<std::uint64_t>(at_ - begin);
    const unsigned char* const instruction = at_;
    if (step() == Step::More) {
      at_ = instruction;
      break;
    }
  }
  const auto used = static_cast<std::size_t>(at_ - begin);
  consumed_ = before + used;
  filled_ -= used;
  if (filled_ > 0 && used > 0) std::memmove(buffer_.data(), buffer_.data() + used, filled_);
}

PickleMachine::Step PickleMachine::fail(PickleFailure::Kind kind, std::string what, unsigned instruction) {
  failure_ = {kind, std::move(what), instruction, consumed_};
  stage_ = Stage::Failed;
  return Step::Stop;
}

void PickleMachine::too_much(const char* what) { fail(PickleFailure::Kind::TooMuch, what); }

// Carries one instruction out. `More` leaves everything as it was.
PickleMachine::Step PickleMachine::step() {
  if (!whole(1)) return Step::More;
  if (stage_ == Stage::Start) {
    if (*at_ != 0x80) return damaged("it does not begin like a pickle of protocol 2 or later");
    if (!whole(2)) return Step::More;
    if (at_[1] < 2 || at_[1] > 5) return damaged("it does not begin like a pickle of protocol 2 or later");
    at_ += 2;
    stage_ = Stage::Running;
    return Step::Done;
  }
  const unsigned char code = *at_;
  switch (code) {
    case 'X': return counted(4, true);
    case 0x8c: return counted(1, true);
    case 0x8d: return counted(8, true);
    case 0x8a: return counted(1, false);
    case 0x8b: return counted(4, false);
    case 'N': case 0x88: case 0x89: case 'K': case 'M': case 'J': case 'G': return constant(code);
    case 'h': case 'j': case 'q': case 'r': case 0x94: return memory(code);
    case 0x95:  // a frame: its length is of no use to who reads one instruction after the other
      if (!whole(9)) return Step::More;
      at_ += 9;
      return Step::Done;
    case '(': case ']': case '}': case ')': case 't': case 0x85: case 0x86: case 0x87: case 'l': case 'd':
    case 'a': case 'e': case 's': case 'u': case '0': case '1': case '2': case '.': return container(code);
    default: return fail(PickleFailure::Kind::Refused, "", code);
  }
}

bool PickleMachine::push(Value value) {
  if (stack_.size() >= kMostStack) {
    too_much("its stack holds more values than any snapshot's");
    return false;
  }
  stack_.push_back(value);
  return true;
}

// An instruction with a length and that many bytes: text, or an integer.
PickleMachine::Step PickleMachine::counted(unsigned width, bool is_text) {
  if (!whole(1 + width)) return Step::More;
  const std::uint64_t size = little_endian(at_ + 1, width);
  if (size > (is_text ? kLongestText : 16)) return damaged("one of its values is longer than any snapshot's");
  if (!whole(1 + width + size)) return Step::More;
  const unsigned char* const from = at_ + 1 + width;
  Value value;
  if (is_text) {
    value = Value::at(Value::Tag::Text, text_id({reinterpret_cast<const char*>(from), size}));
    if (texts_.bytes() > kMostTextBytes || texts_.size() > kMostTexts) {
      return fail(PickleFailure::Kind::TooMuch, "it holds more different names than any snapshot");
    }
  } else if (size <= 8) {
    std::uint64_t bits = size == 0 ? 0 : little_endian(from, static_cast<unsigned>(size));
    if (size > 0 && size < 8 && (from[size - 1] & 0x80) != 0) bits |= ~std::uint64_t{0} << (8 * size);
    const auto number = static_cast<std::int64_t>(bits);
    value = Value::fits(number) ? Value::integer(number) : wide(Value::Tag::Wide, bits);
  } else {
    value = Value::plain(Value::Plain::None);  // an integer beyond 64 bits is nothing that is asked for
  }
  if (stage_ == Stage::Failed || !push(value)) return Step::Stop;
  at_ = from + size;
  return Step::Done;
}

Value PickleMachine::wide(Value::Tag tag, std::uint64_t bits) {
  if (wide_.size() >= kMostWide) too_much("it holds more large numbers than any snapshot");
  wide_.append(bits);
  return Value::at(tag, wide_.size() - 1);
}

PickleMachine::Step PickleMachine::constant(unsigned char code) {
  static constexpr auto kSize = [](unsigned char which) -> unsigned {
    return which == 'K' ? 1 : which == 'M' ? 2 : which == 'J' ? 4 : which == 'G' ? 8 : 0;
  };
  const unsigned size = kSize(code);
  if (!whole(1 + size)) return Step::More;
  Value value;
  if (code == 'K' || code == 'M') {
    value = Value::integer(static_cast<std::int64_t>(little_endian(at_ + 1, size)));
  } else if (code == 'J') {
    value = Value::integer(static_cast<std::int32_t>(little_endian(at_ + 1, 4)));
  } else if (code == 'G') {
    std::uint64_t bits = 0;
    for (unsigned i = 1; i <= 8; ++i) bits = bits << 8 | at_[i];
    value = wide(Value::Tag::Float, bits);
  } else {
    value = Value::plain(code == 'N' ? Value::Plain::None : code == 0x88 ? Value::Plain::True : Value::Plain::False);
  }
  if (stage_ == Stage::Failed || !push(value)) return Step::Stop;
  at_ += 1 + size;
  return Step::Done;
}

// Puts the top of the stack into the memo, or fetches something from it.
PickleMachine::Step PickleMachine::memory(unsigned char code) {
  const unsigned size = code == 'h' || code == 'q' ? 1 : code == 'j' || code == 'r' ? 4 : 0;
  if (!whole(1 + size)) return Step::More;
  std::uint64_t index = size == 0 ? memo_.size() : little_endian(at_ + 1, size);
  if (code == 'h' || code == 'j') {
    if (index >= memo_.size()) return damaged("it asks for something that it has not kept");
    const Value value = memo(index);
    if (value.tag() == Value::Tag::Mark) return damaged("it asks for something that it has not kept");
    if (value.tag() == Value::Tag::Object) fetched_ = std::max(fetched_, value.index() + 1);
    if (!push(value)) return Step::Stop;
  } else {
    if (stack_.empty() || stack_.back().tag() == Value::Tag::Mark) return damaged("it keeps something that is not there");
    if (index >= kMostMemo) return fail(PickleFailure::Kind::TooMuch, "it keeps more values than any snapshot");
    if (index > memo_.size() + kMemoAhead) return damaged("it keeps something under a number far beyond the last");
    set_memo(index, stack_.back());
    if (kept_.size() > kMostKept || unfolded_.size() > kMostKept) {
      return fail(PickleFailure::Kind::TooMuch, "it keeps more values than any snapshot");
    }
  }
  at_ += 1 + size;
  return Step::Done;
}

// A value of the memo: three bits say what it is, and 29 which. What does not fit stands in `kept_`.
Value PickleMachine::memo(std::size_t index) const {
  std::uint32_t bits;
  std::memcpy(&bits, memo_.data() + index * sizeof bits, sizeof bits);
  const std::uint32_t which = bits >> 3;
  switch (bits & 7) {
    case kMemoText: return Value::at(Value::Tag::Text, which);
    case kMemoObject: return Value::at(Value::Tag::Object, which);
    case kMemoKept: return kept_[which];
    case kMemoHole: return Value::mark();
    default: return Value::at(Value::Tag::Folded, ((bits & 7) == 0 ? kMemoKinds : bits & 7) | std::uint64_t{which} << 8);
  }
}

void PickleMachine::set_memo(std::size_t index, Value value) {
  while (memo_.size() <= index) memo_.append(std::uint32_t{kMemoHole});
  const std::uint64_t which = value.tag() == Value::Tag::Folded ? value.index() >> 8 : value.index();
  const std::uint64_t kind = value.tag() == Value::Tag::Folded ? value.index() & 0xff : 0;
  std::uint32_t code = kMemoKept;
  if (which < kMemoMost) {
    if (value.tag() == Value::Tag::Text) code = kMemoText;
    if (value.tag() == Value::Tag::Object) code = kMemoObject;
    if (value.tag() == Value::Tag::Folded && kind >= 1 && kind <= kMemoKinds) code = static_cast<std::uint32_t>(kind % kMemoKinds);
  }
  if (code == kMemoKept) kept_.push_back(value);
  memo_.put(index, static_cast<std::uint32_t>(code == kMemoKept ? kept_.size() - 1 : which) << 3 | code);
  if (value.tag() != Value::Tag::Object) return;
  in_order_ = in_order_ && value.index() >= last_kept_;
  last_kept_ = value.index();
  unfolded_.push_back(static_cast<std::uint32_t>(index));
}

// Forgets a folded dict and what was made for it, which is most of what a snapshot is made of: the values that name them,
// on the stack and in the memo, become the numbers that they were folded into. Only where nothing else can name them.
void PickleMachine::release(std::size_t dict) {
  if (fetched_ > dict || !in_order_) return;
  for (std::size_t at = objects_.size(); at-- > dict;) {
    if (unpack(cell(objects_, at)).shape != Shape::Folded) return;
  }
  const auto number = [this](std::uint64_t index) {
    const Object found = unpack(cell(objects_, index));
    return Value::at(Value::Tag::Folded, found.kind | std::uint64_t{found.content} << 8);
  };
  while (!unfolded_.empty()) {
    const std::size_t place = unfolded_.back();
    const Value value = memo(place);
    if (value.tag() == Value::Tag::Object && value.index() < dict) break;
    unfolded_.pop_back();
    if (value.tag() == Value::Tag::Object) set_memo(place, number(value.index()));
  }
  stack_.back() = number(dict);
  last_kept_ = std::min<std::uint64_t>(last_kept_, dict);
  objects_.shrink(dict);
}

Value PickleMachine::make(Shape shape) {
  if (objects_.size() >= kMostObjects) too_much("it holds more lists and dicts than any snapshot");
  objects_.append(pack({shape, 0, kEmpty}));
  return Value::at(Value::Tag::Object, objects_.size() - 1);
}

PickleMachine::Object PickleMachine::object(Value value) const {
  if (value.tag() == Value::Tag::Folded) {
    return {Shape::Folded, static_cast<std::uint8_t>(value.index()), static_cast<std::uint32_t>(value.index() >> 8)};
  }
  if (value.index() >= objects_.size()) return {Shape::Folded, 0, 0};
  return unpack(cell(objects_, value.index()));
}

const std::vector<Value>& PickleMachine::content(const Object& object) const {
  static const std::vector<Value> kNothing;
  return object.shape == Shape::Folded || object.content == kEmpty ? kNothing : contents_[object.content];
}

// What a list or dict holds, to be added to. Null where the value is none that is still open.
std::vector<Value>* PickleMachine::open(Value value, Shape shape) {
  if (value.tag() != Value::Tag::Object) return nullptr;
  Object found = object(value);
  if (found.shape != shape) return nullptr;
  if (found.content == kEmpty) {
    if (spare_.empty()) {
      if (contents_.size() >= kMostContents) return nullptr;
      found.content = static_cast<std::uint32_t>(contents_.size());
      contents_.emplace_back();
    } else {
      found.content = spare_.back();
      spare_.pop_back();
    }
    objects_.put(value.index(), pack(found));
  }
  return &contents_[found.content];
}

void PickleMachine::replace(Value value, std::uint8_t kind, std::uint32_t number) {
  const Object found = object(value);
  if (found.shape != Shape::Folded && found.content != kEmpty) {
    std::vector<Value>& content = contents_[found.content];
    held_ -= content.size();
    content.clear();
    if (content.capacity() > kKeptContent) content.shrink_to_fit();
    spare_.push_back(found.content);
  }
  objects_.put(value.index(), pack({Shape::Folded, kind, number}));
}

// A dict that is put into something has all that it will have. It is looked at once, however often it is put somewhere.
void PickleMachine::settle(Value value) {
  if (value.tag() != Value::Tag::Object) return;
  Object found = object(value);
  if (found.shape != Shape::Dict || found.kind != 0) return;
  fold(value);
  found = object(value);
  if (found.shape != Shape::Dict) return;
  found.kind = 1;
  objects_.put(value.index(), pack(found));
}

// As torch writes them, a dict is whole with its first items: it need not wait for the list that it is put into.
PickleMachine::Step PickleMachine::first_items(std::size_t count) {
  const Value dict = stack_.back();
  if (count == 0 || content(object(dict)).size() != count) return Step::Done;
  fold(dict);
  if (stage_ == Stage::Failed) return Step::Stop;
  if (object(dict).shape == Shape::Folded) release(dict.index());
  return Step::Done;
}

PickleMachine::Step PickleMachine::closed(const char* what) {
  if (contents_.size() < kMostContents) return damaged(what);
  return fail(PickleFailure::Kind::TooMuch, "it holds more lists and dicts of unknown kinds than any snapshot");
}

PickleMachine::Step PickleMachine::append(Value list, const Value* first, std::size_t count) {
  if (count == 0) return Step::Done;
  if (open(list, Shape::List) == nullptr) return closed("it appends to what is no list, or has ended");
  held_ += count;
  if (held_ > kMostHeld) return fail(PickleFailure::Kind::TooMuch, "it holds more values than any snapshot");
  for (std::size_t i = 0; i < count; ++i) {
    settle(first[i]);
    if (stage_ == Stage::Failed) return Step::Stop;
  }
  std::vector<Value>* const content = open(list, Shape::List);
  if (content == nullptr) return closed("it appends to what is no list, or has ended");
  content->insert(content->end(), first, first + count);
  return Step::Done;
}

PickleMachine::Step PickleMachine::set_items(Value dict, const Value* first, std::size_t count) {
  if (count % 2 != 0) return damaged("a key has no value");
  if (count == 0) return Step::Done;
  std::vector<Value>* const content = open(dict, Shape::Dict);
  if (content == nullptr) return closed("it adds to what is no dict, or has ended");
  held_ += count;
  if (held_ > kMostHeld) return fail(PickleFailure::Kind::TooMuch, "it holds more values than any snapshot");
  content->insert(content->end(), first, first + count);
  return Step::Done;
}

PickleMachine::Step PickleMachine::tuple(std::size_t first) {
  const Value made = make(Shape::List);  // open() asks for the shape, so it becomes a tuple once it is filled
  if (stage_ == Stage::Failed) return Step::Stop;
  if (append(made, stack_.data() + first, stack_.size() - first) == Step::Stop) return Step::Stop;
  Object found = object(made);
  found.shape = Shape::Tuple;
  objects_.put(made.index(), pack(found));
  stack_.resize(first);
  return push(made) ? Step::Done : Step::Stop;
}

// Takes the innermost mark away; `place` is where it stood.
bool PickleMachine::last_mark(std::size_t& place) {
  if (marks_.empty()) return false;
  place = marks_.back();
  marks_.pop_back();
  return true;
}

PickleMachine::Step PickleMachine::container(unsigned char code) {
  ++at_;
  std::size_t mark = 0;
  const std::size_t floor = marks_.empty() ? 0 : marks_.back() + 1;  // what lies below belongs to another
  const std::size_t above = stack_.size() - floor;
  Step step = Step::Done;
  switch (code) {
    case '(':
      marks_.push_back(static_cast<std::uint32_t>(stack_.size()));
      return push(Value::mark()) ? Step::Done : Step::Stop;
    case ']': case '}': case ')': {
      const Value made = make(code == ']' ? Shape::List : code == '}' ? Shape::Dict : Shape::Tuple);
      return stage_ != Stage::Failed && push(made) ? Step::Done : Step::Stop;
    }
    case 0x85: case 0x86: case 0x87: {
      const std::size_t count = code - 0x84U;
      if (above < count) return damaged("its stack is empty");
      return tuple(stack_.size() - count);
    }
    case 't': case 'l': case 'd': {
      if (!last_mark(mark)) return damaged("a mark is missing");
      if (code == 't') {
        step = tuple(mark + 1);
        if (step == Step::Done) stack_.erase(stack_.end() - 2);
        return step;
      }
      const Value made = make(code == 'l' ? Shape::List : Shape::Dict);
      if (stage_ == Stage::Failed) return Step::Stop;
      const Value* const first = stack_.data() + mark + 1;
      const std::size_t count = stack_.size() - mark - 1;
      step = code == 'l' ? append(made, first, count) : set_items(made, first, count);
      stack_.resize(mark);
      return step == Step::Done && !push(made) ? Step::Stop : step;
    }
    case 'a':
      if (above < 2) return damaged("its stack is empty");
      step = append(stack_[stack_.size() - 2], &stack_.back(), 1);
      stack_.pop_back();
      return step;
    case 's':
      if (above < 3) return damaged("its stack is empty");
      step = set_items(stack_[stack_.size() - 3], &stack_[stack_.size() - 2], 2);
      stack_.resize(stack_.size() - 2);
      return step;
    case 'e': case 'u':
      if (!last_mark(mark) || mark == 0) return damaged("a mark is missing");
      step = code == 'e' ? append(stack_[mark - 1], stack_.data() + mark + 1, stack_.size() - mark - 1)
                         : set_items(stack_[mark - 1], stack_.data() + mark + 1, stack_.size() - mark - 1);
      stack_.resize(mark);
      return code == 'u' && step == Step::Done ? first_items(above) : step;
    case '0':
      if (above == 0) return damaged("its stack is empty");
      stack_.pop_back();
      return Step::Done;
    case '1':
      if (!last_mark(mark)) return damaged("a mark is missing");
      stack_.resize(mark);
      return Step::Done;
    case '2':
      if (above == 0) return damaged("its stack is empty");
      if (stack_.back().tag() == Value::Tag::Object) fetched_ = std::max(fetched_, stack_.back().index() + 1);
      return push(stack_.back()) ? Step::Done : Step::Stop;
    default:  // the last instruction
      if (above == 0 || !marks_.empty()) return damaged("it ends in the middle of a value");
      result_ = stack_.back();
      stage_ = Stage::End;
      return Step::Stop;
  }
}

// A file that was cut off: what is complete joins what it was meant for, from the innermost outwards. A dict that was being
// filled lacks something and is left out, but for the outermost.
void PickleMachine::close_what_is_open() {
  const PickleFailure cut = failure_;
  stage_ = Stage::Running;
  std::size_t mark = 0;
  while (last_mark(mark) && mark > 0) {
    const Value below = stack_[mark - 1];
    const Value* const first = stack_.data() + mark + 1;
    const std::size_t count = stack_.size() - mark - 1;
    const bool is_object = below.tag() == Value::Tag::Object;
    bool kept = true;
    if (is_object && object(below).shape == Shape::List) {
      append(below, first, count);
    } else if (is_object && mark == 1) {
      // A list of one is appended without a mark: here it still stands behind the list that it was meant for.
      if (count % 2 == 1 && count > 1) append(first[count - 2], &first[count - 1], 1);
      if (failure_.kind == PickleFailure::Kind::Damaged) stage_ = Stage::Running;  // that was no list
      set_items(below, first, count - count % 2);
    } else {
      kept = below.tag() == Value::Tag::Mark;
    }
    if (stage_ == Stage::Failed) return;  // which says more than that the file was cut off
    stack_.resize(kept ? mark : mark - 1);
  }
  if (!stack_.empty()) result_ = stack_.front();
  failure_ = cut;
  stage_ = Stage::Failed;
}

// Goes through the objects once, each after those that it holds.
void PlainPickle::end() {
  finish();
  if (!done()) return;
  // Python's hash of a tuple goes through all that it holds: of 45 that hold each other twice, through 2 to the 45. Also
  // of dicts that nothing holds in the end.
  for (std::size_t each = 0; each < objects(); ++each) {
    const Object made = object(Value::at(Value::Tag::Object, each));
    if (made.shape != Shape::Dict) continue;
    const std::vector<Value>& inside = content(made);
    for (std::size_t i = 0; i < inside.size(); i += 2) {
      if (inside[i].is_object()) return too_much("a key is a list, a dict or a tuple");
    }
  }
  struct Place {
    std::uint64_t object;
    std::size_t next;
  };
  constexpr std::uint64_t kUnderWay = ~std::uint64_t{0};
  std::vector<std::uint64_t> sizes(objects(), 0);
  std::vector<Place> way;
  const auto enter = [&](Value value) {
    sizes[value.index()] = kUnderWay;
    way.push_back({value.index(), 0});
  };
  if (result().tag() != Value::Tag::Object) return;
  enter(result());
  std::vector<std::uint64_t> held(1, 1);
  while (!way.empty()) {
    Place& place = way.back();
    const std::vector<Value>& inside = content(object(Value::at(Value::Tag::Object, place.object)));
    if (place.next == inside.size()) {
      sizes[place.object] = held.back();
      const std::uint64_t size = held.back();
      way.pop_back();
      held.pop_back();
      if (!held.empty()) held.back() += size;
    } else {
      const Value value = inside[place.next++];
      if (value.tag() != Value::Tag::Object) {
        ++held.back();
      } else if (sizes[value.index()] == kUnderWay) {
        return too_much("one of its values holds itself");
      } else if (sizes[value.index()] != 0) {
        held.back() += sizes[value.index()];
      } else if (way.size() >= kDeepest) {
        return too_much("its values are nested too deep");
      } else {
        enter(value);
        held.push_back(1);
      }
    }
    if (!held.empty() && held.back() > kMostValues) return too_much("its values hold each other too many times");
  }
}

bool PickleMachine::number(Value value, std::int64_t& out) const {
  if (value.tag() == Value::Tag::Integer) {
    out = value.integer();
    return true;
  }
  if (value.tag() == Value::Tag::Wide) {
    out = static_cast<std::int64_t>(cell(wide_, value.index()));
    return true;
  }
  double fraction = 0;
  if (!floating(value, fraction) || !(std::abs(fraction) < 9.2e18)) return false;
  out = std::llround(fraction);
  return true;
}

bool PickleMachine::floating(Value value, double& out) const {
  if (value.tag() != Value::Tag::Float) return false;
  const std::uint64_t bits = cell(wide_, value.index());
  std::memcpy(&out, &bits, sizeof out);
  return true;
}

}  // namespace whystall
