"""TOK017: verl cuts no prompt that is too long, unless it is told to."""

from __future__ import annotations

from repro.drivers import calls


def _process(mitigation: str | None) -> None:
    import torch
    from verl.utils.torch_functional import postprocess_data

    postprocess_data(
        torch.ones(1, 9).long(),
        torch.ones(1, 9).long(),
        max_length=16 if mitigation == "room" else 4,
        pad_token_id=0,
        truncation="left" if mitigation == "cut" else "error",
    )


REPRO = calls.repro(
    "TOK017",
    "A prompt longer than the data set's bound, with truncation=error",
    needs=("verl",),
    modules=("verl.utils.torch_functional",),
    trigger=("nine_of_four", "postprocess_data of 9 tokens with max_length=4"),
    call=_process,
    failure=(
        "NotImplementedError",
        'raise NotImplementedError(f"{sequence_length=} is larger than {max_length=}")',
        "postprocess_data",
    ),
    helps={"room": "max_length=16", "cut": 'truncation="left"'},
    simulated=("verl's data set around it: a row of ours",),
)
