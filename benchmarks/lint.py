"""Measure the CPU time of `lint` as a user starts it: the median of several processes, and the packages it loads.

    python benchmarks/lint.py [FILE...]

Without files it generates three inputs: an ms-swift script, a verl script and a Python file with 95 configs. The exit
code is 1 if a file takes more than 0.3 s of CPU time, or if a heavy package is imported.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.measure import run_timed  # noqa: E402

AIM_S = 0.3
HEAVY = ("torch", "vllm", "transformers", "ray", "numpy")
RUNS = 7
SWIFT = (
    "CUDA_VISIBLE_DEVICES=0,1,2,3 NPROC_PER_NODE=4 swift rlhf --rlhf_type grpo --reward_funcs format \\\n"
    "  --use_vllm true --vllm_mode colocate --vllm_gpu_memory_utilization 0.9 --per_device_train_batch_size 3 \\\n"
    "  --num_generations 8 --gradient_accumulation_steps 1 --top_p 0.9\n"
)
VERL = "python3 -m verl.trainer.main_ppo \\\n" + "".join(
    f"  actor_rollout_ref.rollout.option_{number}={number} \\\n" for number in range(200)
)
VERL += "  data.train_batch_size=64 actor_rollout_ref.actor.ppo_mini_batch_size=128\n"
PYTHON = "from trl import GRPOConfig\n" + "".join(
    f"def test_{number}():\n    GRPOConfig(output_dir='x', use_vllm=True, num_generations={number + 2}, top_p=0.9)\n"
    for number in range(95)
)
PROGRAM = (
    "import sys; from diagnostics.__main__ import main; sys.argv = ['d', 'lint', sys.argv[1]];"
    "code = main(sys.argv[1:]);"
    f"heavy = sorted(set({HEAVY!r}) & set(sys.modules)); sys.exit(9 if heavy else code)"
)


def main() -> int:
    """Time `lint` on each file; return the exit code."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(name).absolute() for name in sys.argv[1:]]
        if not paths:
            scripts = {"swift.sh": SWIFT, "verl.sh": VERL, "configs.py": PYTHON}
            for name, text in scripts.items():
                (Path(folder) / name).write_text(text, encoding="utf-8")
            paths = [Path(folder) / name for name in scripts]
        nothing = statistics.median(run_timed([sys.executable, "-c", "pass"])[1] for _ in range(RUNS))
        print(f"{nothing:6.3f} s  an empty Python")
        slow = heavy = False
        for path in paths:
            runs = [run_timed([sys.executable, "-c", PROGRAM, str(path)])[1:] for _ in range(RUNS)]
            median = statistics.median(time for time, _code in runs)
            slow, heavy = slow or median > AIM_S, heavy or any(code == 9 for _time, code in runs)
            print(f"{median:6.3f} s  {path.name} ({path.stat().st_size} bytes)")
    print(
        f"aim {AIM_S} s: {'missed' if slow else 'kept'}; heavy packages: {'loaded' if heavy else 'none loaded'}"
    )
    return 1 if slow or heavy else 0


if __name__ == "__main__":
    sys.exit(main())
