"""A run: data, network, epochs of training with validation, and one pass over the test part at the end.

Everything random is a function of (seed, epoch, sample), and everything else of the state in a checkpoint: so
a run that was stopped, or killed, at any moment ends with the same bits as one that was not interrupted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sparsesnn import __version__, engines
from sparsesnn.arguments import named
from sparsesnn.config import Config
from sparsesnn.config.tables import flatten, plain
from sparsesnn.engines import Batch, Step
from sparsesnn.errors import CheckpointError, ConfigError, NotFiniteError
from sparsesnn.host.comm import Communicator, Grid, Local
from sparsesnn.layers import fires
from sparsesnn.network import Network
from sparsesnn.operations import Operations, note
from sparsesnn.output import Output
from sparsesnn.train import checkpoint as ckpt
from sparsesnn.train import optim, prepare, ranks
from sparsesnn.train.checkpoint import Checkpoint, CheckpointStore
from sparsesnn.train.evaluation import Seen, evaluate
from sparsesnn.train.folder import begin_run, default_folder, read_folder
from sparsesnn.train.health import new_warnings
from sparsesnn.train.loggers import close_all, make_loggers
from sparsesnn.train.metrics import RESULT, MetricsFile, Progress, Result, Tally, read_progress
from sparsesnn.train.plots import plot_run
from sparsesnn.train.predictions import Confusion
from sparsesnn.train.report import Report, optional, summarize
from sparsesnn.train.signals import StoppedError, StopRequest, stop_on_signals
from sparsesnn.train.start import first_batches, introduce, scale_weights, take_weights
from sparsesnn.train.tensorboard import tensorboard_of
from sparsesnn.train.times import Times


@named
def train(
    config: Config,
    data_dir: str | Path | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    *,
    report: Report | None = None,
    world: Communicator | None = None,
    on_epoch: Callable[[Mapping[str, Any]], None] | None = None,
) -> Result:
    """Trains according to the configuration and returns the content of `result.json`.

    Args:
        config: see `sparsesnn.train.Config.resolve`.
        data_dir: folder of the data; None: the one in the configuration. FILE.py:FUNCTION, which is code, may be given only here.
        out: run folder, made if needed; None: `runs/<data set>-<date>-<time>`.
        resume: continue from the folder's checkpoint; without one the run starts from the beginning, which is reported.
        report: shows the progress; None: nothing is shown.
        world: the ranks that share the work, according to `config.parallel`; each of them calls this, with the same
            arguments and a folder that all of them share. None: this process alone. The result is the same.
        on_epoch: called on the first rank after each epoch and its checkpoint, with the epoch's line of `metrics.jsonl`. An error
            that it raises ends the run, which `resume` can continue.

    Errors: `ConfigError` for an invalid setting, or a folder that holds a run without `resume`; `DataError` for missing or
    damaged data; `CheckpointError` for a checkpoint that is damaged or of another configuration; `NumericError` for a loss,
    gradients or weights that are not finite; `sparsesnn.train.StoppedError` after a signal, with the checkpoint written.
    """
    if data_dir is not None:
        config = config.with_data_dir(data_dir)
    world = world or Local()
    ranks.check_equal(world, "the configuration", _comparable(config, resume), "start all ranks alike")
    grid = engines.engine_grid(config.train.backend, world, config.parallel.replicas, config.parallel.shards)
    report = report if report is not None and grid.is_first else Report(quiet=True)
    # the folder's default name contains the time, which may differ between ranks
    folder = Path(world.all_texts(str(Path(out) if out is not None else default_folder(config)))[0])
    with ExitStack() as held:
        begin = partial(begin_run, held, folder, config, resume, grid, report)
        if ranks.together(world, begin, of_first=True)[0]:
            report.note(f"{folder}: the run is finished; its result is kept")
            return Result.read(folder)
        saved = read_folder(folder, resume=resume, world=world)
        t = config.train
        engines.set_threads(t.backend, t.threads, t.engine_options(), world.ranks_on_host)
        _check_validation(config)
        parts = prepare.load_parts(config.data)  # may take minutes, with nothing to save yet: Ctrl-C ends it
        ranks.check_equal(world, "the data", parts.fingerprint(), "give all ranks the same files")
        if saved is not None and grid.is_first:
            (folder / RESULT).unlink(
                missing_ok=True
            )  # for a finished run that trains further; if its data are missing it keeps the result
        with stop_on_signals() as stop:
            run = Run(config, parts, folder, saved, report, grid, tells=on_epoch is not None)
            if on_epoch is not None and grid.is_first:
                run.on_epoch.append(on_epoch)
            return run.whole(stop)


def _check_validation(config: Config) -> None:
    """`ConfigError` if a setting needs validation and there is none."""
    for name, waits in (
        ("train.patience", config.train.patience),
        ("optim.schedule", config.optim.schedule == "plateau"),
    ):
        if waits and config.data.valid == "none":
            raise ConfigError(f"{name}: needs validation, but data.valid is 'none'; hold out a part, or choose another")


def _comparable(config: Config, resume: bool) -> dict[str, Any]:
    """Settings that must be equal on all ranks: all but the paths of files."""
    local = {name for name, known in config.options().items() if known.local}
    flat = {k: v for k, v in flatten(config.to_dict()).items() if k not in local}
    return {"version": __version__, "resume": resume, **flat}


class Run:
    """One run in its folder, from the beginning or from a checkpoint."""

    def __init__(
        self,
        config: Config,
        parts: prepare.Parts,
        folder: Path,
        saved: Checkpoint | None,
        report: Report,
        grid: Grid | None = None,
        tells: bool = False,
    ) -> None:
        self.grid = grid = grid or Grid.alone()
        self.world, self.replicas = grid.world, grid.replicas
        torch.manual_seed(config.train.seed)  # unused here; a user's own layer might draw from it
        self.config, self.parts, self.folder, self.report = config, parts, folder, report
        self.network = prepare.make_network(config, self.parts)
        self.times = Times.of(self.network, parts.train.event_set)
        self.fingerprint = self.parts.fingerprint()
        self.stream = prepare.train_stream(config, self.parts.train, self.replicas)
        self.progress = Progress()
        self.best: tuple[ckpt.TensorFile, ...] | None = None
        self.training = prepare.make_training(
            config,
            self.network,
            parts.n_outputs,
            parts.task,
            graded=parts.train.event_set.values is not None,
            class_weights=prepare.class_weights(config, parts.train),
        )
        self.engine = engines.make_engine(config.train.backend, self.network, self.training, grid)
        self.store = CheckpointStore(folder, grid, self.engine.columns)
        introduce(self)
        if saved is None:
            self._initialize()
            if chosen := self.engine.prepare(first_batches(config, parts)):
                report.note(f"lists   {chosen}")
        else:
            ranks.together(self.world, partial(self._restore, saved))
        self.engine.start()
        ranks.check_replicas(self.engine)
        self.first_step = self.progress.step
        self.traffic = self.world.traffic.copy()  # only training counts, not the traffic before it
        self.epoch_traffic = self.traffic.copy()
        self.metrics = MetricsFile(folder, self.progress.metrics_position) if grid.is_first else None
        self.loggers = [*tensorboard_of(self), *make_loggers(config, folder)] if grid.is_first else []
        self.on_epoch: list[Callable[[Mapping[str, Any]], None]] = [logger.append for logger in self.loggers]
        self.tells = tells or bool(
            config.train.loggers
        )  # calls on_epoch once an epoch's checkpoint is written; on all ranks alike
        if saved is None:
            self._save()
            self._end_saving()
        self._note_saved()

    # ---- state -------------------------------------------------------------------------------------------------

    def _initialize(self) -> None:
        """Takes the weights of another run, or scales them on a few shuffled batches, without augmentation."""
        init = self.config.init
        if init.from_run:
            description = ranks.together(self.world, partial(take_weights, init.from_run, self.engine))[0]
            self.report.note(f"init    {description}")
            return
        self.progress.init = scale_weights(self.config, self.parts, self.engine)
        if self.progress.init:
            spiking = [name for name, p in self.network.populations.items() if fires(p)]
            wanted = spiking if init.activity else list(init.layers)
            reached = ", ".join(f"{name} {value:.4f}" for name, value in self.progress.init.items() if name in wanted)
            self.report.note(f"init    activity {reached}")

    def _restore(self, saved: Checkpoint) -> str:
        where = str(self.store.path)
        data = {k: x for k, x in self.fingerprint.items() if k in saved.data or k != prepare.SAMPLES}
        if saved.data != data:
            raise CheckpointError(
                f"{where}: was made with other data ({_first_difference(saved.data, data)}); "
                "give the same data, or start again in another --out"
            )
        if prepare.in_numbers(Network.from_dict(saved.network)) != prepare.in_numbers(self.network):
            raise CheckpointError(f"{where}: belongs to another network; start again in another --out")
        try:
            self.progress = read_progress(saved.progress)
        except ConfigError as error:
            raise CheckpointError(f"{where}: {error}") from None
        p = self.progress
        numbers = (p.epoch, p.batch, p.step, p.metrics_position)
        if min(numbers) < 0 or max(numbers) >= 2**63 or p.batch > len(self.stream):
            raise CheckpointError(f"{where}: is at epoch {p.epoch}, batch {p.batch}, step {p.step}: out of range")
        tensors = self.store.tensors(saved.tensors, self.engine.network)
        self.engine.load(tensors, where)
        try:
            torch.set_rng_state(tensors["rng/torch"])
        except (KeyError, RuntimeError, TypeError) as error:
            raise CheckpointError(f"{where}: has no state of the random generator: {error}") from None
        self.best = saved.best
        if self.best is not None:
            self.store.tensors(self.best, self.engine.network)  # so that damage is found now, not after the last epoch
        before, n_epochs = Config.from_dict(saved.config).train.epochs, self.config.train.epochs
        if before <= p.epoch and before < n_epochs:
            p.extended = (*p.extended, before)
            self.report.note(
                f"longer  {before} epochs become {n_epochs}; the schedule '{self.config.optim.schedule}' now spans them all, and "
                f"continues with a rate of {self._learning_rate(p.step):.3g}"
            )
        self.report.note(f"resume  after epoch {p.epoch}, batch {p.batch} of {len(self.stream)}")
        return ""

    def _save(self, new_best: tuple[int, Mapping[str, Tensor]] | None = None) -> None:
        """Starts to write a checkpoint of the current state, and the weights of a new best epoch, unless numbers are not finite."""
        self._end_saving()
        state = self.engine.state()
        self._check_state(state)
        self.store.begin(
            config=self.config.to_dict(),
            progress=plain(self.progress),
            network=self.network.to_dict(),
            data=self.fingerprint,
            step=self.progress.step,
            tensors={**state, "rng/torch": torch.get_rng_state()},
            best=self.best,
            version=__version__,
            new_best=new_best,
        )
        self._note_saved()

    def _end_saving(self) -> None:
        """Waits until the checkpoint being written is complete."""
        if (made := self.store.end()) is not None:
            self.best = made.best

    def _note_saved(self) -> None:
        p = self.progress
        self.saved_at, self.saved_position = time.monotonic(), (p.epoch, p.batch, p.step)

    def whole(self, stop: StopRequest) -> Result:
        """Everything from here to the result; loggers are closed in any case."""
        result: Result | None = None
        try:
            self.train(stop)
            result = self.finish(stop)
        except BaseException:
            if self.world.size == 1:  # with several ranks, others may never reach its end
                self._end_saving()
            raise
        finally:
            self.store.close()
            self.report.close()
            close_all(self.loggers, None if result is None else asdict(result))
        return result

    # ---- epochs ------------------------------------------------------------------------------------------------

    def train(self, stop: StopRequest) -> None:
        """Trains all remaining epochs."""
        while not self.progress.is_over(self.config.train.epochs, self.config.train.patience):
            self._train_epoch(stop)
            started = time.perf_counter()
            with self.engine.evaluated():
                valid = self._evaluate(self.parts.valid, stop) if self.parts.valid else None
            self._close_epoch(valid, time.perf_counter() - started)
        self._end_saving()

    def _train_epoch(self, stop: StopRequest) -> None:
        p, n_batches = self.progress, len(self.stream)
        self.report.begin_epoch(p.epoch + 1, self.config.train.epochs, p.batch, n_batches)
        waited_before = self.stream.wait_s - p.tally.waited_s
        mark = time.perf_counter()
        for spikes, labels in self.stream.epoch(p.epoch, p.batch):
            dropout = prepare.heard(self.config, self.stream, p.epoch, p.batch)
            p.tally.add(self._step(Batch(spikes, labels, *self.stream.place(p.batch), dropout)))
            p.batch, p.step = p.batch + 1, p.step + 1
            p.tally.seconds += time.perf_counter() - mark
            p.tally.waited_s = self.stream.wait_s - waited_before
            self.report.batch(p.tally)
            due = ranks.agree(self.world, [stop.signal, self._checkpoint_due(), self.store.is_written])
            self._stop_if_asked(stop, [signal for signal, _, _ in due])
            if all(written for _, _, written in due):
                self._end_saving()  # a full disk is reported at once, not at the next checkpoint
            if due[0][1] and p.batch < n_batches:
                self._save()
            mark = time.perf_counter()

    def _step(self, batch: Batch) -> Step:
        """One training step; if the loss or gradients are not finite, the run ends."""
        p = self.progress
        try:
            step = self.engine.step(batch, self._learning_rate(p.step))
        except NotFiniteError as error:
            raise self._explained(error, f"epoch {p.epoch + 1}, batch {p.batch + 1} (step {p.step + 1})") from None
        if p.step == 0:
            p.first_loss = step.loss
        for kind, text in (("note   ", step.note), ("warning", step.warning)):
            if text:
                line = f"epoch {p.epoch + 1}, batch {p.batch + 1}: {text}"
                p.tally.notes = (*p.tally.notes, line)
                self.report.note(f"{kind} {line}")
        return step

    def _check_state(self, tensors: Mapping[str, Tensor]) -> None:
        try:
            self.engine.check_state(tensors)
        except NotFiniteError as error:
            p = self.progress
            raise self._explained(error, f"epoch {p.epoch}, batch {p.batch} (step {p.step})") from None

    def _explained(self, error: NotFiniteError, where: str) -> NotFiniteError:
        o = self.config.optim
        clip = f"a lower optim.clip_norm ({o.clip_norm:g})" if o.clip_norm else "optim.clip_norm = 1"
        kept = "the last checkpoint, whose weights are finite, is kept" if self.store.exists() else "nothing is saved"
        return NotFiniteError(
            error.what,
            error.value,
            f"{error.more} in {where}; {kept}. Try a lower optim.lr ({o.lr:g}), {clip}, optim.warmup_epochs, "
            "or a flatter surrogate (net.surrogate)",
        )

    def _learning_rate(self, step: int) -> float:
        return optim.learning_rate(
            self.config.optim, step, len(self.stream), self.config.train.epochs, self.progress.plateau_factor
        )

    def _checkpoint_due(self) -> bool:
        c = self.config.train
        by_time = c.checkpoint_seconds and time.monotonic() - self.saved_at >= c.checkpoint_seconds
        by_batch = c.checkpoint_batches and self.progress.step - self.saved_position[2] >= c.checkpoint_batches
        return bool(by_time or by_batch)

    def _close_epoch(self, valid: Tally | None, valid_s: float) -> None:
        """Updates the best epoch by validation, records the epoch, and writes a checkpoint at the beginning of the next."""
        p, t = self.progress, self.progress.tally
        p.epoch, p.batch = p.epoch + 1, 0
        better = valid is not None and p.note_validation(valid.score, valid.loss)
        new_best: tuple[int, Mapping[str, Tensor]] | None = None
        if better:
            with self.engine.evaluated():
                new_best = p.epoch, self.engine.weights()
            self._check_state(new_best[1])
        record = {
            "epoch": p.epoch,
            "step": p.step,
            "loss": t.loss,
            **t.scores(),
            "valid_loss": None if valid is None else valid.loss,
            **(dict.fromkeys(t.scores("valid_")) if valid is None else valid.scores("valid_")),
            "lr": self._learning_rate(p.step - 1),
            "gradient_norm": t.gradient_norm_sum / max(1, t.n_samples),
            "samples_per_s": t.samples_per_s,
            "seconds": t.seconds,
            "waited_s": t.waited_s,
            "wait_share": t.wait_share,
            "valid_seconds": valid_s,
            "activity": t.activity,
            "dropped": t.dropped,
            "n_lost": self.fingerprint["n_lost"],
            "notes": list(t.notes),
            "warnings": new_warnings(self.network, p, None if valid is None else valid.loss),
        }
        if self.world.size > 1:
            traffic = ranks.rank_traffic(self.world, self.epoch_traffic)
            self.epoch_traffic = self.world.traffic.copy()
            record |= {"communication_s": traffic["seconds"], "bytes_sent": traffic["bytes_sent"]}
        if self.metrics is not None:
            self.metrics.append(record)
            p.metrics_position = self.metrics.position
        if self.config.optim.schedule == "plateau":
            p.lower_rate(better, self.config.optim.plateau_factor, self.config.optim.plateau_patience)
        p.trained_samples, p.trained_s = p.trained_samples + t.n_samples, p.trained_s + t.seconds
        p.waited_s += t.waited_s
        p.seconds += t.seconds + valid_s
        p.tally = Tally()
        self._save(new_best)
        if self.tells:
            self._end_saving()
        self.report.end_epoch(record, best=better)
        for warning in record["warnings"]:
            self.report.note(f"warning {warning}")
        for call in self.on_epoch:
            call(record)

    def _evaluate(self, part: prepare.Part, stop: StopRequest, seen: Seen | None = None) -> Tally:
        def check() -> None:
            self._stop_if_asked(stop, [signal for (signal,) in ranks.agree(self.world, [stop.signal])])

        stream = prepare.eval_stream(self.config, part, self.replicas)
        return evaluate(self.engine, stream, after_batch=check, seen=seen)

    def _test(self, stop: StopRequest) -> tuple[Tally, Operations, Confusion]:
        """The test part with the weights that the engine holds: sums, synaptic operations, and the confusion of classes (none of values)."""
        operations, confusion = Operations(self.engine.model, self.engine.grid), Confusion(self.parts.n_classes)

        def seen(batch: Batch, output: Output, decoded: Tensor) -> None:
            operations.add(batch.spikes, output)
            if not self.parts.task.has_values:
                confusion.add(batch.labels, decoded.detach().argmax(-1).cpu())

        return self._evaluate(self.parts.test, stop, seen), operations, confusion

    def _stop_if_asked(self, stop: StopRequest, signals: Sequence[int]) -> None:
        """Ends the run if any rank has received a signal."""
        if not any(signals):
            return
        stop.signal = max(signals)
        self.report.close()
        p = self.progress
        if self.saved_position != (p.epoch, p.batch, p.step):
            self._save()
        self._end_saving()
        raise StoppedError(
            f"stopped by {stop.name} after epoch {p.epoch}, batch {p.batch}; the checkpoint is written; "
            f"continue with: sparsesnn train --resume --out {self.folder}",
            stop.signal,
        )

    # ---- the end -----------------------------------------------------------------------------------------------

    def finish(self, stop: StopRequest) -> Result:
        """Tests the weights chosen by validation, and for the record the last ones; writes the result, then plots."""
        sha256 = self.engine.weights_sha256()
        with self.engine.evaluated():
            return self._finish(stop, sha256)

    def _finish(self, stop: StopRequest, sha256: str) -> Result:
        p = self.progress
        traffic: dict[str, Any] = {}
        if self.world.size > 1:
            grid = {"replicas": self.grid.n_replicas, "shards": self.grid.n_shards}
            traffic = {**grid, **ranks.rank_traffic(self.world, self.traffic), "n_steps": p.step - self.first_step}
        chosen, operations, confusion = self._test(stop)
        last = chosen
        if self.best is not None and p.best_epoch != p.epoch:
            self.engine.load_weights(self.store.tensors(self.best, self.engine.network), self.best[0].file)
            chosen, operations, confusion = self._test(stop)
        confusion, has_values = confusion.of_all_ranks(self.grid), self.parts.task.has_values
        result = Result(
            test_accuracy=chosen.accuracy,
            test_accuracy_last=last.accuracy,
            test_loss=chosen.loss,
            valid_accuracy=p.best_score if self.best is not None and not has_values else None,
            valid_loss=p.best_loss if self.best is not None else None,
            best_epoch=p.best_epoch if self.best is not None else p.epoch,
            n_epochs=p.epoch,
            samples_per_s=p.trained_samples / p.trained_s if p.trained_s > 0 else 0.0,
            seconds=p.seconds,
            activity=chosen.activity,
            dropped=chosen.dropped,
            n_test=len(self.parts.test),
            n_valid=len(self.parts.valid) if self.parts.valid else 0,
            n_train=len(self.parts.train),
            n_lost=self.fingerprint["n_lost"],
            n_parameters=self.engine.n_parameters,
            weights_sha256=sha256,
            config=self.config.to_dict(),
            data=self.fingerprint,
            version=__version__,
            wait_share=p.waited_s / p.trained_s if p.trained_s > 0 else 0.0,
            ranks=traffic,
            machine=self.engine.machine(),
            dt_ms=self.times.dt_ms,
            tau_ms=self.times.tau_ms,
            neurobench=operations.neurobench(chosen.scores()),
            extended=list(p.extended),
            per_class=confusion.per_class(self.parts.test.class_names),
            task=self.parts.task.name,
            test_rmse=chosen.rmse,
            test_r2=chosen.r2,
            test_rmse_last=last.rmse,
            valid_rmse=-p.best_score if self.best is not None and has_values else None,
        )
        if self.grid.is_first:
            result.write(self.folder)
        self.report.note(f"test    {summarize(result, is_chosen=self.best is not None)}")
        if result.neurobench:
            self.report.note(f"work    {note(result.neurobench)}")
        self.report.note(f"result  {self.folder / RESULT}")
        if self.config.train.plots:
            # with several ranks none may leave early: their first pass through the network is a joint one
            with optional("plots") if self.world.size == 1 else nullcontext():
                plot_run(self, result, confusion)
        return result


def _first_difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    before, after = flatten(old), flatten(new)
    for name in [*before, *after]:
        if before.get(name) != after.get(name):
            return f"{name}: {before.get(name)!r} then, {after.get(name)!r} now"
    return "the order of keys"
