"""What the experiments on image classifiers share."""

from typing import Any, ClassVar

from orthoptim_experiments.harness.experiment import Config, Experiment
from orthoptim_experiments.harness.panels import Panel
from orthoptim_experiments.problems.datasets import load


class ClassificationExperiment(Experiment):
    """An experiment whose problem is a :class:`Training`."""

    panels = (Panel("time", "accuracy"), Panel("step", "accuracy"), Panel("time", "distance"))
    columns: ClassVar[tuple[str, ...]] = (
        "accuracy",
        "tta_accuracy",
        "distance",
        "max_distance",
        "optimizer_share",
        "images_per_second",
    )

    def sweep_sizes(self, config: Config) -> dict[str, Any]:
        """A tenth of the training images is held out and takes the place of the test images, which no sweep sees."""
        return {"held_out": config["train_images"] // 10}

    def prepare(self, config: Config) -> None:
        """See :meth:`Experiment.prepare`: load the images, and check that a batch can be taken from them."""
        count = len(load(config["dataset"]).train.first(config["train_images"]).labels)
        if config["batch_size"] > count:
            raise ValueError(f"a batch of {config['batch_size']} cannot be taken from {count} images")
