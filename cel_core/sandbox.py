"""Run one untrusted Python program with its asserts, and say whether it passed.

The decision is that of code_eval in Hugging Face evaluate, which lm-evaluation-harness uses for MBPP: the program and
its tests are one text, given to `exec` with empty globals, which has to run to its end without an exception within 3 s.

1. `run_program` starts a fresh interpreter (no site, own session, minimal environment) in an empty temporary folder.
   This *supervisor* runs the functions under "Child side": it forks the program, adopts the orphans the program makes
   (Linux), watches time, output, report and its own parent, then kills the program with all its descendants.
2. The program runs under resource limits and an audit hook, which cannot be removed. The hook refuses processes,
   signals, sockets, ctypes, writing outside the folder (the home folder's included), tracing, and modules other than
   the standard library and NumPy.
3. To pass, the program's process must send a secret after `exec` returned. It reads the secret right before, and until
   then holds it on the interpreter's stack alone: no name, no frame variable. No exit, print or patched builtin passes.
4. Time is wall time from the program's first line, less (Linux) the time it stood ready but waited for a busy core, so
   that load changes no outcome; four times the limit ends it in any case.

Not covered: an attacker who gets past the hook (hand-made bytecode, the hook's own frame in a traceback from Python
3.13 on, a memory error in CPython or NumPy); reading the user's files, though nothing read can leave; memory on macOS,
which ignores RLIMIT_AS; Windows. Unlike code_eval: no third-party module but NumPy, no tracing, no SQLite, and limits
on memory, threads and output that no MBPP solution comes near.
"""

import contextlib
import importlib.util
import inspect
import os
import resource
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple


class Verdict(NamedTuple):
    """What became of one program."""

    passed: bool
    reason: str  # "" when passed; otherwise one short line, such as "AssertionError: assert f(1) == 2"


@dataclass(frozen=True)
class Limits:
    """What one program may use."""

    wall_s: float = 3.0  # code_eval's; waiting for a busy core is not counted
    cpu_s: int = 4  # RLIMIT_CPU, the kernel's own backstop
    memory_bytes: int = 2**30  # RLIMIT_AS: address space
    n_processes: int = 32  # RLIMIT_NPROC: threads and processes beyond those alive; not enforced for root
    file_bytes: int = 2**20  # RLIMIT_FSIZE: each of at most 100 files
    output_bytes: int = 2**24  # standard output and standard error together


DEFAULT_LIMITS = Limits()


def run_program(program: str, tests: Sequence[str], limits: Limits = DEFAULT_LIMITS) -> Verdict:
    """Run the program followed by its tests, in a process of its own that is gone, with its files, on return.

    Raises:
        RuntimeError: the sandbox itself could not start on this machine; the program is not to blame.
    """
    text = "\n".join([program, *tests]).encode("utf-8", "surrogatepass")
    numpy = importlib.util.find_spec("numpy")
    folders = [os.path.dirname(os.path.dirname(numpy.origin))] if numpy and numpy.origin else []
    call = f"_supervise(type(sys.implementation)(**{asdict(limits)!r}), {os.getpid()}, {folders!r})"
    command = [sys.executable, "-I", "-S", "-B", "-X", "utf8", "-c", f"{_CHILD_SIDE}\n{call}"]
    kept = {name: os.environ[name] for name in ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH") if name in os.environ}
    with tempfile.TemporaryDirectory(prefix="cel-sandbox-", ignore_cleanup_errors=True) as folder:
        home = os.path.realpath(folder)  # not writable to the program, which only its working folder is
        work = os.path.join(home, "work")
        os.mkdir(work)
        env = {"HOME": home, "TMPDIR": work, "PATH": "/usr/bin:/bin", "OPENBLAS_NUM_THREADS": "1", **kept}
        pipe = subprocess.PIPE
        with subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=pipe, cwd=work, env=env, start_new_session=True
        ) as process:
            try:
                answer, errors = process.communicate(text, timeout=4 * limits.wall_s + 30)
            except subprocess.TimeoutExpired:
                answer, errors = b"ready", b""
            finally:
                with contextlib.suppress(ProcessLookupError, PermissionError):  # nobody left: the ordinary case
                    os.killpg(process.pid, _SIGKILL)
    if not answer.startswith(b"ready"):
        why = errors.decode(errors="replace").strip().rpartition("\n")[2]
        raise RuntimeError(f"the sandbox could not start {sys.executable}: {why or 'no answer'}")
    outcome = answer.removeprefix(b"ready").decode("utf-8", "replace") or "-the sandbox was killed"
    return Verdict(outcome == "+", outcome[1:])


