"""The compiled kernels among threads, processes, interpreters and signals, at every level, and with hostile arrays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import evicp
from evicp.errors import LogitsError

native = pytest.importorskip("evicp.kernels._native")
HERE = str(Path(__file__).parent)

SCORES = [evicp.ECP(), evicp.LAC(), evicp.APS(), evicp.RAPS(seed=3), evicp.Margin(), evicp.ECP(stabilizer=0)]
SCORES += [evicp.ECP(evidence="softplus"), evicp.ECP(evidence="exp"), evicp.SAPS(), evicp.TopK(randomized=True)]


def results(logits: np.ndarray, labels: np.ndarray) -> bytes:
    """Much of what the backend computes of these rows, as bytes."""
    n_classes = logits.shape[1]
    rates = tuple(np.full(n_classes, 1 / n_classes) * np.repeat([0.5, 1.5], (n_classes + 1) // 2)[:n_classes])
    uneven = evicp.ECP(base_rates=rates) if n_classes % 2 == 0 else evicp.ECP()
    parts = [native.label_scores(score, logits, labels) for score in SCORES]
    for score in (*SCORES, uneven):
        threshold = np.quantile(native.label_scores(score, logits, labels), 0.3)
        parts += [*native.ragged_sets(score, logits, threshold)]
        parts += [*native.ragged_labels(score, logits, threshold + np.linspace(0, 1, n_classes)[None])]
    parts += [native.dense_scores(evicp.RAPS(), logits), native.top_labels(None, logits)]
    parts += [native.label_ranks(logits, labels), native.uncertainties(evicp.ECP(), logits)]
    parts += [native._likelihoods(logits, labels, 0.7)]
    return b"".join(part.tobytes() for part in parts)


def rows(n: int, n_classes: int, dtype: type = np.float32) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng([n, n_classes])
    logits = (rng.normal(size=(n, n_classes)) * 3).astype(dtype)
    logits[::7, 1::3] = -np.inf
    return logits, rng.integers(0, n_classes, n)


def run_script(script: str, timeout: int = 120, **variables: str) -> str:
    environment = {**os.environ, **variables}
    result = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=timeout, check=False
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


# ---------------------------------------------------------------------------------------------------------------
# Levels

DIGEST = """
import hashlib, sys
sys.path.insert(0, {folder!r})
import numpy as np
from test_native_processes import native, results, rows
digest = hashlib.sha256()
for n_classes in (2, 10, 17, 100, 257, 1003):
    for dtype in (np.float16, np.float32, np.float64):
        digest.update(results(*rows(60, n_classes, dtype)))
print(native.level(), digest.hexdigest())
"""


def test_every_level_gives_the_same_bits():
    script = DIGEST.format(folder=HERE)
    found = [run_script(script, EVICP_LEVEL=level).split() for level in native.levels()]
    assert [level for level, _ in found] == native.levels()
    assert len({digest for _, digest in found}) == 1


def test_a_level_that_is_not_there_is_refused():
    script = "import evicp.kernels._core"
    result = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "EVICP_LEVEL": "v9"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 1
    assert "EVICP_LEVEL must be a level that this processor has; got v9" in result.stderr


# ---------------------------------------------------------------------------------------------------------------
# Threads and processes


@pytest.mark.parametrize("n_classes", [100, 300])
def test_threads_change_nothing(monkeypatch, n_classes):
    logits, labels = rows(400_000 // n_classes, n_classes)
    found = set()
    for threads in ("1", "2", "5"):
        monkeypatch.setenv("EVICP_THREADS", threads)
        found.add(results(logits, labels))
    assert len(found) == 1


def test_sixteen_threads_at_once(monkeypatch):
    monkeypatch.setenv("EVICP_THREADS", "2")
    logits, labels = rows(3000, 100)
    want = results(logits, labels)
    with ThreadPoolExecutor(16) as pool:
        assert set(pool.map(lambda _: results(logits, labels), range(32))) == {want}


def test_no_thread_is_left_running(monkeypatch):
    tasks = Path(f"/proc/{os.getpid()}/task")
    if not tasks.is_dir():
        pytest.skip("threads cannot be counted here")
    monkeypatch.setenv("EVICP_THREADS", "4")
    logits = np.zeros((10_000, 100), np.float32)
    before = len(list(tasks.iterdir()))
    native.top_labels(None, logits)
    assert len(list(tasks.iterdir())) <= before


def test_the_first_of_several_bad_rows_is_named_by_any_number_of_threads(monkeypatch):
    logits, labels = rows(8000, 100)
    logits[[1234, 5000, 7999], 5] = np.nan
    for threads in ("1", "2", "7"):
        monkeypatch.setenv("EVICP_THREADS", threads)
        for call in (
            lambda: native.label_scores(evicp.ECP(), logits, labels),
            lambda: native.ragged_sets(evicp.LAC(), logits, 3.0),
        ):
            with pytest.raises(LogitsError, match=r"NaN at row 1234, class 5"):
                call()


PREPARE = """
import os, sys, threading, time
import numpy as np
from evicp import ECP
from evicp.kernels import _native as native
logits = np.random.default_rng(0).normal(size=(6000, 100)).astype(np.float32)
want = native.ragged_labels(ECP(), logits, -4.0)
def right():
    found = native.ragged_labels(ECP(), logits, -4.0)
    return all(np.array_equal(a, b) for a, b in zip(found, want))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
