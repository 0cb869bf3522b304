"""The contract layer finds missing, optional, guarded and undecided uses of the engine's API in synthetic packages.

The uses are names, arguments, attributes, patched paths, HTTP routes and launch options.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass

import pytest
from packaging.version import Version

from diagnostics.api_index.surface import SourceFacts, Surface
from diagnostics.matrix.layers.contract import compare_apis, is_grpo_file
from tests.case_files import each_case, read_cases

CASES = read_cases(__file__, "contract_cases.yaml")

GRPO = "trl/trainer/grpo_trainer.py"


@dataclass
class MemorySources:
    """Source modules of a package, in memory."""

    files: Mapping[str, str]

    def names(self):
        return frozenset(self.files)

    def read(self, name):
        return self.files[name]


ENGINE = CASES["engine"]


def compare_with_engine(trainer, *, version="1.0", file=GRPO, engine=ENGINE, more=None):
    """Compare one file of a trainer, and its files in `more`, with the engine, without the behaviour rules."""
    sources = MemorySources({file: textwrap.dedent(trainer), **(more or {})})
    surface = Surface(
        SourceFacts(MemorySources({name: textwrap.dedent(text) for name, text in engine.items()})), "vllm"
    )
    return compare_apis(sources, surface, Version(version), ())


def classify_uses(trainer, **rest):
    """Compare a trainer with the engine; return its missing, its guarded and its undecided uses as texts."""
    result = compare_with_engine(trainer, **rest)
    texts = lambda items: sorted({item.use.text for item in items})  # noqa: E731
    undecided = [f"{it.subject}: {it.why}" for it in result.undecided]
    return texts(result.missing), texts(result.guarded), undecided


MISSING_NAME = "from vllm import Nothing"


@each_case(CASES["names"])
def test_name_is_found_or_missing(line, missing):
    """A name is found however it is defined; a lazy name without a target and an import in a function are checked."""
    assert classify_uses(line) == (missing, [], [])


@each_case(CASES["conditions"])
def test_condition_decides_whether_a_missing_name_counts(condition, outcome):
    """A missing name counts if its condition is true, not in dead code; with an unknown condition it is undecided."""
    trainer = f"def f(self):\n    if {condition}:\n        {MISSING_NAME}"
    missing, guarded, undecided = classify_uses(trainer)
    assert (missing == ["vllm.Nothing"], guarded) == (outcome == "missing", [])
    assert [item.partition(":")[0] for item in undecided] == ["vllm.Nothing"] * (outcome == "undecided")


def test_condition_stored_in_a_constant_is_evaluated():
    """A version check that TRL stores in a constant decides which branch is checked."""
    trainer = """
        _NEW = is_vllm_available(min_version="1.1")
        if _NEW:
            from vllm import Nothing
        else:
            from vllm import LLM
    """
    assert classify_uses(trainer) == ([], [], [])
    assert classify_uses(trainer, version="1.1")[0] == ["vllm.Nothing"]


@pytest.mark.parametrize(
    ("condition", "where"),
    [
        ("self.regex", "body"),
        ("args.vllm_regex is not None", "body"),
        ("self.regex is None", "orelse"),
        ("self.mode == 'x' and self.regex", "body"),
    ],
)
def test_use_behind_an_option_breaks_only_with_it(condition, where):
    """A use behind an option that is off by default is optional; a use in the other branch is missing."""
    settings = "class GRPOConfig:\n    vllm_regex: str | None = field(default=None, metadata={})\n    mode: str = 'x'\n"
    more = {"trl/trainer/grpo_config.py": settings}
    for branch in ("body", "orelse"):
        bodies = {"body": "pass", "orelse": "pass", branch: MISSING_NAME}
        trainer = f"def f(self):\n    if {condition}:\n        {bodies['body']}\n    else:\n        {bodies['orelse']}"
        result = compare_with_engine(trainer, more=more)
        names = [[item.use.text for item in items] for items in (result.optional, result.missing)]
        assert names == ([["vllm.Nothing"], []] if branch == where else [[], ["vllm.Nothing"]])


@pytest.mark.parametrize(
    ("handler", "missing"),
    [
        ("Nothing = None", False),
        ("from vllm import LLM as Nothing", False),
        ("from vllm import Neither", True),
        ("raise RuntimeError('too old')", True),
    ],
)
def test_try_needs_one_working_branch(handler, missing):
    """A use with a working fallback is guarded; it is missing if the fallback fails too or only raises."""
    result = classify_uses(f"try:\n    {MISSING_NAME}\nexcept ImportError:\n    {handler}\n")
    assert ("vllm.Nothing" in result[0]) is missing
    assert ("vllm.Nothing" in result[1]) is not missing


def test_other_trainers_do_not_break_grpo():
    """A name that the file of another TRL trainer misses is marked; an undecided use there counts as guarded."""
    other = "trl/trainer/online_dpo_trainer.py"
    result = compare_with_engine(MISSING_NAME, more={other: MISSING_NAME})
    places = {item.location: is_grpo_file(item.use.file) for item in result.missing}
    assert places == {f"{other}:1": False, f"{GRPO}:1": True}
    result = compare_with_engine(f"if is_peft_available():\n    {MISSING_NAME}", file=other)
    assert (result.undecided, [item.use.text for item in result.guarded]) == ([], ["vllm.Nothing"])


def test_arguments_are_checked_against_the_signature():
    """Keywords of LLM are checked with EngineArgs, those of a struct with its fields, and a known `**dict` counts."""
    trainer = """
        from vllm import LLM, SamplingParams
        def f(self):
            self.llm = LLM(model="m", seed=1, dtype="auto", device="cuda:1")
            options = {"n": 1, "best_of": 2}
            options["temperature"] = 1.0
            options["guided_decoding"] = None
            SamplingParams(**options, **unknown)
        def g(self):
            options = {"do_sample": True}
            transformers.generate(**options)
    """
    assert classify_uses(trainer)[0] == [
        "vllm.LLM(device=)",
        "vllm.SamplingParams(best_of=)",
        "vllm.SamplingParams(guided_decoding=)",
    ]


def test_attribute_paths_are_followed_as_far_as_types_are_known():
    """Attributes of base classes count, and an undecided path names the last known type."""
    trainer = """
        from vllm import LLM
        class T:
            def late(self):
                self.llm.reset_prefix_cache()
                self.llm.sleep(level=1)
                self.llm.llm_engine.gone()
                return self.llm.llm_engine.model_executor.driver_worker.runner.model
            def __init__(self):
                self.llm = LLM(model="m")
    """
    missing, _, unfollowed = classify_uses(trainer)
    assert missing == ["vllm.LLM.sleep"]
    path = "vllm.LLM.llm_engine.model_executor.driver_worker.runner.model"
    assert unfollowed == [
        f"vllm.LLM.llm_engine.gone: followed as far as LLMEngine ({GRPO}:7)",
        f"{path}: followed as far as Executor.driver_worker ({GRPO}:8)",
    ]


def test_annotated_type_does_not_prove_absence():
    """An attribute that an annotated type lacks is undecided, because the object may be of a subclass.

    An attribute that the type of a created object lacks is missing.
    """
    engine = {
        "vllm/__init__.py": """
            class Base:
                def run(self): ...
            class Engine:
                executor: Base
                def __init__(self):
                    self.config = Base()
            class LLM:
                def engine_class(self) -> Engine: ...
                def __init__(self):
                    self.engine = self.engine_class().from_args()
        """
    }
    line = "from vllm import LLM\nllm = LLM()\nllm.engine.{}"
    assert classify_uses(line.format("executor.run"), engine=engine) == ([], [], [])
    unknown = f"vllm.LLM.engine.executor.worker: followed as far as Base ({GRPO}:3)"
    assert classify_uses(line.format("executor.worker"), engine=engine) == ([], [], [unknown])
    assert classify_uses(line.format("config.gone"), engine=engine)[0] == ["vllm.LLM.engine.config.gone"]


def test_patched_path_must_exist():
    """A patched dotted name that the engine lacks is missing; TRL 0.14 and 0.15 patch private methods."""
    line = 'from unittest.mock import patch\nwith patch("vllm.entrypoints.llm.LLM.{}", return_value=None):\n    pass'
    assert classify_uses(line.format("generate"))[0] == []
    assert classify_uses(line.format("_gone"))[0] == ["vllm.entrypoints.llm.LLM._gone"]
    patching = 'from unittest.mock import patch\npatch("vllm.worker.worker.Worker._x")'
    assert classify_uses(patching)[0] == ["vllm.worker.worker.Worker._x"]


def test_method_keywords_are_checked():
    """A keyword is missing if no overload of the method has it; `**kwargs` accepts all keywords."""
    engine = {
        "vllm/__init__.py": """
            class LLM:
                def wake_up(self): ...
                @overload
                def generate(self, prompts): ...
                def generate(self, *, use_tqdm=True): ...
                def rpc(self, **kwargs): ...
        """
    }
    line = "from vllm import LLM\nllm = LLM()\nllm.{}"
    assert classify_uses(line.format("wake_up(tags=[])"), engine=engine)[0] == ["vllm.LLM.wake_up(tags=)"]
    for call in ("generate(prompts=[], use_tqdm=False)", "rpc(method='x')"):
        assert classify_uses(line.format(call), engine=engine) == ([], [], [])


CLIENT = """
class VLLMClient:
    def update(self):
        self._post(f"{self.base_url}/start_weight_update", json={})
        requests.get(f"http://{self.host}:{self.port}/health")