def run_programs(jobs: Iterable[tuple[str, Sequence[str]]], n_workers: int, limits: Limits = DEFAULT_LIMITS) -> list[Verdict]:
    """Run (program, tests) pairs, `n_workers` at a time; verdicts in the order of the jobs."""
    with ThreadPoolExecutor(n_workers, thread_name_prefix="sandbox") as pool:
        return list(pool.map(lambda job: run_program(job[0], job[1], limits), jobs))


# Child side: the source of these functions is all that runs in the sandbox's interpreter, with few imports, for speed.
# This module must not import from __future__, since exec would hand that on to the program.
_SIGKILL = 9  # importing signal takes 5 ms


def _supervise(limits: Limits, parent: int, folders: list[str]) -> None:
    """Fork the program, watch it, end it with all its descendants, and answer on standard output."""
    source = sys.stdin.buffer.read().decode("utf-8", "surrogatepass")
    (output, output_w), (report, report_w), (secret_r, secret_w) = os.pipe(), os.pipe(), os.pipe()
    program = os.fork()
    if program == 0:
        for fd in (output, report, secret_w):
            os.close(fd)
        _execute(source, limits, folders, output_w, report_w, secret_r)
    for fd in (output_w, report_w, secret_r):
        os.close(fd)
    outcome, secret = b"", os.urandom(16).hex().encode()
    try:
        import ctypes  # noqa: PLC0415 - after the fork: the program shall not find it imported

        if sys.platform == "linux":  # PR_SET_CHILD_SUBREAPER: orphans become our children, whatever their session
            ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
        if os.read(report, 1) == b".":  # otherwise the preparations failed, and standard error tells why
            os.write(1, b"ready")
            os.write(secret_w, b">" + secret)  # the program starts now
            outcome = _watch(program, output, report, secret, limits, parent)
    finally:
        status = _end_everything(program)
    crash = b" (signal %d)" % -status if status < 0 and status != -_SIGKILL else b""
    os.write(1, outcome or b"-exited before its tests finished" + crash)
    os._exit(0)


def _watch(program: int, output: int, report: int, secret: bytes, limits: Limits, parent: int) -> bytes:
    """The outcome, "+" or "-" and the reason; empty where the program ended without a report."""
    start, n_output_bytes, reported, sources = time.monotonic(), 0, b"", [output, report]
    while os.getppid() == parent:
        used_s = time.monotonic() - start
        if used_s >= limits.wall_s and os.path.exists(f"/proc/{program}/schedstat") and used_s < 4 * limits.wall_s:
            with open(f"/proc/{program}/schedstat") as file:  # ns on a core, ns ready but waiting for one, ...
                used_s -= int(file.read().split()[1]) / 1e9
        if used_s >= limits.wall_s:
            return b"-timed out after %g s" % limits.wall_s
        ready, _, _ = select.select(sources, [], [], min(limits.wall_s - used_s, 0.5))
        if report in ready:
            chunk = os.read(report, 4096)
            reported += chunk
            if reported == secret:
                return b"+"
            if not chunk or reported.endswith(b"\n") or len(reported) > 4096:
                return reported[:400].strip() if reported.startswith(b"-") else b""
        if output in ready:
            chunk = os.read(output, 65536)
            n_output_bytes += len(chunk)
            if n_output_bytes > limits.output_bytes:
                return b"-wrote more than %d bytes of output" % limits.output_bytes
            if not chunk:
                sources.remove(output)
    return b"-interrupted"


def _end_everything(program: int) -> int:
    """Kill the program, then all adopted descendants until none is left; the program's exit code."""
    os.kill(program, _SIGKILL)
    exit_code = os.waitstatus_to_exitcode(os.waitpid(program, 0)[1])
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG)[0]:
                continue
        except ChildProcessError:
            return exit_code
        for process in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{process}/stat") as file:
                    if int(file.read().rpartition(")")[2].split()[1]) == os.getpid():
                        os.kill(int(process), _SIGKILL)
            except OSError:
                pass  # gone meanwhile
        time.sleep(0.001)


def _execute(source: str, limits: Limits, folders: list[str], output: int, report: int, secret: int) -> None:
    """The program's process: shut everything, run the text, report, never return."""
    sys.path.extend(folders)
    sys.argv = [""]
    nothing = os.open(os.devnull, os.O_RDONLY)
    _set_limits(limits)
    _refuse_harm(os.getcwd())
    for fd, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(fd, target)
    read, write, leave = os.read, os.write, os._exit
    write(report, b".")
    if read(secret, 1) != b">":
        leave(1)  # the supervisor is gone
    try:
        # Left to right: the functions and the secret lie on the stack before the program's first line runs.
        write(report, read(secret, 32) + (exec(source, {}) or b""))
    except BaseException as error:
        write(report, _reason(error, source))
    leave(0)


