"""The table of diagnostic codes. One entry per code: title, message and explanation templates, hints, severity.

``FL1xx`` capture and breaks · ``FL2xx`` guards, specialisation, recompiles · ``FL3xx`` autograd · ``FL4xx`` lowering,
fusion, fallbacks, performance · ``FL5xx`` CUDA graphs · ``FL6xx`` numerics, from FL620 kernels of the project, from FL630 the
memory of steps, from FL640 patches of libraries · ``FL9xx`` environment, worker.
Standard library only: the language server imports it.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from .report import Diagnostic, Fix, Frame, Severity, Span

_PREDICTED = "Predicted from the source: saving the file compiles it, which confirms or removes this."


@dataclass(frozen=True, slots=True)
class Entry:
    code: str
    title: str
    message: str  # one line; {fields} are filled in by make()
    explanation: str
    hints: tuple[str, ...] = ()
    severity: Severity = "warning"


def _e(code: str, title: str, message: str, explanation: str, *hints: str, severity: Severity = "warning") -> Entry:
    return Entry(code, title, message, explanation, hints, severity)


TABLE: dict[str, Entry] = {
    e.code: e
    for e in (
        # --- FL1xx: capture and graph breaks -----------------------------------------------------------------
        _e(
            "FL101",
            "data-dependent branch",
            "graph break: `{what}` branches on a tensor's value",
            "The condition is only known when the program runs, so the graph ends here and a new one starts on each side.",
            "Compute both sides and choose with torch.where(condition, a, b).",
            "If the condition never depends on data, compute it from Python values or shapes.",
        ),
        _e(
            "FL102",
            "tensor to Python scalar",
            "graph break: `{what}` turns a tensor into a Python value",
            "A Python number is needed before the graph has run, so the graph ends here.",
            "Keep the value as a zero-dimensional tensor and use tensor arithmetic.",
            "The option capture_scalar_outputs keeps item(), int() and float() in the graph; what lies between is "
            "compiled in parts.",
        ),
        _e(
            "FL103",
            "output to the terminal",
            "graph break: `{what}` prints",
            "Output must appear in program order, so the call runs eagerly between two graphs.",
            "Remove the call, or guard it with `if not torch.compiler.is_compiling():`.",
        ),
        _e(
            "FL104",
            "unsupported call",
            "graph break: call of `{what}` cannot be traced ({why})",
            "The compiler cannot see into this call, so it runs eagerly between two graphs.",
            "Move the call out of the compiled function or replace it with tensor operations.",
        ),
        _e(
            "FL105",
            "unsupported instruction",
            "graph break: {what} ({why})",
            "This Python construct is not traced yet, so it runs eagerly between two graphs.",
            "Write it with plain loops, lists and dicts, or move it out of the compiled function.",
        ),
        _e(
            "FL106",
            "unsupported attribute access",
            "graph break: attribute `{what}` cannot be read while tracing ({why})",
            "Reading the attribute may run arbitrary code, so it happens eagerly between two graphs.",
            "Read it before the compiled function is called, and pass its value.",
        ),
        _e(
            "FL107",
            "operator failed on example shapes",
            "graph break: `{what}` raised {why} while tracing",
            "Executing the operator without data failed. It runs eagerly, so eager's own error appears if there is one.",
            "If eager runs it, report it; give the operator a shape function if it is your own (torch.library.register_fake).",
        ),
        _e(
            "FL108",
            "dynamic output shape",
            "graph break: the output shape of `{what}` depends on data",
            "The shape is only known when the program runs, so the operator runs eagerly between two graphs.",
            "The option capture_dynamic_output_shape_ops keeps it in the graph; what lies around it is compiled in parts.",
            "Keep the shape: torch.where or multiplication by the mask instead of x[mask], topk instead of nonzero.",
        ),
        _e(
            "FL109",
            "frame runs eagerly",
            "not compiled: {what} ({why})",
            "The whole function runs eagerly; functions it calls may still be compiled.",
            "Move what is named here into a function of its own, so that the rest can be compiled.",
        ),
        _e(
            "FL110",
            "mutation that cannot be replayed",
            "graph break: {what} mutates an object in a way that cannot be replayed ({why})",
            "The mutation runs eagerly between two graphs.",
            "Return the new value and store it outside of the compiled function.",
        ),
        _e(
            "FL111",
            "explicit graph break",
            "graph break: requested by {what}{why}",
            "The program asked for a graph break here.",
            severity="information",
        ),
        _e(
            "FL112",
            "exception while tracing",
            "not compiled: {what}",
            "An internal error stopped the capture; the function runs eagerly and its results are unaffected.",
            "Please report it with the output of `fuselens explain --dump DIR`.",
        ),
        _e(
            "FL113",
            "context manager",
            "graph break: `with {what}` cannot be traced ({why})",
            "The context manager is entered eagerly and the body is compiled separately.",
            "Enter it around the call of the compiled function, or write it in Python with __enter__ and __exit__.",
        ),
        _e(
            "FL114",
            "disabled function",
            "graph break: `{what}` is excluded from compilation",
            "The function is marked with disable(), so it runs eagerly between two graphs{why}.",
            severity="information",
        ),
        _e(
            "FL115",
            "random numbers from outside torch",
            "graph break: `{what}` draws random numbers, or sets their state, outside of the graph",
            "The generator's state must advance at each call, so the call runs eagerly between two graphs.",
            "Draw with torch (torch.rand, torch.randint): such numbers are part of the graph. Numbers and arrays that the functions "
            "of random and numpy.random give are its inputs, where what they are called with is known.",
        ),
        _e(
            "FL116",
            "exception escapes",
            "graph break: {what} is raised here and not handled in the function",
            "The statement runs eagerly, so that the exception and its traceback are eager's own.",
        ),
        _e(
            "FL117",
            "value cannot be rebuilt",
            "graph break: {what} cannot be made again after a graph ({why})",
            "The object is still needed after a graph, so it is created eagerly, before the graph.",
        ),
        _e(
            "FL118",
            "input or output",
            "graph break: `{what}` talks to the file system, a process or the network",
            "It must happen at each call and in program order, so the call runs eagerly between two graphs.",
            "Read before the compiled function is called and pass the data; write what it returned afterwards.",
        ),
        _e(
            "FL119",
            "clock",
            "graph break: `{what}` reads the clock, or waits",
            "The time is another one at each call, so the call runs eagerly between two graphs.",
            "Measure around the call of the compiled function; pass times that the computation needs.",
        ),
        _e(
            "FL120",
            "generator that is not traced",
            "graph break: the {what} cannot be traced ({why})",
            "Its body runs eagerly, piece by piece, as it is asked for values.",
            "Return a list, or write the loop where the values are used.",
        ),
        _e(
            "FL121",
            "tracing limit",
            "graph break: `{what}` goes beyond what is traced ({why})",
            "Tracing follows every call and every turn of a loop; past a limit the rest runs eagerly.",
            "Bound the recursion or the loop, or compile the function that it repeats instead.",
        ),
        _e(
            "FL122",
            "backward pass",
            "graph break: `{what}` runs a backward pass",
            "Gradients come from the compiled backward of the graphs so far, which the call runs eagerly between two graphs.",
            "Compile the forward and the loss, and call backward outside; the backward is compiled as well.",
        ),
        _e(
            "FL123",
            "operator without a shape function",
            "graph break: nothing tells what `{what}` returns ({why})",
            "The operator has no fake implementation, so it runs eagerly between two graphs.",
            "Register one with torch.library.register_fake, or with the operator's own register_fake.",
        ),
        _e(
            "FL124",
            "Triton kernel that is not a node",
            "graph break: the Triton kernel `{what}` cannot be a node of the graph ({why})",
            "The kernel is launched eagerly between two graphs.",
            "Define the kernel at the top of a module, and call it as kernel[grid](…) with tensors, numbers and constants.",
        ),
        # --- FL2xx: guards and recompiles ---------------------------------------------------------------------
        _e(
            "FL201",
            "recompiled",
            "recompiled: {what}",
            "A guard of every earlier compilation failed, so the function was compiled again.",
            severity="information",
        ),
        _e(
            "FL202",
            "recompile limit reached",
            "no longer compiled: {what} was compiled {count} times",
            "Each call with new types, shapes or values compiles again. After the limit the function runs eagerly.",
            "Turn the changing Python value into a tensor, or mark the changing dimension dynamic.",
        ),
        _e(
            "FL203",
            "specialised",
            "`{what}` was specialised to {value}",
            "The compiled code is only valid for this value; another one compiles again.",
            severity="information",
        ),
        _e(
            "FL204",
            "size not dynamic",
            "`{what}` is marked dynamic, but {why}",
            "mark_dynamic promises that one compilation serves all sizes of the dimension (in its range). The program, or "
            "the example size, does not allow that.",
            "Change the expression that depends on the size, or mark the dimension with maybe_mark_dynamic.",
            severity="error",
        ),
        _e(
            "FL205",
            "recompiled again and again",
            "recompiled {count} times for one reason: {what}",
            "Each call in which this differs may be compiled again, until the function reaches its limit ({limit}) and runs eagerly.",
        ),
        _e(
            "FL206",
            "torch's setting not followed",
            "`{what}` is not followed: {why}",
            "Settings of torch's own compiler mean the same here where they can. This one does not; it is said once.",
            severity="information",
        ),
        _e(
            "FL207",
            "sizes that vary",
            "calls `{what}` with {sizes}: {count}{question}",
            "The program was evaluated up to this call, and the calls that it makes were counted as a first run compiles them. The first "
            "call is compiled for its sizes. A size that differs later becomes a symbol, which is one more compilation.",
            "fuselens.mark_dynamic before the first call spares the second compilation. `drop_last=True` of a loader spares a smaller "
            "last batch.",
            severity="information",
        ),
        _e(
            "FL208",
            "compilations foreseen",
            "`{what}` will be compiled {count} times, because of {why}",
            "The program was evaluated up to its calls, and the calls that it makes were counted as a first run compiles them. This guard "
            "fails again and again. After {limit} compilations the function runs eagerly.",
        ),
        # --- FL3xx: autograd ----------------------------------------------------------------------------------
        _e(
            "FL301",
            "graph runs eagerly",
            "this graph runs eagerly: {why}",
            "Ahead-of-time autograd cannot express this graph yet, so its operations run one by one, with eager's results.",
        ),
        _e(
            "FL302",
            "double backward",
            "double backward through a compiled graph",
            "Second derivatives are recomputed eagerly.",
        ),
        _e(
            "FL303",
            "runs as written",
            "`{what}` runs as it was written while the program watches what autograd saves",
            "Saved-tensor hooks and anomaly detection look at each operator; a compiled graph is one node of autograd.",
            severity="information",
        ),
        _e(
            "FL310",
            "saved for backward",
            "`{what}` is kept for the backward ({bytes} bytes)",
            "{why}",
            severity="information",
        ),
        _e(
            "FL311",
            "recomputed in backward",
            "`{what}` is computed again in the backward",
            "{why}",
            severity="information",
        ),
        _e(
            "FL304",
            "not frozen",
            "parameters and buffers are not frozen: {why}",
            "Freezing holds for graphs without gradients; this one is compiled as without the option.",
            "Call the function under torch.no_grad() or torch.inference_mode().",
            severity="information",
        ),
        # --- FL4xx: lowering, fusion, fallback ----------------------------------------------------------------
        _e(
            "FL401",
            "operator fallback",
            "`{what}` runs through ATen: {why}",
            "No loop lowering exists for this operator and these types, so the vendor's operator is called.",
            severity="hint",
        ),
        _e(
            "FL402",
            "kernel build failed",
            "the generated code of {what} could not be built; the graph runs eagerly",
            "The C++ compiler or Triton refused the generated code: {why}",
        ),
        _e(
            "FL403",
            "no C++ compiler",
            "no working C++ compiler found; graphs run eagerly",
            "Kernels are C++ that is compiled on this machine: {what}.",
            "Install g++ (Debian: `apt-get install g++`) or the wheel (`pip install 'fuselens[compiler]'`), or set CXX to a C++17"
            " compiler.",
        ),
        _e(
            "FL404",
            "lowering failed",
            "this graph runs eagerly: {why}",
            "The graph could not be lowered to loops; its operations run one by one, with eager's results.",
        ),
        _e(
            "FL405",
            "corrupt cache entry",
            "ignored a corrupt cache entry: {what}",
            "The entry was treated as missing and rebuilt.",
            severity="information",
        ),
        _e(
            "FL406",
            "compiled graph failed",
            "a call of this graph failed ({what}) and {then}",
            "Memory was short, or the driver refused. What fails before it writes to an input runs eagerly instead, with eager's results."
            " After a write the call cannot be repeated, because the write would be made twice.",
            "Make the inputs again before you repeat such a call.",
        ),
        _e(
            "FL410",
            "fused",
            "fused {what}: {why}",
            "Operations that share memory traffic run in one kernel, which saves loading and storing in between.",
            severity="information",
        ),
        _e(
            "FL411",
            "not fused",
            "{what} stay apart: {why}",
            "Each of them loads and stores its operands on its own.",
            severity="information",
        ),
        _e(
            "FL412",
            "memory plan",
            "{what}: {why}",
            "Buffers of intermediate results take over the memory of earlier ones that are no longer needed.",
            severity="information",
        ),
        _e(
            "FL413",
            "input written",
            "`{what}` is written to: {why}",
            "The kernel that computes an input's new value writes it in place where nothing needs the old one any more.",
            severity="information",
        ),
        _e(
            "FL414",
            "folded",
            "`{what}` is computed once: {why}",
            "What depends on frozen parameters and buffers alone is a constant of the compiled graph.",
            severity="information",
        ),
        _e(
            "FL415",
            "implementation",
            "`{what}` is computed by another implementation: {why}",
            "Several implementations compute the same product or attention; the one that is fastest on this machine is called.",
            severity="information",
        ),
        _e(
            "FL416",
            "tuned",
            "variants of `{what}` were measured: {why}",
            'With `mode="max-autotune"` the layout of a kernel\'s loops, how far they are unrolled and whether threads share it are '
            "chosen by measurement, once for each kernel, shape and machine; on a GPU its blocks and warps, "
            "and whether products of matrices are kernels that compute what reads them, too. The fastest comes first in the list of "
            "what was tried.",
            severity="information",
        ),
        _e(
            "FL417",
            "compiled once",
            "{what} is compiled once: {why}",
            "What a graph computes again and again, such as the layers of a deep model or the steps of a loop, is a part of it that is"
            " compiled once, and runs each time with other tensors. So the time of a compilation does not grow with their number.",
            "The option `regions=False` compiles the graph as a whole, where results of one stretch may fuse with the next.",
            severity="information",
        ),
        _e(
            "FL418",
            "communication",
            "{what}: {why}",
            "A collective starts as soon as its operands are there, and is waited for where its result is first read. What is"
            " independent of it is computed meanwhile.",
            "Move what does not need the result before the line that reads it.",
            severity="information",
        ),
        _e(
            "FL419",
            "collectives in a bucket",
            "{what}: {why}",
            "With `bucket_cap_mb` (an option: MiB), collectives of one kind, type and group that do not need each other's results become "
            "one. Sums may be rounded in another order. Every rank has to run the same compiled graph.",
            severity="information",
        ),
        # --- FL5xx: CUDA graphs -------------------------------------------------------------------------------
        _e(
            "FL501",
            "not recorded",
            "`{what}` is not recorded as a CUDA graph: {why}",
            'With `mode="reduce-overhead"` calls are recorded, so that all kernels of a graph are launched at once. Calls that are '
            "not recorded run as with the default mode. A recording runs again when nobody holds results of its last runs, and "
            "reads large inputs where they were.",
            severity="information",
        ),
        _e(
            "FL502",
            "recordings are limited",
            "`{what}`: recordings as CUDA graphs are limited: {why}",
            "Recordings share memory, which may grow to `cuda_graph_memory` (an option: a part of the GPU's memory). When it has, "
            "recordings are let go of, and made again for sizes that go on being called. Calls in between run as with the "
            "default mode.",
            severity="information",
        ),
        _e(
            "FL503",
            "recorded calls are slower",
            "`{what}` is not recorded as a CUDA graph any more: {why}",
            "The first recorded calls are timed on the GPU, and compared with calls that are not recorded. Where few kernels are "
            "launched, or much is copied to where the recording reads it, recorded calls may take longer; then they are not used.",
            severity="information",
        ),
        # --- FL6xx: numerics -----------------------------------------------------------------------------------
        _e(
            "FL601",
            "differs from eager",
            "`{what}`, compiled, differs from eager first in this line: {how} (on {on})",
            "Made by {made}.{program} The function was called compiled, eagerly and in float64, on its example inputs and on others. "
            "This is the first line whose value is wrong.",
            "Report it with the minimal program: the compiler is wrong, not your code.",
            "Until it is mended, @fuselens.disable keeps a function that you call from being compiled.",
            severity="error",
        ),
        _e(
            "FL602",
            "guard is missing",
            "`{what}`, called with {on}, runs what was compiled for {before}: a guard is missing; this line differs first: {how}",
            "Alone, the call gives eager's values. After the other call it does not, because nothing tells the two apart.",
            "Report it: the compiler is wrong, not your code.",
            "Until it is mended, call the function with one kind of inputs only.",
            severity="error",
        ),
        _e(
            "FL603",
            "changes from call to call",
            "`{what}`, compiled, gives another value in some calls with the same inputs, eager does not: {how} (on {on})",
            "Made by {made}.{program} Threads that meet in the same memory do this, and memory that is used again too early.",
            "Report it with the minimal program: the compiler is wrong, not your code.",
            severity="error",
        ),
        _e(
            "FL604",
            "cache entry is wrong",
            "`{what}` differs from eager, but not without the cache: an entry of it is wrong: {how} (on {on})",
            "Compiled anew, in a cache of its own, the function gives eager's values.",
            "fuselens cache clear removes all entries; what is compiled next is right.",
            severity="error",
        ),
        _e(
            "FL605",
            "only the compiled call fails",
            "`{what}`, compiled, fails where eager does not: {how} (on {on})",
            "Made by {made}.{program} The function was called compiled and eagerly, on its example inputs and on others.",
            "Report it with the minimal program: the compiler is wrong, not your code.",
            severity="error",
        ),
        # --- FL6xx: kernels of the project ----------------------------------------------------------------
        _e(
            "FL620",
            "kernels of the project",
            "{what}: these kernels are yours: {pin}",
            "The project has kernels of its own for exactly this program, in `.fuselens/kernels`. They were verified against the "
            "graph, for what is built here, and are used in the place of ours.",
            "`fuselens kernels unpin` removes them; the option `pins=False` or FUSELENS_PINS=0 ignores them.",
            severity="information",
        ),
        _e(
            "FL621",
            "pinned kernels stepped aside",
            "{pin} is not used, because `{what}` is compiled to another program: {why}",
            "Kernels are pinned to the program that they were verified for: its loops, sizes, dtypes, strides and order. This one is "
            "another, so our kernels run.",
            "Edit the kernels anew for this program, or remove the pin: `fuselens kernels unpin`.",
        ),
        _e(
            "FL622",
            "pinned kernels were changed",
            "{pin} is not used: {why}",
            "The text of pinned kernels has to be the one that was verified against the graph. Whoever changed it since, the new text "
            "does not run before it is verified, so our kernels run.",
            "`fuselens kernels verify` verifies it as it is now; `fuselens kernels pin` then pins it.",
        ),
        _e(
            "FL623",
            "pinned kernels are for another machine",
            "{pin} is not used: {why}",
            "Kernels were verified where they were written, and other instruction sets and GPUs build other code of them.",
            "`fuselens kernels verify`, then `pin`, on this machine: the pin then holds for both.",
            severity="information",
        ),
        _e(
            "FL624",
            "pinned kernels cannot be used",
            "{pin} is not used: {why}",
            "A pin is a kernel file and what is known of it, a JSON file of the same name beside it. Both must be readable, and belong to "
            "you or to whoever owns the file of the function. Our kernels run.",
            "Restore the files from the repository, or remove the pin: `fuselens kernels unpin`.",
        ),
        _e(
            "FL625",
            "pinned kernels do not build",
            "{pin} is not used, because it does not build here: {why}",
            "They built where they were verified. Another compiler, or another version of it, refuses them, so our kernels run.",
            "`fuselens kernels edit` opens them; saving says what the compiler refuses, and where.",
        ),
        _e(
            "FL626",
            "edited kernels have another interface",
            "refused: {why}",
            "The host program calls the kernels by their names, with their parameters in order, and is not edited. So names and types of "
            "parameters stay as they are.",
            severity="error",
        ),
        _e(
            "FL627",
            "edited kernels do not build",
            "refused: {why}",
            "The compiler says this of the edited text, at this line.",
            severity="error",
        ),
        _e(
            "FL628",
            "edited kernels give other values",
            "refused: {why}",
            "The graph ran eagerly and with the edited kernels, on the same inputs. Where rounding may explain what differs, float64 "
            "decided: right is what is about as near to it as eager is.",
            severity="error",
        ),
        _e(
            "FL629",
            "edited kernels do not end well",
            "refused: {why}",
            "Kernels must end, in the time that is set for a check, and write no memory but their own. They ran in a process of their "
            "own, which is ended.",
            severity="error",
        ),
        # --- FL64x: patches of libraries ------------------------------------------------------------------
        _e(
            "FL640",
            "patched library",
            "{library} is compiled as {what} patches it",
            "The project has a patch of this library's code, in `.fuselens/patches`. It was verified beside eager, and is traced in the "
            "place of what is installed. The installed file stays as it is, and eager calls run that.",
            "`fuselens patches remove` removes it; the option `patches=False` or FUSELENS_PATCHES=0 ignores all.",
            severity="information",
        ),
        _e(
            "FL641",
            "a patch of a library stepped aside",
            "{what} is not used: {why}",
            "A patch is for exactly one text of a library's file, in one version. Here another is installed, so that is compiled as it "
            "is, and may break the graph where the patch had removed a break.",
            "`fuselens patches verify` tries the patch on what is installed now, and keeps it if it still agrees with eager.",
            "Look whether the new version has the break at all; else `fuselens check` offers a fix of it.",
        ),
        _e(
            "FL642",
            "a patch of a library was edited",
            "{what} is not used: {why}",
            "A patch has to be the difference that was verified beside eager. Whoever changed it since, the library is compiled as it is "
            "installed.",
            "`fuselens patches verify` verifies the patch as it is now.",
        ),
        _e(
            "FL643",
            "a patch of a library cannot be used",
            "{what} is not used: {why}",
            "A patch file must be readable, belong to you or to whoever owns the project's file, and change bodies of functions only. The "
            "library is compiled as it is installed.",
            "Restore the file from the repository, or remove it: `fuselens patches remove`.",
        ),
        # --- FL63x: memory of a training step ----------------------------------------------------------------
        _e(
            "FL630",
            "a step does not fit",
            "out of memory: this step needs {needed}{sizes}, and {has}{fits}",
            "Its {phase} holds most here: {kinds}{line}. The step was run without values: the program, autograd and the optimizer decided "
            "what is alive, and compiled graphs said what their programs allocate.",
            "Make the batch smaller, and add up the gradients of several.",
            "Compute a layer again in the backward: torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False).",
        ),
        _e(
            "FL633",
            "memory not predicted",
            "what a step of {what} holds is not known: {why}",
            "The function was called on its example inputs, without values, with its backward and its optimizer.",
            "Make the call work on these inputs, or choose others with --size.",
        ),
        # --- FL9xx: environment and worker --------------------------------------------------------------------
        _e(
            "FL901",
            "no example inputs",
            "`{what}` has no example inputs, so it was not compiled here",
            "To compile without running your program, shapes and dtypes must be known.",
            'Annotate tensors with jaxtyping, e.g. `x: Float32[Tensor, "batch 64"]`.',
            "Or pass `example_inputs=` (a tuple, or a callable returning one) to the decorator.",
            "Or run the program once with `fuselens record PROGRAM.py`: what it calls the function with is remembered.",
            severity="hint",
        ),
        _e(
            "FL902",
            "syntax error",
            "syntax error: {why}",
            "The file cannot be parsed, so nothing in it was compiled.",
            severity="error",
        ),
        _e(
            "FL903",
            "exception at import",
            "importing this file raised {why}",
            "The file must be importable to be compiled; it was stopped at this line.",
            'Guard script code with `if __name__ == "__main__":`.',
            severity="error",
        ),
        _e(
            "FL904",
            "exit at import",
            "importing this file called {what}",
            "The file ended the process while it was imported, so nothing in it was compiled.",
            'Guard script code with `if __name__ == "__main__":`.',
            severity="error",
        ),
        _e(
            "FL905",
            "time limit",
            "checking this file took longer than {limit} and was stopped{where}",
            "Nothing was compiled. A loop at import or a very slow function is the usual cause.",
            'Guard script code with `if __name__ == "__main__":`, or raise `fuselens.timeout`.',
            severity="error",
        ),
        _e(
            "FL906",
            "process died",
            "checking this file killed its process ({why}){where}",
            "The user code ended the process (abort, segmentation fault or memory limit). The server is unaffected.",
            severity="error",
        ),
        _e(
            "FL907",
            "torch missing",
            "the interpreter {what} cannot import torch: {why}",
            "Fuselens compiles in your own Python environment, which needs torch 2.11 or later.",
            "Select another interpreter, or install torch and fuselens in this one.",
            severity="error",
        ),
        _e(
            "FL908",
            "example inputs failed",
            "the example inputs of `{what}` could not be made: {why}",
            "The callable or annotation that describes the inputs raised an exception.",
            severity="error",
        ),
        _e(
            "FL909",
            "example call raised",
            "calling `{what}` on its example inputs raised {why}",
            "Eager PyTorch raises this too; what was compiled before the exception is still shown.",
            severity="error",
        ),
        _e(
            "FL910",
            "memory limit",
            "checking this file used more than {limit} MiB and was stopped",
            "Nothing was compiled. Make the example inputs smaller, or raise `fuselens.memoryLimit`.",
            severity="error",
        ),
        _e(
            "FL911",
            "fuselens missing",
            "the interpreter {what} cannot import fuselens: {why}",
            "Fuselens compiles in your own Python environment and must be installed there.",
            "Install it: `{what} -m pip install fuselens`.",
            severity="error",
        ),
        _e(
            "FL912",
            "function not found",
            "`{what}` is not defined after importing the file",
            "The annotated function is created conditionally, was deleted, or another definition took its name, so it was not "
            "compiled.",
        ),
        _e(
            "FL913",
            "not made",
            "`{what}` was not compiled here: {why}",
            "Your program does not run in a check. A file that only defines things is imported; of a program, the statements that lead to "
            "what it compiles are evaluated. That did not make this object. Likely graph breaks are still predicted from the source.",
            "Where a package, a file or an argument is missing, give it: the rest of the file says which.",
            "Compile a function or module at the top level of the file, or give the object a name there.",
            "Or run the program with `fuselens record PROGRAM.py`: what happens in the run is shown.",
            severity="hint",
        ),
        _e(
            "FL914",
            "worker cannot start",
            "the compile worker could not be started with {what}: {why}",
            "Fuselens compiles in a process of your own Python environment; that process did not come up.",
            "Select another interpreter (setting `fuselens.interpreter`), then restart the worker.",
            severity="error",
        ),
        _e(
            "FL915",
            "effect refused",
            "the program was stopped here, because a check does not {what}",
            "To compile without running your program, its file is imported and its functions are called on example inputs. Meanwhile "
            "nothing outside of a private temporary folder is written, made, renamed or deleted, no connection is opened, no process "
            "started and no signal sent. Nothing of this happened. What follows in the file was not run; functions that are defined "
            "above it were compiled all the same.",
            'Guard script code with `if __name__ == "__main__":`.',
            "In a function that is compiled: leave such effects to its caller.",
            "`fuselens run --allow-effects` runs a function without these limits.",
            severity="error",
        ),
        _e(
            "FL916",
            "cache not usable",
            "{what} cannot be the cache: {why}",
            "What is compiled is code, so it is kept only where nobody else can write, and where there is room. {instead}",
            "Make the folder and those above it your own, writable by nobody else (`chown`, `chmod go-w`), make room, or name "
            "another folder with FUSELENS_CACHE_DIR.",
        ),
        _e(
            "FL917",
            "texts not written",
            "the texts of the stages cannot be written to {what}: {why}",
            "FUSELENS_DUMP, or the option `dump`, asks for them. The program goes on without.",
            "Make room, or name a folder that can be written.",
        ),
        _e(
            "FL918",
            "torch lacks a name",
            "torch {version} has no `{name}`, which {lost} needs",
            "Fuselens uses some names of torch that torch does not document, and this version lacks one. What needs it runs eagerly.",
            "Install a newer fuselens, or a torch from {oldest} to {newest}, on which this one was tested.",
        ),
        _e(
            "FL919",
            "torch newer than tested",
            "torch {version} is newer than {newest}, the newest that this fuselens was tested on",
            "Everything is compiled as usual. Where this torch has changed what it does not document, a finding says so.",
            "Look for a newer fuselens.",
            severity="information",
        ),
        _e(
            "FL920",
            "not allowed to run",
            "{what} was not compiled: no folder that it is in is allowed to run",
            "To compile functions, their file is imported, which runs it. Your editor does not ask whether you trust a folder, so only "
            "those that you name are run. Graph breaks are still predicted from the source.",
            "Do you trust the code there? Add `{folder}`, or a folder above it, to the list `allowedFolders`: an initialization option of "
            "the server, or a setting in the section `fuselens`.",
            severity="information",
        ),
        _e(
            "FL921",
            "assumed inputs",
            "`{what}` was compiled with assumed inputs, {origin}: {inputs}",
            "Nobody states them. A program is not run to find them: the statements that lead to what it compiles are evaluated, loops for "
            "a few rounds, up to the first call. What is not known of that is what a module's layers take, or a function's body.",
            "State other inputs with `@fuselens.example` or `example_inputs=`.",
            "Or run the program with `fuselens record PROGRAM.py`: what its own calls pass is used from then on.",
            severity="hint",
        ),
        _e(
            "FL922",
            "statement left out",
            "this statement was left out: {why}",
            "The file is a program, so it was not run. The statements that lead to what it compiles were evaluated. This one failed here, "
            "and what depends on it is unknown; everything else went on.",
            severity="hint",
        ),
        _e(
            "FL923",
            "not executed",
            "`{what}` was not compiled: nothing of this file may be executed",
            "`fuselens.execution` (on the command line `--execution`) is `never`: no file is imported, and no statement evaluated. Likely "
            "graph breaks are still predicted from the source, and your own runs with `fuselens record` are shown.",
            "To have it compiled, choose `slice` or `import`.",
            severity="information",
        ),
        _e(
            "FL924",
            "assumed value",
            "{why}",
            "The file is a program, so it was not run. The statements that lead to what it compiles were evaluated. Not all that this one "
            "needs is known, so something likely stands for it: a size, the way that a condition takes, a file that is not written.",
            "Arguments are given with a comment in the file, say `# fuselens: --data mnist`, or in `.vscode/launch.json`.",
            severity="hint",
        ),
        _e(
            "FL925",
            "unknown log",
            "the environment asks for logs that there are not: {what}",
            "FUSELENS_LOGS names what is said while functions are compiled; the other names in it hold.",
            "Known are {known}. `+name` says more, `-name` nothing. FUSELENS_LOGS_FORMAT is text or json.",
        ),
        _e(
            "FL926",
            "shared cache not usable",
            "the cache that machines share is not used any more in this process: {what} ({why})",
            "FUSELENS_REMOTE_CACHE names it. What it would have had is compiled here, and stays in this machine's own cache.",
            "Look whether the address is right, can be reached and written, and whether its client (fsspec's, or redis) is installed.",
        ),
        _e(
            "FL927",
            "artifact not made",
            "no artifact is made of {what}: {why}",
            "An artifact has whole graphs, the code around them, and tensors. Nothing is written.",
            "Make the function whole (fullgraph=True names what breaks it); pass objects as arguments, or use their values only.",
        ),
        _e(
            "FL928",
            "artifact not loaded",
            "{what} cannot be loaded: {why}",
            "An artifact serves the versions of Python and torch, and the kind of machine, that it was made with.",
            "Make it again with these versions, or copy it again if it is damaged.",
        ),
        _e(
            "FL929",
            "no entry for a call",
            "{what} was not made for this call: {why}",
            "An artifact serves the calls that it was made for, and others that pass the same guards. It never compiles.",
            "Give aot_compile such a call, too, or dynamic=True where sizes vary. `artifact.calls` tells what is in it.",
        ),
        _e(
            "FL930",
            "ranks do not agree",
            "{what} cannot communicate with the other ranks: {why}",
            "Before a new graph communicates, its rank compares what it would do with what the others do. They have to do it alike.",
            "Look for what differs between ranks at that line: a branch, a shape, a model, a version. The process groups are closed.",
        ),
        _e(
            "FL931",
            "ranks communicate",
            "{what}{phase}: {moved}, predicted {seconds}",
            "Every rank of the group takes part here. The time is that of the faster of a ring and a tree on these links, without other "
            "traffic: {hosts}.",
            severity="information",
        ),
        _e(
            "FL932",
            "ranks would communicate differently",
            "{what} would not communicate alike on all ranks: {why}",
            "Ranks of a group have to make the same collectives in the same order, of the same types and shapes. Else they wait for each "
            "other for ever. Nothing was sent to find this: {looked}.",
            "Look for what differs between ranks at this line: a branch on the rank, a shape, the order of groups.",
            severity="error",
        ),
        _e(
            "FL933",
            "what a rank holds",
            "rank {rank} of {ranks} holds {peak} at most{memory}{sends}",
            "{looked}. Parameters and gradients are the shards that the rank keeps. Buffers are parameters of other ranks that it has "
            "gathered, at most at a time, and those in which gradients are reduced. What graphs hold is predicted: the most that each "
            "holds, together.",
            severity="information",
        ),
        _e(
            "FL934",
            "no part of a Triton program",
            "{what} is no function or kernel for Triton: {why}",
            "A device function computes each element of its results from the same elements of its arguments. A kernel computes all "
            "results of a function in one launch.",
            "Leave what needs other elements, positions or libraries to the program that calls it, or use fuselens.compile.",
        ),
    )
}


def make(
    code: str,
    span: Span | None = None,
    *,
    stack: tuple[Frame, ...] = (),
    mode: str = "",
    cost: str = "",
    fixes: tuple[Fix, ...] = (),
    hints: tuple[str, ...] = (),
    cause: Diagnostic | None = None,
    **fields: Any,
) -> Diagnostic:
    """A :class:`Diagnostic` of ``code`` with its templates filled from ``fields``. Raises KeyError on unknown codes."""
    entry = TABLE[code]
    values = _Fields(fields)
    return Diagnostic(
        code=code,
        message=entry.message.format_map(values),
        span=span,
        severity=entry.severity,
        explanation=entry.explanation.format_map(values),
        hints=tuple(h.format_map(values) for h in entry.hints) + hints,
        stack=stack,
        mode=mode,
        cost=cost,
        fixes=fixes,
        cause="" if cause is None else told_as_cause(cause),
    )


def told_as_cause(found: Diagnostic) -> str:
    """How a finding is named by those that follow from it."""
    return f"{found.code}{f' at {found.span}' if found.span else ''}: {found.message}"


def as_line(found: Diagnostic) -> str:
    """The finding as one line of a log."""
    return f"{f'{found.span}: ' if found.span else ''}{found.code}: {' '.join(found.message.split())}"


def raised(error: BaseException, limit: int = 500) -> str:
    """What was raised, as messages say it; ``str()`` of an exception may itself raise."""
    try:
        text = str(error)[:limit]
    except Exception:  # noqa: BLE001 - any code may be behind it
        text = "its message cannot be made"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def predict(code: str, span: Span, *, stack: tuple[Frame, ...] = (), **fields: Any) -> Diagnostic:
    """The finding of ``code`` that compiling is likely to make at ``span``, marked as a prediction."""
    made = make(code, span, stack=stack, **fields)
    subject, colon, message = made.message.partition(": ")
    return dataclasses.replace(
        made,
        message=f"likely {subject}{colon}{message}",
        severity="hint" if made.severity == "information" else "information",
        explanation=f"{made.explanation} {_PREDICTED}",
        predicted=True,
    )


def of_loop(found: Diagnostic) -> Diagnostic:
    """An FL101 at the condition of a ``while``: there is nothing to choose between, as at an ``if``."""
    return dataclasses.replace(
        found,
        explanation=found.explanation.replace("on each side", "in the loop and after it"),
        hints=(
            "Run a fixed number of steps, and keep what is finished: x = torch.where(running, step(x), x).",
            "Compile what the loop does at each step, and leave the loop itself to Python.",
        ),
    )


class _Fields(dict[str, Any]):
    def __missing__(self, key: str) -> str:
        return ""


def codes_markdown() -> str:
    """The documentation page of every code, generated from the table."""
    out = ["# Diagnostic codes", ""]
    for e in TABLE.values():
        out += [f"## {e.code}", "", f"**{e.title}** ({e.severity})", "", f"> {e.message}", "", e.explanation, ""]
        out += [f"- {h}" for h in e.hints] + ([""] if e.hints else [])
    return "\n".join(out)