"""


def test_client_routes_must_exist_in_the_server():
    """A route must exist in some file of vLLM's server, or in the trainer's own server if it has one."""
    serving = {"vllm/entrypoints/serve/health.py": '@router.get("/health")\ndef health(): ...'}
    client = {"file": "trl/generation/vllm_client.py", "engine": ENGINE | serving}
    assert classify_uses(CLIENT, **client)[0] == ["/start_weight_update"]
    added = {"vllm/entrypoints/update.py": 'app.add_api_route("/start_weight_update", f)'}
    assert classify_uses(CLIENT, **client | {"engine": ENGINE | serving | added})[0] == []
    server_script = {"trl/scripts/vllm_serve.py": '@app.post("/start_weight_update")\ndef f(): ...'}
    assert classify_uses(CLIENT, **client, more=server_script)[0] == ["/health"]


def test_launch_options_must_be_known_to_the_server():
    """A launch option must be a field of EngineArgs, its `--no-` switch, or an option of the server's parser."""
    trainer = 'command += ["--weight-transfer-config", "x", "--dtype", "auto", "--no-max-model-len", "--own"]'
    serving = {"vllm/entrypoints/openai/cli_args.py": 'parser.add_argument("--own")'}
    where = {"file": "trl/scripts/vllm_serve.py", "engine": ENGINE | serving}
    assert classify_uses(trainer, **where)[0] == ["--weight-transfer-config"]


