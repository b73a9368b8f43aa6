"""Tune searches go on where they were when the script is started again.

Tune can continue a search, but only in a script that asks for it, from a state that it writes every ten
seconds and not in one piece. Here the state is kept in the job's folder after every trial that begins, ends
or saves, and a search that the job has begun before is continued from it. Decision 75 says why so.
"""

from __future__ import annotations

import functools
import io
import json
import re
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from phalanx.launch.files import write_file

# A date, a time or the like in the name of a search: another start of the script gives another one.
_STAMP = re.compile(r"\d[\d_:.T-]{5,}")
_STATE, _DRIVER = "state.zip", "driver"


@dataclass(frozen=True, slots=True)
class KeptSearch:
    """One search of this job: its folder, and how the script named it when it began."""

    folder: Path
    name: str
    storage_path: str | None

    @classmethod
    def find(
        cls, root: Path, name: str, storage_path: str | None, running: set[Path]
    ) -> KeptSearch:
        """Return the search of that name, else one with another time stamp in it, else a new one."""
        known = [cls._read(file) for file in sorted(root.glob("*/search.json"))]
        wanted = name, storage_path
        free = [one for one in known if one.folder not in running]
        for one in free:
            if (one.name, one.storage_path) == wanted:
                return one
        for one in free:
            if _without_stamps(one.name, one.storage_path) == _without_stamps(*wanted):
                return one
        made = cls(root / f"{len(known):04d}", name, storage_path)
        made.folder.mkdir(parents=True, exist_ok=True)
        body = {"name": name, "storage_path": storage_path}
        write_file(made.folder / "search.json", json.dumps(body).encode())
        return made

    @classmethod
    def _read(cls, file: Path) -> KeptSearch:
        body = json.loads(file.read_text())
        return cls(file.parent, body["name"], body["storage_path"])

    @property
    def driver(self) -> Path:
        """The folder of the files that the script's own process writes: states, results, logs."""
        return self.folder / _DRIVER

    @property
    def has_state(self) -> bool:
        """Whether a state has been kept."""
        return (self.folder / _STATE).exists()

    def keep(self, session: str) -> None:
        """Keep the state that a controller has written; it replaces the one before as a whole."""
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w") as archive:
            for file in self.driver.glob(f"*{session}*"):
                if file.is_file():
                    archive.write(file, file.name)
        write_file(self.folder / _STATE, packed.getvalue())

    def unpack(self) -> None:
        """Write the kept state over that in the driver's folder, which may be incomplete."""
        with zipfile.ZipFile(self.folder / _STATE) as archive:
            archive.extractall(self.driver)


def _without_stamps(name: str, storage_path: str | None) -> tuple[str, str]:
    return _STAMP.sub("#", name), _STAMP.sub("#", storage_path or "")


