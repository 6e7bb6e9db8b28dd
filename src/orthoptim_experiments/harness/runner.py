"""Runs an experiment, trial by trial (a method on a seed), into a run file; resumes what was interrupted.

Where several ranks train together, each runs this. The first alone writes records and checkpoints, and decides what
depends on them.
"""

import base64
import math
import signal
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from orthoptim_experiments.harness import methods, ranks, replicas
from orthoptim_experiments.harness.clock import Clock, clock_of
from orthoptim_experiments.harness.environment import environment
from orthoptim_experiments.harness.experiment import Config, Experiment, Outcome, Problem, run_id
from orthoptim_experiments.harness.filenames import file_stem
from orthoptim_experiments.harness.record_reader import load
from orthoptim_experiments.harness.record_writer import DiscardingRunFile, RunFile
from orthoptim_experiments.harness.records import ResultsError, Run, Trial
from orthoptim_experiments.harness.trial_checkpoint import Checkpoint

WARM_UP = 2
"""Untimed steps before a method is first timed: torch chooses kernels and starts threads in them."""

LONGEST_MESSAGE = 2000
"""Characters of an error that are recorded."""


class Watcher:
    """Receives the progress of a run; this one does nothing with it."""

    def begin(self, method: str, seed: int, step: int, budget: int) -> None:
        """A trial begins, or goes on at a step."""

    def progress(self, step: int, values: Mapping[str, float]) -> None:
        """The trial has reached a step; ``values`` are those of its last record."""

    def end(self, method: str, seed: int, outcome: Outcome, step: int, seconds: float, known: bool) -> None:
        """A trial has ended; ``known``: in an earlier run."""


class Interrupted(Exception):  # noqa: N818  (not an error)
    """A signal asked to stop; results and checkpoint are in place.

    Attributes:
        signum: the signal.
    """

    def __init__(self, signum: int) -> None:
        super().__init__(signal.Signals(signum).name)
        self.signum = signum


@dataclass(frozen=True)
class Job:
    """A run: an experiment, its configuration, methods and seeds.

    Attributes:
        experiment: the experiment.
        config: its configuration, see :func:`orthoptim_experiments.harness.experiment.configuration`.
        methods: names, of those the experiment offers.
        seeds: seeds.
        out: the folder of results.
        timeout: training seconds, of the clock that counts, after which a trial is stopped; None: never. A trial that
            was stopped goes on when a longer one is given.
        retry: whether trials that failed are run again.
        checkpoint_every: seconds between checkpoints.
    """

    experiment: Experiment
    config: Config
    methods: Sequence[str]
    seeds: Sequence[int]
    out: Path
    timeout: float | None = None
    retry: bool = False
    checkpoint_every: float = 5.0

    @property
    def path(self) -> Path:
        """The run file."""
        return self.out / f"{file_stem(f'{self.experiment.name}-{run_id(self.config)}')}.jsonl"

    def options(self, method: str) -> dict[str, Any]:
        """The hyperparameters of a method, with those that its name sets."""
        offered = self.experiment.offered(self.config)
        if method in offered:
            return dict(offered[method])
        plain, settings = methods.parse(method)
        return {**offered[plain], **settings}


