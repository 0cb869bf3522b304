"""A folder of weights is of others, too: nothing in it is run."""

import json

import pytest

from grpo_core.config import ConfigError
from grpo_core.tasks import model

LOADS = [model.load_model, model.load_tokenizer]


@pytest.mark.parametrize("load", LOADS)
def test_code_beside_a_model_is_neither_run_nor_asked_about(tmp_path, monkeypatch, load):
    """Who sits at a terminal was asked whether it may be run, and it was where they pressed y."""
    pytest.importorskip("transformers")
    (tmp_path / "mine.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Mine: pass\n")
    named = dict.fromkeys(("AutoConfig", "AutoModelForCausalLM"), "mine.Mine")
    config = {"model_type": "mine", "auto_map": named | {"AutoTokenizer": ["mine.Mine", None]}}
    for name in ("config.json", "tokenizer_config.json"):
        (tmp_path / name).write_text(json.dumps(config))
    asked = []
    monkeypatch.setattr("builtins.input", lambda *words: asked.append(words) or "y")
    with pytest.raises(ConfigError):
        load(tmp_path)
    assert not asked
    assert not (tmp_path / "ran").exists()