@pytest.mark.parametrize(
    "engine",
    [
        "import torch\nclass LLM(torch.nn.Module):\n    pass",
        "class LLM:\n    def __getattr__(self, name): ...",
    ],
)
def test_partly_known_class_is_undecided(engine):
    """An attribute of a class with an external base or a `__getattr__` is undecided."""
    line = "from vllm import LLM\nllm = LLM()\nllm.anything()"
    unknown = [f"vllm.LLM.anything: followed as far as LLM ({GRPO}:3)"]
    assert classify_uses(line, engine={"vllm/__init__.py": engine}) == ([], [], unknown)


def test_circular_reexports_terminate():
    """Two modules that import a name from each other do not define it."""
    engine = {"vllm/__init__.py": "from vllm.a import X", "vllm/a.py": "from vllm import X"}
    assert classify_uses("from vllm import X", engine=engine)[0] == ["vllm.X"]


def test_unparsable_grpo_file_is_undecided():
    """A GRPO file that cannot be parsed is undecided; another file of the wheel is ignored."""
    text = "from vllm import LLM\nprint 'x'"
    (undecided,) = classify_uses(text)[2]
    assert undecided.startswith(f"{GRPO}: {GRPO}:2 cannot be parsed by this Python")
    assert classify_uses(text, file="trl/templates/a.py") == ([], [], [])