def test_a_child_forked_while_other_threads_are_inside_works():
    script = """
stop = []
def work():
    while not stop:
        right()
threads = [threading.Thread(target=work) for _ in range(3)]
[thread.start() for thread in threads]
codes = []
for _ in range(10):
    child = os.fork()
    if child == 0:
        os._exit(0 if right() else 1)
    codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    time.sleep(0.003)
stop.append(1)
[thread.join() for thread in threads]
print(codes, right())
"""
    assert run_script(PREPARE + script, EVICP_THREADS="2") == f"{[0] * 10} True"


def test_spawned_processes_work():
    script = f"""
import multiprocessing, sys
sys.path.insert(0, {HERE!r})
if __name__ == "__main__":
    from test_native_processes import results, rows
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        print(len(set(pool.starmap(results, [rows(300, 20)] * 4))))
"""
    assert run_script(script, PYTHONPATH=os.pathsep.join([HERE, os.environ.get("PYTHONPATH", "")])) == "1"


def test_threads_that_outlive_the_main_one_and_what_runs_at_exit():
    script = """
import atexit
def late():
    print(right())
def served():
    threading.main_thread().join()
    late()
atexit.register(late)
threading.Thread(target=served).start()
"""
    assert run_script(PREPARE + script, EVICP_THREADS="2").split() == ["True", "True"]


def test_a_daemon_thread_inside_does_not_harm_the_end_of_the_interpreter():
    script = """
def work():
    while True:
        right()
for _ in range(3):
    threading.Thread(target=work, daemon=True).start()
time.sleep(0.05)
print("ended")
"""
    for _ in range(3):
        assert run_script(PREPARE + script, EVICP_THREADS="2") == "ended"


#: The module by itself, with arrays of the standard library: NumPy refuses interpreters beside the main one.
ALONE = """
import array, struct, sys, importlib.util
spec = importlib.util.spec_from_file_location("evicp.kernels._core", PATH)
core = importlib.util.module_from_spec(spec)
spec.loader.exec_module(core)
score = struct.pack("@iiiidddddQ", 1, 0, 0, 0, 1.0, 0.0, -1e300, 0.0, 0.0, 0)
rows = memoryview(array.array("f", [float(k % 7) for k in range(40)])).cast("B").cast("f", [2, 20])
out = array.array("d", [0.0, 0.0])
bad = core.label_scores(score, rows, 1, None, None, array.array("q", [6, 0]), out)
ends = array.array("q", [0, 0, 0])
found = core.sets(score, rows, 1, None, None, 2.0, False, True, ends)
del core
"""


def test_subinterpreters_have_modules_of_their_own():
    """And each ends while others go on."""
    code = (
        ALONE.replace("PATH", repr(native._core.__file__))
        + "assert bad == -1 and ends[2] > ends[1] > ends[0] == 0, ends"
    )
    script = f"""
import threading
try:
    import _xxsubinterpreters as interpreters
except ImportError:
    import _interpreters as interpreters
code = {code!r}
exec(code)
def one():
    for _ in range(5):
        interpreter = interpreters.create()
        error = interpreters.run_string(interpreter, code)
        assert error is None, error
        interpreters.destroy(interpreter)
threads = [threading.Thread(target=one) for _ in range(3)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
exec(code)
print("done")
"""
    assert run_script(script) == "done"


# ---------------------------------------------------------------------------------------------------------------
# Signals and memory


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers on this platform")
@pytest.mark.parametrize("threads", ["1", "3"])
def test_a_long_call_answers_an_interrupt(monkeypatch, threads):
    class Interrupted(Exception):
        pass

    def raising(*_):
        raise Interrupted

    monkeypatch.setenv("EVICP_THREADS", threads)
    logits = np.random.default_rng(0).normal(size=(4000, 4000)).astype(np.float32)
    before = signal.signal(signal.SIGALRM, raising)
    waits = []
    try:
        for _ in range(3):
            begin = time.perf_counter()
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            with pytest.raises(Interrupted):
                native.ragged_sets(evicp.APS(), logits, np.inf)  # seconds
            waits.append(time.perf_counter() - begin - 0.05)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert min(waits) < 0.1


def test_a_handler_may_score_while_a_call_is_at_hand(monkeypatch):
    """It runs between two blocks of rows, in the same thread."""
    if not hasattr(signal, "setitimer"):
        pytest.skip("no timers on this platform")
    logits = np.random.default_rng(0).normal(size=(1500, 2000)).astype(np.float32)
    want, row = native.dense_scores(evicp.APS(), logits), native.dense_scores(evicp.ECP(), logits[:1])
    found = []
    before = signal.signal(signal.SIGALRM, lambda *_: found.append(native.dense_scores(evicp.ECP(), logits[:1])))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.03, 0.03)
        for _ in range(100):  # a fast machine may be done before the timer
            again = native.dense_scores(evicp.APS(), logits)
            if found:
                break
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    np.testing.assert_array_equal(again, want)
    assert found
    assert all(np.array_equal(one, row) for one in found)


