"""Looped language models: released checkpoints as models that can be run, read, steered and patched.

    from loopscope.lm.folders import load            # a model folder: Ouro, or Qwen3 and Llama applied in loops
    from loopscope.lm.text import load_tokenizer     # its tokenizer and chat template
    from loopscope.lm.decoding import generate       # greedy decoding of a program
    from loopscope.lm.passes import states           # every state of a program: padding, gradients
    from loopscope.lm.placement import between       # where a map stands
    from loopscope.lm.readouts import readouts       # what each loop would say

The models are `LoopedModel`s: `run`, `sweep`, programs, addresses and maps work on them as on any other.
"""
