"""The kernels on other processors: run where this one can pretend to be them, else assembled."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from llvmlite import binding, ir

from kernels.cpu_blocks import GroupDot
from kernels.cpu_emit import Emitter

ROOT = Path(__file__).resolve().parents[2]
AVX2 = "+sse4.2,+avx,+avx2,+fma,+f16c"
CHOSEN = (  # of the tests of blocks and vectors
    "40-96 or 33-15 or saturate or exponentials or looked_up or sum or rope or silu or rounded or "
    "first or quantised"
)
TARGETS = {
    "no-dot-product": ("nehalem", "+sse4.2,+avx,+fma,+f16c"),
    "avx2": ("haswell", AVX2),
    "avx512-without-vnni": ("skylake-avx512", f"{AVX2},+avx512f,+avx512bw,+avx512vl,+avx512dq"),
}


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="pretends to be other x86 processors")
@pytest.mark.parametrize("target", TARGETS)
def test_results_are_the_same_on(target: str) -> None:
    name, features = TARGETS[target]
    here = binding.get_host_cpu_features()
    if not all(here.get(feature.removeprefix("+"), False) for feature in features.split(",")):
        pytest.skip("this processor lacks what it would have to pretend")
    environment = {**os.environ, "NUMBA_CPU_NAME": name, "NUMBA_CPU_FEATURES": features}
    tests = ["tests/kernels/test_cpu_blocks.py", "tests/kernels/test_cpu_vector.py"]
    tests += ["-k", CHOSEN]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *tests],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:]


@pytest.mark.parametrize(
    ("triple", "cpu", "features", "expected"),
    [
        ("x86_64-unknown-linux-gnu", "znver4", ["avx2", "avx512f", "avx512bw", "avx512vl",
                                                "avx512vnni"], "vpdpbusd"),
        ("x86_64-unknown-linux-gnu", "alderlake", ["avx2", "fma", "f16c", "avxvnni"], "vpdpbusd"),
        ("x86_64-unknown-linux-gnu", "haswell", ["avx2", "fma", "f16c"], "vpmaddubsw"),
        ("aarch64-unknown-linux-gnu", "apple-m1", ["neon", "dotprod"], "sdot"),
        ("aarch64-unknown-linux-gnu", "cortex-a72", ["neon"], "mla"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("nibbles", [True, False])
def test_the_dot_product_s_instruction(
    triple: str, cpu: str, features: list[str], expected: str, nibbles: bool
) -> None:
    text = assembly(triple, cpu, features, nibbles)
    assert expected in text
    assert "__extendhfsf2" not in text, "float16 is widened by an instruction"


def assembly(triple: str, cpu: str, features: list[str], nibbles: bool) -> str:
    module = ir.Module(name="kernel")
    word = ir.IntType(64)
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [word] * 6), "dot")
    builder = ir.IRBuilder(function.append_basic_block())
    GroupDot(Emitter(builder, frozenset(features)), nibbles, nibbles, 1).emit(*function.args)
    builder.ret_void()
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    try:
        target = binding.Target.from_triple(triple)
    except RuntimeError as error:
        pytest.skip(f"llvmlite was built without this target: {error}")
    machine = target.create_target_machine(
        cpu=cpu, features=",".join(f"+{name}" for name in features), opt=3
    )
    parsed = binding.parse_assembly(str(module))
    parsed.verify()
    options = binding.PipelineTuningOptions(speed_level=3)
    passes = binding.create_pass_builder(machine, options)
    passes.getModulePassManager().run(parsed, passes)
    return machine.emit_assembly(parsed)
