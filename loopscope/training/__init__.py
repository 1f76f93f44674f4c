"""Training: backbones, map fitting, the counter-based data streams, checkpoints."""

from typing import TYPE_CHECKING

from loopscope.lazy import exports

if TYPE_CHECKING:
    from loopscope.training.cohort.jobs import Settings as Settings
    from loopscope.training.cohort.jobs import fit as fit
    from loopscope.training.cohort.jobs import train as train
    from loopscope.training.lm.jobs import finetune as finetune
    from loopscope.training.lm.task_jobs import finetune_on as finetune_on
    from loopscope.training.lm.task_jobs import fit_map as fit_map
    from loopscope.training.lm.task_results import FittedMap as FittedMap
    from loopscope.training.recipe import BackboneRecipe as BackboneRecipe
    from loopscope.training.recipe import MapRecipe as MapRecipe

__all__, __getattr__ = exports(
    __name__,
    {
        "cohort.jobs": ("Settings", "fit", "train"),
        "lm.jobs": ("finetune",),
        "lm.task_jobs": ("finetune_on", "fit_map"),
        "lm.task_results": ("FittedMap",),
        "recipe": ("BackboneRecipe", "MapRecipe"),
    },
)