def run(job: Job, watcher: Watcher | None = None) -> Run:
    """Run all trials that are missing, and return all there are.

    A trial that raises is recorded as failed, and the others go on.

    Raises:
        ResultsError: if results cannot be read or written.
        ValueError: if the experiment lacks what it needs, see :meth:`Experiment.prepare`.
        Interrupted: by SIGINT or SIGTERM, after the step under way; a second signal stops at once.
    """
    watcher = watcher or Watcher()
    torch.set_num_threads(job.config["threads"])
    job.experiment.prepare(job.config)
    header = {
        "id": run_id(job.config),
        "experiment": job.experiment.name,
        "config": job.config,
        "environment": environment(torch.device(job.config["device"])),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    with _open(job.path, header) as file, _signals() as stop:
        warm: set[str] = set()
        for seed in job.seeds:  # seed by seed: a run that is interrupted still compares all methods
            for method in job.methods:
                former = file.run.trial(method, seed)
                if ranks.broadcast_from_first(_is_done(former, job)):
                    _report_known(former, watcher, clock_of(job.config))
                    continue
                if method not in warm:
                    _warm_up(job, method, seed)
                    warm.add(method)
                _Attempt(job, file, watcher, method, seed, former).run(stop)
    complete = load(job.path)
    complete.notice = file.run.notice  # opening the file has put the torn line aside, which the notice reports
    return complete


def _open(path: Path, header: Mapping[str, Any]) -> RunFile | DiscardingRunFile:
    """The file of the run, for the first of the ranks alone; all raise if it cannot be opened."""
    file, refusal = None, None
    if ranks.is_first():
        try:
            file = RunFile(path, header)
        except ResultsError as error:
            refusal = str(error)
    if refusal := ranks.broadcast_from_first(refusal):
        raise ResultsError(refusal)
    return file or DiscardingRunFile(path, header)


def _is_done(trial: Trial | None, job: Job) -> bool:
    if trial is None or trial.status is None:
        return False
    if trial.status == "timeout":
        used = trial.records.get(clock_of(job.config))
        return bool(job.timeout is not None and used and used[-1] >= job.timeout)
    return not (job.retry and trial.status == "failed")


def _report_known(trial: Trial | None, watcher: Watcher, clock: str) -> None:
    """Report a trial that is done; only the first rank has read it."""
    if trial is not None and trial.status is not None:
        steps, times = trial.records["step"] or [0], trial.records.get(clock) or [0.0]
        outcome = Outcome(trial.status, trial.message)
        watcher.end(trial.method, trial.seed, outcome, int(steps[-1]), times[-1], True)


class _Attempt:
    """Runs one trial, from its beginning or its checkpoint to its end."""

    def __init__(
        self,
        job: Job,
        file: RunFile | DiscardingRunFile,
        watcher: Watcher,
        method: str,
        seed: int,
        former: Trial | None,
    ) -> None:
        self.job, self.file, self.watcher = job, file, watcher
        self.method, self.seed, self.former = method, seed, former
        self.checkpoint = _checkpoint(job, run_id(job.config), method, seed)
        self.clock = Clock(torch.device(job.config["device"]))
        self.step, self.records, self.recorded = 0, 0, -1
        self.saved = time.monotonic()
        self.digest = ""

    def run(self, stop: "_Stop") -> None:
        try:
            problem = _begin(self.job, self.method, self.seed)
            self._resume_or_begin(problem)
            outcome = self._advance(problem, stop)
            self.digest = replicas.common_digest(problem.state_dict())
            if outcome.status != "diverged":
                for name, png in problem.pictures().items():
                    self._line("picture", name=name, png=base64.b64encode(png).decode())
        except (ResultsError, Interrupted):
            raise
        except Exception as error:  # a method that fails is a result, too
            ranks.confirm_failure(error)
            if self.former is None or self.former.status:
                self._begin_line()
            outcome = Outcome("failed", _one_line(error))
        digest = {"digest": self.digest} if self.digest else {}
        self._line("end", status=outcome.status, step=self.step, **self._times(), message=outcome.message, **digest)
        self.file.sync()
        if ranks.is_first() and not self._may_go_on(outcome):
            self.checkpoint.delete()
        self.watcher.end(self.method, self.seed, outcome, self.step, self._used(), False)

    def _resume_or_begin(self, problem: Problem) -> None:
        saved = self.checkpoint.load()
        resumes = ranks.broadcast_from_first(self._can_resume(saved))
        if not resumes:
            trial, saved = _shorter_run(self.job, self.method, self.seed)
            resumes = ranks.broadcast_from_first(self._continue(trial, saved))
        if resumes:
            if saved is None:  # the first rank has read it
                raise OSError(f"cannot read {self.checkpoint.path}")
            problem.load_state_dict(saved["problem"])
            self.step, self.records, self.recorded = saved["step"], saved["records"], saved["recorded"]
            self.clock.elapsed, self.clock.processor = saved["time"], saved["processor_time"]
            problem.stepping.elapsed, problem.stepping.processor = saved["optimizer_times"]
            self._line("resume", step=self.step)
            self.watcher.begin(self.method, self.seed, self.step, problem.budget)
            return
        self._begin_line()
        self.watcher.begin(self.method, self.seed, 0, problem.budget)

    def _can_resume(self, saved: Mapping[str, Any] | None) -> bool:
        if saved is None or self.former is None or self.former.status not in (None, "timeout"):
            return False
        # an earlier version of the experiment may have begun it with other hyperparameters
        if self.former.options != _as_read(self.job.options(self.method)):
            return False
        self.former.truncate(saved["step"])
        return bool(len(self.former) == saved["records"])  # else the disk lost lines that the checkpoint has seen

    def _continue(self, trial: Trial | None, saved: Mapping[str, Any] | None) -> bool:
        """Begin with the records of a trial that ended when its smaller budget was used up, if there is one."""
        if trial is None or saved is None or len(trial) != saved["records"]:
            return False
        if trial.options != _as_read(self.job.options(self.method)):
            return False
        self._begin_line()
        for at in range(len(trial)):
            self._line("record", **{name: values[at] for name, values in trial.records.items()})
        return True

    def _begin_line(self) -> None:
        facts = environment(self.clock.device)
        self._line("trial", options=self.job.options(self.method), environment=facts)
        self.former = Trial(self.method, self.seed)

    def _advance(self, problem: Problem, stop: "_Stop") -> Outcome:
        values: dict[str, float] = {}
        while True:
            reached = problem.outcome()
            late = self.job.timeout is not None and self._used() >= self.job.timeout
            due = time.monotonic() - self.saved >= self.job.checkpoint_every
            # clocks and signals differ between ranks, which must all do the same
            over, late_somewhere, signum, save = ranks.all_reduce_max(reached is not None, late, stop.signum, due)
            if over and reached is None:
                raise replicas.ReplicasError("the processes disagree on the end of the trial")
            outcome = reached or (self._timeout() if late_somewhere else None)
            if (outcome is not None or problem.due()) and self.recorded < self.step:
                values = problem.evaluate()
                own = self._used(problem.stepping)
                self._line("record", step=self.step, **self._times(), optimizer_time=own, **values)
                self.records, self.recorded = self.records + 1, self.step
            self.watcher.progress(self.step, values)
            if outcome is not None:
                if self._may_go_on(outcome):
                    self._save(problem)
                return outcome
            if signum or save:
                self._save(problem)
            if signum:
                raise Interrupted(signum)
            with self.job.experiment.arithmetic(self.job.config, self.method), self.clock:
                problem.advance()
            self.step = problem.step

    def _may_go_on(self, outcome: Outcome) -> bool:
        """Whether a longer timeout, or a longer run, continues it some day."""
        return outcome.status == "timeout" or (outcome.status == "budget" and bool(self.job.experiment.length))

    def _timeout(self) -> Outcome:
        return Outcome("timeout", f"stopped after {self._used():.1f} s of training")

    def _used(self, clock: Clock | None = None) -> float:
        """The seconds on a clock, of the kind that counts."""
        clock = clock or self.clock
        return clock.processor if clock_of(self.job.config) == "processor_time" else clock.elapsed

    def _times(self) -> dict[str, float]:
        return {"time": self.clock.elapsed, "processor_time": self.clock.processor}

    def _save(self, problem: Problem) -> None:
        self.file.sync()  # a checkpoint must not outlive the records before it
        state = {"step": self.step, "records": self.records, "recorded": self.recorded}
        own = (problem.stepping.elapsed, problem.stepping.processor)
        saved = {**state, **self._times(), "optimizer_times": own, "problem": problem.state_dict()}
        if ranks.is_first():  # the others have the same
            self.checkpoint.save(saved)
        self.saved = time.monotonic()

    def _line(self, kind: str, **fields: Any) -> None:
        self.file.append(kind, method=self.method, seed=self.seed, **fields)


def _checkpoint(job: Job, run_name: str, method: str, seed: int) -> Checkpoint:
    return Checkpoint(job.out / ".checkpoints" / f"{file_stem(f'{run_name}-{method}-{seed}')}.pt")


def _shorter_run(job: Job, method: str, seed: int) -> tuple[Trial | None, dict[str, Any] | None]:
    """The trial and its last state in the longest run whose configuration differs by a smaller length alone."""
    length = job.experiment.length
    shorter: list[tuple[float, str, Trial]] = []
    for path in job.out.glob(f"{file_stem(job.experiment.name)}-*.jsonl") if length else ():
        try:
            run = load(path)
        except ResultsError:  # not a run
            continue
        trial, reached = run.trial(method, seed), run.config.get(length, math.inf)
        alike = run_id({**run.config, length: job.config[length]}) == run_id(job.config)
        if alike and trial is not None and trial.status == "budget" and reached < job.config[length]:
            shorter.append((reached, run.id, trial))
    if not shorter:
        return None, None
    _, run_name, trial = max(shorter, key=lambda each: each[0])
    return trial, _checkpoint(job, run_name, method, seed).load()


def _begin(job: Job, method: str, seed: int) -> Problem:
    torch.manual_seed(seed)
    problem = job.experiment.problem(job.config, method, seed)
    problem.begin(methods.find(method).build(problem.parameters(), job.options(method)))
    return problem


def _warm_up(job: Job, method: str, seed: int) -> None:
    try:
        problem = _begin(job, method, seed)
        with job.experiment.arithmetic(job.config, method):
            for _ in range(WARM_UP):
                problem.advance()
    except Exception:  # the trial itself will raise it again, and record it
        return


def _as_read(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options as they are read from a file: tuples become lists."""
    return {key: list(value) if isinstance(value, tuple) else value for key, value in options.items()}


def _one_line(error: Exception) -> str:
    """The error in one line, with file and line of its last frame."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    text = " ".join(str(error).split())[:LONGEST_MESSAGE] or "no message"
    return f"{type(error).__name__}: {text}{where}"


class _Stop:
    """The signal that asked to stop; 0 if none did."""

    signum = 0


@contextmanager
def _signals() -> Iterator[_Stop]:
    """Record a first SIGINT or SIGTERM and finish the step under way; a second one acts as usual."""
    stop = _Stop()
    caught = (signal.SIGINT, signal.SIGTERM)

    def mark(signum: int, _: object) -> None:
        stop.signum = signum
        restore()

    def restore() -> None:
        for number, handler in zip(caught, before, strict=True):
            signal.signal(number, handler)

    before = [signal.getsignal(number) for number in caught]
    for number in caught:
        signal.signal(number, mark)
    try:
        yield stop
    finally:
        restore()