def _set_limits(limits: Limits) -> None:
    """Lower this process's resource limits, as far as the system knows them."""
    wanted = {
        resource.RLIMIT_AS: limits.memory_bytes,
        resource.RLIMIT_CPU: limits.cpu_s,
        resource.RLIMIT_FSIZE: limits.file_bytes,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_NOFILE: 64,
    }
    if os.path.exists("/proc/loadavg"):  # its fourth field: running/all threads of the machine
        with open("/proc/loadavg") as file:
            wanted[resource.RLIMIT_NPROC] = limits.n_processes + int(file.read().split()[3].partition("/")[2])
    for which, value in wanted.items():
        try:
            resource.setrlimit(which, (value, value))
        except (ValueError, OSError):
            pass  # a stricter one holds already, or macOS refuses


def _refuse_harm(work: str) -> None:
    """Install the audit hook. It looks up nothing that the program could replace, and keeps nothing it could change."""
    sys.modules["_posixsubprocess"] = type(sys)("_posixsubprocess")  # importing subprocess works, using it does not
    setattr(sys.modules["_posixsubprocess"], "fork_exec", None)  # noqa: B010
    for name in "mkfifo mknod chroot pidfd_open setns unshare setpriority sched_setaffinity sched_setparam".split():
        for module in (os, sys.modules["posix"]):  # no audit event tells of these
            if hasattr(module, name):
                delattr(module, name)
    barred = frozenset(
        "_ctypes _posixsubprocess _posixshmem _multiprocessing _sqlite3 _dbm _gdbm _ssl _tkinter readline nis "
        "_xxsubinterpreters _interpreters _testcapi _testinternalcapi".split()
    )
    families = frozenset("os socket subprocess ctypes fcntl resource pty syslog gc".split())
    harmless = frozenset("os.listdir os.scandir os.walk os.fwalk os.putenv os.unsetenv".split())
    events = frozenset("sys.settrace sys.setprofile sys.monitoring.register_callback sys._current_frames".split())
    memory, in_folder = frozenset(("mem", "kmem", "kcore")), frozenset(("os.mkdir", "os.remove", "os.rmdir"))
    writing = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
    known, kind, text, raw, number = sys.stdlib_module_names | {"numpy"}, type, str, bytes, int
    denied, missing, n_writes = PermissionError, ModuleNotFoundError, 0

    def hook(event: str, args: tuple[Any, ...]) -> None:
        nonlocal n_writes
        if event == "import":
            name = args[0]
            if kind(name) is not text or name.partition(".")[0] not in known or name.rpartition(".")[2] in barred:
                raise missing(f"No module named '{name}' in the sandbox")
        elif event == "open" or (event in in_folder and args[-1] == -1):  # -1: not relative to an open folder
            path = args[0].decode("utf-8", "surrogateescape") if kind(args[0]) is raw else args[0]
            if kind(path) is number:
                return  # open already
            if kind(path) is not text or path.rpartition("/")[2] in memory:
                raise denied("the sandbox refuses to open this file")
            if event == "open" and (path == "/dev/null" or not args[2] & writing):
                return
            n_writes += 1
            relative = not path.startswith("/") and args[1] is not None  # os.open (None): relative to any folder
            if not (relative or f"{path}/".startswith(f"{work}/")) or ".." in path.split("/") or n_writes > 100:
                raise denied(f"the sandbox refuses to write {path}")
        elif event == "socket.__new__" and args[1] == 1:
            return  # AF_UNIX: asyncio's own pair; connecting and binding are refused
        elif event in events or (event.partition(".")[0] in families and event not in harmless):
            raise denied(f"the sandbox refuses {event}")

    sys.addaudithook(hook)


def _reason(error: BaseException, source: str) -> bytes:
    """One line on why the text did not run to its end; a bare assert is shown by its line."""
    try:
        if isinstance(error, MemoryError):
            return b"-memory limit reached\n"
        if isinstance(error, SystemExit):
            return b"-exited before its tests finished\n"
        detail, trace = str(error), error.__traceback__
        while not detail and isinstance(error, AssertionError) and trace and (trace := trace.tb_next):
            if trace.tb_next is None:
                detail = source.splitlines()[trace.tb_lineno - 1]
        line = " ".join(f"{type(error).__name__}: {detail}".removesuffix(": ").split())
        return f"-{line[:200]}\n".encode("utf-8", "backslashreplace")
    except BaseException:
        return b"-failed with an exception that cannot be shown\n"


_CHILD_SIDE = "\n".join(
    [
        f"import os, resource, select, sys, time\n_SIGKILL = {_SIGKILL}\nAny = Limits = object",
        *map(inspect.getsource, (_supervise, _watch, _end_everything, _execute, _set_limits, _refuse_harm, _reason)),
    ]
)
