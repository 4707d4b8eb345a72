"""Handing a kernel to waiting threads without the interpreter lock.

A mailbox is an array of words: turns posted, turns finished, kernel, operands, part, parts.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import numba  # type: ignore[import-untyped]

from .compiler import Entry
from .intrinsics import breathe, invoke, load_word, store_word

POSTED, FINISHED, KERNEL, OPERANDS, PART, PARTS = range(6)
BOX = 16  # words: two cache lines, so that two boxes never share one


def _serve(box, patience):
    """Runs what is posted until nothing came for `patience` looks."""
    base = box.ctypes.data
    while True:
        turn, looks = box[FINISHED] + 1, 0
        while load_word(base) < turn:
            looks += 1
            if looks > patience:
                return
            breathe()
        invoke(box[KERNEL], box[OPERANDS], box[PART], box[PARTS])
        store_word(base + 8 * FINISHED, turn)


def _finished(boxes, patience):
    """Whether all boxes are worked off within `patience` looks."""
    for i in range(boxes.shape[0]):
        base, looks = boxes[i].ctypes.data, 0
        while load_word(base + 8 * FINISHED) < boxes[i, POSTED]:
            looks += 1
            if looks > patience:
                return False
            breathe()
    return True


def _launch(kernel, operands, boxes, patience):
    """Posts shares 1, 2, ..., runs share 0 and waits: False where a worker is late."""
    parts, words = boxes.shape[0] + 1, operands.ctypes.data
    for i in range(parts - 1):
        boxes[i, KERNEL], boxes[i, OPERANDS], boxes[i, PART], boxes[i, PARTS] = kernel, words, i + 1, parts
        store_word(boxes[i].ctypes.data, boxes[i, POSTED] + 1)
    invoke(kernel, words, 0, parts)
    return finished(boxes, patience)


def _alone(kernel, operands, parts):
    """All shares on this thread."""
    for part in range(parts):
        invoke(kernel, operands.ctypes.data, part, parts)


serve = Entry(_serve, "void(i8[::1], i8)")
finished = numba.njit(nogil=True)(_finished)
wait = Entry(_finished, "b1(i8[:,::1], i8)")
launch = Entry(_launch, "b1(i8, i8[::1], i8[:,::1], i8)")
alone = Entry(_alone, "void(i8, i8[::1], i8)")
