"""Language models: one file for each adapter, model folders, tokenizer and chat, decoding."""

from typing import TYPE_CHECKING

from loopscope.lazy import exports

if TYPE_CHECKING:
    from loopscope.models.adapter import Adapter as Adapter
    from loopscope.models.decoding import Generation as Generation
    from loopscope.models.decoding import generate as generate
    from loopscope.models.decoding import pad_left as pad_left
    from loopscope.models.folders import load as load
    from loopscope.models.identity import Identity as Identity
    from loopscope.models.identity import identify as identify
    from loopscope.models.ouro import Ouro as Ouro
    from loopscope.models.ouro import exit_probabilities as exit_probabilities
    from loopscope.models.passes import LanguageModel as LanguageModel
    from loopscope.models.passes import Pass as Pass
    from loopscope.models.passes import one_pass as one_pass
    from loopscope.models.passes import states as states
    from loopscope.models.placement import after_each as after_each
    from loopscope.models.placement import between as between
    from loopscope.models.sampling import Sampling as Sampling
    from loopscope.models.stacks import LoopedStack as LoopedStack
    from loopscope.models.steering import FullPrecisionMap as FullPrecisionMap
    from loopscope.models.steering import load_steering_map as load_steering_map
    from loopscope.models.text import Tokenizer as Tokenizer
    from loopscope.models.text import load_tokenizer as load_tokenizer

__all__, __getattr__ = exports(
    __name__,
    {
        "adapter": ("Adapter",),
        "decoding": ("Generation", "generate", "pad_left"),
        "folders": ("load",),
        "identity": ("Identity", "identify"),
        "ouro": ("Ouro", "exit_probabilities"),
        "passes": ("LanguageModel", "Pass", "one_pass", "states"),
        "placement": ("after_each", "between"),
        "sampling": ("Sampling",),
        "stacks": ("LoopedStack",),
        "steering": ("FullPrecisionMap", "load_steering_map"),
        "text": ("Tokenizer", "load_tokenizer"),
    },
)
