"""Fine-tuning looped language models, and fitting maps to them.

from loopscope.lm.tuning.recipes import recipe      # what is trained, on what, with which numbers
from loopscope.lm.tuning.jobs import finetune, fit  # a model folder from a folder; a map in a store
"""
