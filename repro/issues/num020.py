"""NUM020: a model with a weight that is no number is sampled from."""

from __future__ import annotations

from repro.drivers import calls, tiny_trl


def _sample(mitigation: str | None) -> None:
    del mitigation
    import torch

    held = tiny_trl.model()
    with torch.no_grad():
        held.lm_head.weight.fill_(float("inf"))
    held.generate(input_ids=torch.tensor([[3, 4]]), max_new_tokens=2, do_sample=True)


REPRO = calls.repro(
    "NUM020",
    "Probabilities that are no numbers",
    needs=("torch", "transformers"),
    modules=("torch", "transformers", "tokenizers"),
    trigger=("overflow", "generate(do_sample=True) of a model whose head has overflowed to inf"),
    call=_sample,
    failure=("RuntimeError", "next_tokens = torch.multinomial(probs, num_samples=1).squeeze(1)", "_sample"),
    says="probability tensor contains",
    untried={"find_the_step": calls.SEARCHES},
    simulated=("how the weight came to be inf: it is written",),
)
