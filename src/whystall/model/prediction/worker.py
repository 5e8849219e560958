"""The process in which steps are simulated: a failure in it, even one that ends the interpreter, ends it alone.

It reads requests from standard input and writes outcomes to a file descriptor, both as frames: four bytes of length,
then MessagePack. Output of the user's factory goes to standard error.
"""

from __future__ import annotations

import os
import sys
import traceback
from dataclasses import replace
from typing import BinaryIO

import msgspec

from whystall.errors import WhystallError
from whystall.model.prediction.events import Record
from whystall.model.prediction.frames import Answer, read_frame, write_frame
from whystall.model.prediction.request import Request

_LONGEST = 300
_VALUES_WANTED = ("DynamicOutputShapeException", "DataDependentOutputException")


def main() -> None:
    """Answers requests until there are no more."""
    answers = os.fdopen(int(sys.argv[1]), "wb")
    os.dup2(2, 1)
    sys.path.insert(0, os.getcwd())  # noqa: PTH109 - as `python -m` does for the user's own modules
    serve(sys.stdin.buffer, answers)


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """Answers each request: with an outcome, or with an error."""
    ready = False
    while (frame := read_frame(requests)) is not None:
        request = msgspec.msgpack.decode(frame, type=Request)
        try:
            from whystall.model.prediction.simulate import simulate  # noqa: PLC0415 - torch, only where it is needed

            if not request.on_cpu and not ready:
                from whystall.model.prediction import accelerator  # noqa: PLC0415 - likewise

                accelerator.set_up()
                ready = True
            outcome = simulate(request)
            answer = Answer(outcome=outcome if request.events else replace(outcome, record=Record(())))
        except WhystallError as error:
            answer = Answer(error=str(error), exit_code=error.exit_code)
        except Exception as error:  # noqa: BLE001 - the user's own code, or torch's, failed: that is the answer
            answer = Answer(error=_sentence(error), exit_code=3, trace=traceback.format_exc())
        write_frame(answers, msgspec.msgpack.encode(answer))


def _sentence(error: Exception) -> str:
    first = str(error).partition("\n")[0][:_LONGEST]
    if type(error).__name__ in _VALUES_WANTED:
        return f"it asks for values of activations ({first}), which a step without data does not have"
    return f"{type(error).__name__}: {first}"


if __name__ == "__main__":
    main()
