"""MLflow: a run of the experiment `lipscale`, in a database beside the run folder or on a server of yours."""

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lipscale.errors import StoppedError
from lipscale.training.loggers.logger import Adapter, numbers

EXPERIMENT = "lipscale"


class MLflow(Adapter):
    """Writes to $MLFLOW_TRACKING_URI, or mlflow.db beside FOLDER; FOLDER/mlflow/run_id says which run is this one."""

    package = "mlflow"

    def open(self, folder: Path, settings: Mapping[str, Any]) -> int:
        """The run of this folder, or a new one."""
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # nothing leaves the machine unasked
        from mlflow import MlflowClient
        from mlflow.entities import Param

        server = os.environ.get("MLFLOW_TRACKING_URI")
        self.client: Any = MlflowClient(server or f"sqlite:///{(folder.parent / 'mlflow.db').as_posix()}")
        known = folder / "mlflow" / "run_id"
        if known.exists():
            self.run: str = known.read_text(encoding="utf-8")
            self.client.update_run(self.run, status="RUNNING")
            return max((metric.step for metric in self.client.get_metric_history(self.run, "loss")), default=0)
        experiment = self.client.get_experiment_by_name(EXPERIMENT)
        number = (
            experiment.experiment_id
            if experiment is not None
            else self.client.create_experiment(EXPERIMENT, None if server else (folder.parent / "mlartifacts").as_uri())
        )
        self.run = self.client.create_run(number, run_name=folder.name).info.run_id
        known.parent.mkdir(parents=True, exist_ok=True)
        known.write_text(self.run, encoding="utf-8")
        self.client.log_batch(self.run, params=[Param(name, str(value)) for name, value in settings.items()])
        return 0

    def add(self, values: Mapping[str, float]) -> None:
        """Add numbers, all in one step."""
        from mlflow.entities import Metric

        now = time.time_ns() // 10**6  # milliseconds
        self.client.log_batch(self.run, [Metric(name, value, now, self.last) for name, value in values.items()])

    def end(self, results: Mapping[str, Any]) -> None:
        """Add the results, and that the run is finished."""
        self.add(numbers(results, "test/"))
        self.client.set_terminated(self.run, "FINISHED")

    def failed(self, error: BaseException) -> None:
        """Say whether it was stopped or has failed."""
        was_asked = isinstance(error, StoppedError | KeyboardInterrupt)
        self.client.set_terminated(self.run, "KILLED" if was_asked else "FAILED")