def test_the_gil_is_released():
    """Another thread counts on while a long call runs."""
    logits = np.random.default_rng(0).normal(size=(1000, 3000)).astype(np.float32)
    counts, stop = [0], threading.Event()

    def count():
        while not stop.is_set():
            counts[0] += 1

    thread = threading.Thread(target=count)
    thread.start()
    try:
        begin = counts[0]
        native.dense_scores(evicp.APS(), logits)
        during = counts[0] - begin
    finally:
        stop.set()
        thread.join()
    assert during > 1000


def test_too_little_memory_raises_memory_error():
    pytest.importorskip("resource")
    script = """
import resource
import numpy as np
from evicp import LAC, TopK
from evicp.kernels import _native as native
logits = np.zeros((1000, 20_000), np.float32)
native.ragged_labels(LAC(), logits[:2], np.inf)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 30_000_000,) * 2)
for call in (lambda: native.ragged_labels(LAC(), logits, np.inf), lambda: native.ragged_sets(LAC(), logits, np.inf)):
    try:
        call()
    except MemoryError:
        print("refused")
print(len(native.ragged_labels(LAC(), logits[:2], np.inf)[1]))
"""
    assert run_script(script, EVICP_THREADS="1").split() == ["refused", "refused", "40000"]


def test_a_result_holds_its_own_memory_only():
    logits = np.random.default_rng(0).normal(size=(900, 400)).astype(np.float32)
    _, labels, scores = native.ragged_sets(evicp.APS(), logits, 0.9)
    for result in (labels, scores):
        assert result.flags.writeable
        assert memoryview(result.base).nbytes == result.nbytes


# ---------------------------------------------------------------------------------------------------------------
# Hostile arrays


@pytest.mark.parametrize("n_classes", [5, 40, 300])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_rows_may_lie_anywhere(n_classes, dtype):
    logits, labels = rows(30, n_classes, dtype)
    want = results(logits, labels)
    raw = np.zeros(logits.nbytes + 1, np.uint8)
    misaligned = raw[1:].view(dtype).reshape(logits.shape)
    misaligned[:] = logits
    apart = np.zeros((90, n_classes + 3), dtype)
    apart[::3, 1:-2] = logits
    odd = np.zeros((30, n_classes * logits.itemsize + 1), np.uint8)
    odd_stride = np.ndarray(logits.shape, dtype, odd, strides=(odd.shape[1], logits.itemsize))
    odd_stride[:] = logits
    frozen = logits.copy()
    frozen.flags.writeable = False
    for array in (
        misaligned,
        apart[::3, 1:-2],
        odd_stride,
        frozen,
        np.asfortranarray(logits),
        logits[::-1].copy()[::-1],
        np.repeat(logits, 2, 1)[:, ::2],
    ):
        assert results(array, labels) == want


def test_rows_may_overlap_or_be_one_row():
    row = np.random.default_rng(0).normal(size=2000).astype(np.float32)
    same = np.broadcast_to(row[:100], (50, 100))
    windows = np.lib.stride_tricks.sliding_window_view(row, 100)
    for array in (same, windows):
        labels = np.zeros(len(array), np.int64)
        assert results(array, labels) == results(array.copy(), labels)


@pytest.mark.filterwarnings("ignore:the true label")
def test_other_byte_orders_are_copied_at_the_door():
    logits, labels = rows(200, 20, np.float64)
    swapped = logits.astype(logits.dtype.newbyteorder())
    ours, theirs = (evicp.calibrate(z, labels, "lac").scores for z in (logits, swapped))
    np.testing.assert_array_equal(ours, theirs)


def test_the_module_refuses_what_it_cannot_read():
    core, packed = native._core, native._pack(evicp.LAC(), 20)
    logits, labels, out = np.zeros((3, 20), np.float32), np.zeros(3, np.int64), np.empty(3)
    good = [packed, logits, 1, None, None, labels, out]
    assert core.label_scores(*good) == -1
    for place, wrong, kind in (
        (0, b"short", ValueError),
        (0, None, TypeError),
        (1, logits.astype(">f4"), ValueError),
        (1, logits[:, ::2], ValueError),
        (1, logits[0], ValueError),
        (1, logits.astype(np.int32), ValueError),
        (3, np.ones(7), ValueError),
        (4, np.ones((2, 20)), ValueError),
        (5, labels[:2], ValueError),
        (5, labels + 20, ValueError),
        (5, labels - 1, ValueError),
        (6, np.empty(2), ValueError),
        (6, bytes(24), (BufferError, ValueError)),
    ):
        with pytest.raises(kind):
            core.label_scores(*good[:place], wrong, *good[place + 1 :])
    with pytest.raises(TypeError, match="takes 7 arguments"):
        core.label_scores(*good[:5])
    with pytest.raises(ValueError, match="thresholds must be"):
        core.sets(packed, logits, 1, None, None, np.zeros(2), False, True, np.zeros(4, np.int64))
    assert core.label_scores(*good) == -1
