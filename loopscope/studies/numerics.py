"""How our trainings differ from the reference in numbers alone; recipes list what applies to them."""

from __future__ import annotations

OWN_STREAM = "batches come from our counter-based streams; the reference drew them on its GPU, which cannot be repeated"
TF32 = "products in TF32 on a GPU (fp32 in the reference); checkpoints are scored, and maps used, in fp32"
SCALED = (
    "products in fp16 with scaled losses on a GPU, as precise as TF32 (fp32 in the reference); checkpoints are scored "
    "in fp32"
)
