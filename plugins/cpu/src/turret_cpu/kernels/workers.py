"""Handing a kernel to waiting threads without the interpreter lock.

Shares are taken from a counter, so a thread that has lost its core keeps nobody from working. A box belongs to one
worker: IDLE -> POSTED by the caller, -> CLAIMED and back to IDLE by the worker, or -> IDLE by a caller who found no
share left and takes the offer back. Words of a box: state. Words of a job: next share, shares, kernel, operands.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from .compiler import Entry, inlined
from .intrinsics import breathe, invoke, load_word, store_word, swap_word, take_word

IDLE, POSTED, CLAIMED = range(3)
BOX = 16  # words: two cache lines, so that no two boxes share one
NEXT, SHARES, KERNEL, OPERANDS = range(4)


@inlined
def work_off(job):
    """Runs shares until none is left."""
    base = job.ctypes.data
    while True:
        share = take_word(base)
        if share >= job[SHARES]:
            return
        invoke(job[KERNEL], job[OPERANDS], share, job[SHARES])


@inlined
def all_idle(boxes, patience):
    """Whether every worker let go of the job within `patience` looks."""
    for i in range(boxes.shape[0]):
        state, looks = boxes[i].ctypes.data, 0
        while load_word(state) != IDLE:
            looks += 1
            if looks > patience:
                return False
            breathe()
    return True


def _serve(box, job, patience):
    """Helps with what is posted until nothing came for `patience` looks."""
    state = box.ctypes.data
    while True:
        looks = 0
        while load_word(state) != POSTED:
            looks += 1
            if looks > patience:
                return
            breathe()
        if swap_word(state, POSTED, CLAIMED):
            work_off(job)
            store_word(state, IDLE)


def _launch(kernel, operands, shares, job, boxes, patience):
    """Offers the shares to the workers, takes part, and waits for those who took some: False where one is late."""
    job[NEXT], job[SHARES], job[KERNEL], job[OPERANDS] = 0, shares, kernel, operands.ctypes.data
    for i in range(boxes.shape[0]):
        store_word(boxes[i].ctypes.data, POSTED)
    work_off(job)
    for i in range(boxes.shape[0]):
        swap_word(boxes[i].ctypes.data, POSTED, IDLE)
    return all_idle(boxes, patience)


def _wait(boxes, patience):
    return all_idle(boxes, patience)


def _alone(kernel, operands, shares):
    """All shares on this thread."""
    for share in range(shares):
        invoke(kernel, operands.ctypes.data, share, shares)


serve = Entry(_serve, "void(i8[::1], i8[::1], i8)")
launch = Entry(_launch, "b1(i8, i8[::1], i8, i8[::1], i8[:,::1], i8)")
wait = Entry(_wait, "b1(i8[:,::1], i8)")
alone = Entry(_alone, "void(i8, i8[::1], i8)")