class Searches:
    """The searches of one job, and the patches of Tune that keep and continue them."""

    def __init__(self, store: Path) -> None:
        self._root = store / ".searches"
        self._running: dict[str, KeptSearch] = {}

    def patches(self) -> dict[str, Callable[[ModuleType], None]]:
        """Return what is changed right after the import of which module."""
        return {
            "ray.tune.tune": self._patch_run,
            "ray.train._internal.storage": self._patch_storage,
            "ray.tune.execution.tune_controller": self._patch_controller,
        }

    def _patch_run(self, module: Any) -> None:
        """Continue a search that this job has begun before; a script that resumes itself does it."""
        run = module.run

        @functools.wraps(run)
        def continuing(run_or_experiment: Any, **options: Any) -> Any:
            if isinstance(run_or_experiment, list | module.Experiment):
                return run(run_or_experiment, **options)
            return run(run_or_experiment, **self._begin(run_or_experiment, options))

        module.run = continuing

    def _begin(self, trainable: Any, options: dict[str, Any]) -> dict[str, Any]:
        """Return the options of a run, which continues where a state was kept."""
        from ray.train._internal import storage
        from ray.train.constants import DEFAULT_STORAGE_PATH
        from ray.tune import ResumeConfig

        name = options.get("name") or storage.StorageContext.get_experiment_dir_name(trainable)
        path = options.get("storage_path")
        # The default is this job's own folder, wherever that is mounted.
        asked = None if path is None or str(path) == DEFAULT_STORAGE_PATH else str(path)
        running = {search.folder for search in self._running.values()}
        search = KeptSearch.find(self._root, name, asked, running)
        options = {**options, "name": search.name}
        if search.storage_path is not None:
            options["storage_path"] = search.storage_path
        files = options.get("storage_filesystem")
        where = storage.StorageContext(
            options.get("storage_path") or DEFAULT_STORAGE_PATH,
            search.name,
            storage_filesystem=files,
        )
        self._running[where.experiment_fs_path] = search
        search.driver.mkdir(exist_ok=True)
        if search.has_state:
            search.unpack()
            upload = storage._upload_to_fs_path
            upload(str(search.driver), where.storage_filesystem, where.experiment_fs_path)
            if options.get("resume") is None and options.get("resume_config") is None:
                options["resume_config"] = ResumeConfig()
        return options

    def _patch_storage(self, module: Any) -> None:
        """Let the driver write into the job's folder, not into that of a cluster which ends."""
        context = module.StorageContext
        staging = context.experiment_driver_staging_path.fget

        def experiment_driver_staging_path(this: Any) -> Any:
            search = self._running.get(this.experiment_fs_path)
            return staging(this) if search is None else search.driver.as_posix()

        context.experiment_driver_staging_path = property(experiment_driver_staging_path)

    def _patch_controller(self, module: Any) -> None:
        controller = module.TuneController
        save, checkpoint = controller.save_to_dir, controller.checkpoint
        resume, restore = controller.resume, controller._restore_trials
        kept: dict[Any, tuple[int, ...]] = {}

        def save_to_dir(this: Any) -> None:
            """Write the state, and keep it."""
            save(this)
            search = self._running.get(this.experiment_path)
            if search is not None:
                search.keep(this._session_str)
                kept[this] = _progress(this)

        def checkpoint_each(this: Any, force: bool = False, wait: bool = False) -> None:
            """Keep the state when a trial has begun, ended or saved; let Tune write it when it wants."""
            if this.experiment_path in self._running and kept.get(this) != _progress(this):
                this.save_to_dir()
            checkpoint(this, force=force, wait=wait)

        def resume_or_exit(this: Any, resume_config: Any) -> None:
            """Continue; where that fails, exit: Tune would begin anew, with a single trial."""
            try:
                resume(this, resume_config=resume_config)
            except Exception as error:
                path = this.experiment_path
                raise SystemExit(
                    f"phalanx: the search in {path} cannot go on: {error!r}"
                ) from error
            states = [trial.status for trial in this.get_trials()]
            over = states.count("TERMINATED") + states.count("ERROR")
            _say(f"a search goes on: {over} trials have ended, {len(states) - over} continue")

        def restore_trials(this: Any, experiment_state: Any) -> Any:
            """Restore the trials; one that was lost with its node is not over."""
            trials = restore(this, experiment_state)
            for trial in trials:
                _unless_over(module, trial)
            return trials

        controller.save_to_dir = save_to_dir
        controller.checkpoint = checkpoint_each
        controller.resume = resume_or_exit
        controller._restore_trials = restore_trials


def _progress(controller: Any) -> tuple[int, ...]:
    """Return numbers that change whenever a trial begins, ends or saves."""
    saved = sum(trial.storage.current_checkpoint_index for trial in controller._live_trials)
    ended = len(controller._stopped_trials), len(controller._failed_trials)
    return len(controller._trials), *ended, saved


def _unless_over(module: Any, trial: Any) -> None:
    """Let a trial continue when its process was lost, and forget a checkpoint that is not there."""
    if trial.status == "ERROR" and isinstance(trial.get_pickled_error(), module.RayActorError):
        trial.set_status("PENDING")
    checkpoint = trial.checkpoint
    if trial.is_finished() or checkpoint is None:
        return
    if checkpoint.filesystem.get_file_info(checkpoint.path).type.name == "NotFound":
        _say(f"a checkpoint of trial {trial.trial_id} is missing: it starts from the beginning")
        manager = trial.run_metadata.checkpoint_manager
        trial.run_metadata.checkpoint_manager = type(manager)(manager.checkpoint_config)
        trial.run_metadata.invalidate_cache()


def _say(text: str) -> None:
    print(f"phalanx: {text}", file=sys.stderr, flush=True)  # noqa: T201
