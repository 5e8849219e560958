// Reads pickles of plain values as they stream in, and runs nothing.
//
// A pickle is a program for a stack machine. This machine knows the instructions that build dicts, lists, tuples, text,
// numbers, booleans and None; at any other it stops. It keeps no tree: whoever derives from it is shown each dict when it
// is put into a list, and may fold it into a number of its own, after which the dict's content is let go.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "memory.hpp"
#include "strings.hpp"

namespace whystall {

// A value in 64 bits: what it is in the lowest three, the rest says which.
class Value {
 public:
  enum class Tag : std::uint8_t { Plain, Integer, Wide, Float, Text, Object, Folded, Mark };
  enum class Plain : std::uint8_t { None, False, True };

  constexpr Value() = default;
  static Value plain(Plain value) { return Value(Tag::Plain, static_cast<std::uint64_t>(value)); }
  static Value mark() { return Value(Tag::Mark, 0); }
  static Value integer(std::int64_t value) { return Value(Tag::Integer, static_cast<std::uint64_t>(value)); }
  static Value at(Tag tag, std::uint64_t index) { return Value(tag, index); }
  static bool fits(std::int64_t value) { return value >= -kMost && value < kMost; }

  Tag tag() const { return static_cast<Tag>(bits_ & 7); }
  std::uint64_t index() const { return bits_ >> 3; }
  std::int64_t integer() const { return static_cast<std::int64_t>(bits_) >> 3; }
  bool is_object() const { return tag() == Tag::Object || tag() == Tag::Folded; }
  bool is(Plain value) const { return tag() == Tag::Plain && index() == static_cast<std::uint64_t>(value); }
  bool is_text(std::uint32_t id) const { return tag() == Tag::Text && index() == id; }
  std::uint64_t bits() const { return bits_; }
  static Value from_bits(std::uint64_t bits) { return Value(bits); }

 private:
  static constexpr std::int64_t kMost = std::int64_t{1} << 60;
  explicit constexpr Value(std::uint64_t bits) : bits_(bits) {}
  Value(Tag tag, std::uint64_t payload) : bits_(payload << 3 | static_cast<std::uint64_t>(tag)) {}
  std::uint64_t bits_ = 0;
};

// Why reading stopped: a sentence's part, the instruction where it is one that is refused, and the place in the file.
struct PickleFailure {
  enum class Kind : std::uint8_t { None, Refused, Damaged, TooMuch, Cut };
  Kind kind = Kind::None;
  std::string what;
  unsigned instruction = 0;
  std::uint64_t place = 0;
};

class PickleMachine {
 public:
  PickleMachine() = default;
  virtual ~PickleMachine() = default;
  PickleMachine(const PickleMachine&) = delete;
  PickleMachine& operator=(const PickleMachine&) = delete;

  // Room for `size` bytes, to be filled and then accepted.
  char* space(std::size_t size);
  void accept(std::size_t size);
  void feed(const char* data, std::size_t size);
  // Says that nothing follows. What was begun when a file was cut off is closed as far as it goes.
  void finish();

  bool done() const { return stage_ == Stage::End; }
  const PickleFailure& failure() const { return failure_; }
  Value result() const { return result_; }
  std::uint64_t bytes() const { return consumed_; }
  const StringPool& texts() const { return texts_; }

  enum class Shape : std::uint8_t { List, Dict, Tuple, Folded };
  struct Object {
    Shape shape = Shape::List;
    std::uint8_t kind = 0;        // of a folded one: whatever the folder says
    std::uint32_t content = 0;    // of the others: which of `contents_`; kEmpty while it has none
  };
  static constexpr std::uint32_t kEmpty = 0xffffffff;

  Object object(Value value) const;
  const std::vector<Value>& content(const Object& object) const;
  // The number that a value is, rounded where it is a fraction. False where it is none, or fits no 64 bits.
  bool number(Value value, std::int64_t& out) const;
  bool floating(Value value, double& out) const;

 protected:
  std::size_t objects() const { return objects_.size(); }
  // Makes a number of a dict that is put into a list, or leaves it as it is.
  virtual void fold(Value dict) = 0;

  std::uint32_t text_id(std::string_view text) { return texts_.intern(text, false); }
  // Lets the content of a list or dict go; the value is a number of the folder's from now on.
  void replace(Value value, std::uint8_t kind, std::uint32_t number);
  void too_much(const char* what);

 private:
  enum class Stage : std::uint8_t { Start, Running, End, Failed };
  enum class Step : std::uint8_t { Done, More, Stop };

  void run();
  Step step();
  Step counted(unsigned width, bool is_text);
  Step constant(unsigned char code);
  Step container(unsigned char code);
  Step memory(unsigned char code);
  Step fail(PickleFailure::Kind kind, std::string what, unsigned instruction = 0);
  Step damaged(const char* what) { return fail(PickleFailure::Kind::Damaged, what); }
  Step closed(const char* what);
  Step first_items(std::size_t count);
  bool push(Value value);
  bool whole(std::size_t size) const { return static_cast<std::size_t>(end_ - at_) >= size; }
  Value wide(Value::Tag tag, std::uint64_t bits);
  Value make(Shape shape);
  std::vector<Value>* open(Value value, Shape shape);
  Step append(Value list, const Value* first, std::size_t count);
  Step set_items(Value dict, const Value* first, std::size_t count);
  Step tuple(std::size_t first);
  bool last_mark(std::size_t& place);
  void close_what_is_open();
  void settle(Value value);

  Stage stage_ = Stage::Start;
  PickleFailure failure_;
  Value result_;

  std::vector<char> buffer_;
  std::size_t filled_ = 0;
  const unsigned char* at_ = nullptr;
  const unsigned char* end_ = nullptr;
  std::uint64_t consumed_ = 0;  // bytes before `at_`'s instruction
  bool last_ = false;

  std::vector<Value> stack_;
  std::vector<std::uint32_t> marks_;
  void release(std::size_t dict);
  Value memo(std::size_t index) const;
  void set_memo(std::size_t index, Value value);

  Cells memo_{4};                      // values in 32 bits, by the order in which they were put
  std::vector<Value> kept_;            // those of the memo that fit no 32 bits
  std::vector<std::uint32_t> unfolded_;  // where in the memo lists and dicts stand, the newest last
  Cells objects_{8};                   // packed objects
  std::uint64_t fetched_ = 0;          // one more than the newest list or dict that was named a second time
  std::uint64_t last_kept_ = 0;        // the newest list or dict in the memo
  bool in_order_ = true;               // whether they came there in the order in which they were made
  Cells wide_{8};      // numbers that fit no value
  std::vector<std::vector<Value>> contents_;
  std::vector<std::uint32_t> spare_;  // contents that nobody has
  std::uint64_t held_ = 0;            // values in contents
  StringPool texts_;
};

// A pickle that another is to read: whether that costs what its size says. Nothing in it is folded.
class PlainPickle final : public PickleMachine {
 public:
  // Says that nothing follows, and looks at what was built: a list may stand in another twice, and that in a third.
  void end();

 protected:
  void fold(Value) override {}

 private:
  static constexpr std::size_t kDeepest = 100;
  static constexpr std::uint64_t kMostValues = 256 << 20;  // counted as often as they are reached
};

}  // namespace whystall
