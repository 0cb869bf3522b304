"""CFG119: generate() of transformers is given a column of the data set, and refuses it."""

from __future__ import annotations

from repro.drivers import calls, tiny_trl


def _generate(mitigation: str | None) -> None:
    import torch

    row = {"input_ids": torch.tensor([[3, 4]]), "solution": ["5"]}
    if mitigation == "columns":
        del row["solution"]
    tiny_trl.model().generate(max_new_tokens=2, **row)


REPRO = calls.repro(
    "CFG119",
    "Columns of the data set are handed to generate()",
    needs=("transformers", "torch"),
    modules=("torch", "transformers", "tokenizers"),
    trigger=("solution", "model.generate(input_ids, solution=...)"),
    call=_generate,
    failure=("ValueError", "raise ValueError(", "_validate_model_kwargs"),
    says="are not used by the model",
    helps={"columns": "the column left out"},
    untried={"engine": "vLLM generates, and this call is not made"},
    simulated=("ms-swift's trainer, which hands the row on: a call of ours",),
)
