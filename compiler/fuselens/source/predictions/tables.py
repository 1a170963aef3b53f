"""What is known by name: what torch's functions and methods give, and what breaks a graph. The codes are those that
:mod:`fuselens.capture` reports; a test compares."""

from __future__ import annotations

# --- tensors --------------------------------------------------------------------------------------------------------

PLAIN_ATTRIBUTES = frozenset(
    "shape dtype device ndim layout requires_grad is_leaf itemsize nbytes names is_cuda is_cpu is_mps is_meta is_sparse "
    "is_quantized is_nested".split()
)
TENSOR_ATTRIBUTES = frozenset({"T", "mT", "H", "mH", "data", "real", "imag"})
PLAIN_METHODS = frozenset(
    "size dim numel nelement ndimension stride element_size is_contiguous is_floating_point is_complex is_signed "
    "get_device storage_offset has_names is_inference is_pinned is_shared is_conj is_neg is_same_size".split()
)
MASK_METHODS = frozenset(
    "isnan isinf isfinite isneginf isposinf isreal logical_and logical_or logical_not logical_xor eq ne lt le gt ge less "
    "less_equal greater greater_equal not_equal isclose isin bool signbit".split()
)
REDUCTIONS = frozenset(
    "sum mean prod max min amax amin argmax argmin norm std var any all median nanmean nansum nanmedian logsumexp "
    "count_nonzero dot vdot trace det logdet dist".split()
)  # without a dimension they give one number
POINTWISE = frozenset(
    "abs neg exp log log2 log10 log1p sqrt rsqrt square sin cos tan tanh sigmoid relu floor ceil round trunc sign clamp "
    "detach clone long int float double half bfloat16 to cpu cuda type contiguous clamp_min clamp_max add sub mul "
    "div pow bool logical_not isnan isinf isfinite reciprocal".split()
)  # one number of one number
PAIRS = frozenset(
    "split chunk unbind tensor_split topk sort kthvalue mode aminmax frexp meshgrid broadcast_tensors svd qr eig eigh slogdet "
    "lu_factor hsplit vsplit dsplit std_mean var_mean cummax cummin split_with_sizes unsafe_chunk unsafe_split "
    "atleast_1d atleast_2d lu max_pool2d_with_indices histogram triangular_solve lstsq inv_ex cholesky_ex ldl_factor".split()
)
PAIRS_ALONG = frozenset({"max", "min", "median", "nanmedian"})  # with a dimension: values and positions
TO_PYTHON = frozenset("item tolist equal allclose is_nonzero __bool__ __int__ __float__ __index__ __complex__".split())
DATA_DEPENDENT = frozenset("nonzero argwhere masked_select unique unique_consecutive bincount combinations".split())
EAGER_METHODS = frozenset(
    "to_sparse data_ptr storage untyped_storage register_hook retain_grad apply_ map_ share_memory_".split()
)
DATA_AS_NUMBER = {  # functions that need the value of a tensor argument: positions of those arguments
    "arange": (0, 1, 2), "full": (1,), "full_like": (1,), "range": (0, 1, 2),
}  # fmt: skip
TENSOR_ONLY = frozenset(
    "sum mean view reshape permute transpose unsqueeze squeeze softmax log_softmax sigmoid relu tanh size dim numel abs exp "
    "sqrt matmul bmm mm clone detach contiguous backward item to float half long flatten masked_fill masked_fill_ norm "
    "argmax argmin amax amin cumsum gather scatter expand chunk unbind std var clamp T mT grad requires_grad sin cos tan log "
    "add_ mul_ sub_ div_ zero_ fill_ copy_ relu_ clamp_ isnan isinf isfinite nonzero masked_select index_select topk prod "
    "pow square rsqrt sign neg type_as new_zeros new_ones new_tensor".split()
)  # a parameter that is used so is a tensor

# --- torch's functions ----------------------------------------------------------------------------------------------

TENSOR_MODULES = ("torch", "torch.nn.functional", "torch.linalg", "torch.fft", "torch.special")
NO_TENSOR = frozenset(
    "is_tensor is_floating_point is_complex is_storage numel typename get_default_dtype get_default_device device finfo iinfo "
    "Size is_grad_enabled is_inference_mode_enabled is_autocast_enabled result_type promote_types can_cast "
    "broadcast_shapes is_same_size is_inference no_grad enable_grad set_grad_enabled inference_mode autocast compile "
    "set_float32_matmul_precision vmap func cond manual_seed seed initial_seed get_rng_state set_rng_state save load "
    "Generator set_default_dtype set_default_device set_printoptions get_num_threads set_num_threads "
    "use_deterministic_algorithms from_numpy memory_format dtype while_loop is_nonzero is_deterministic_algorithms_enabled "
    "get_autocast_dtype sym_int sym_max sym_min sym_not sym_float export".split()
)
KNOWN_TRUTH = {
    "torch.compiler.is_compiling": True, "torch.compiler.is_dynamo_compiling": True, "torch._dynamo.is_compiling": True,
    "torch.compiler.is_exporting": False, "torch.jit.is_scripting": False, "torch.jit.is_tracing": False,
    "torch.onnx.is_in_onnx_export": False, "fuselens.is_compiling": True,
}  # fmt: skip
DISABLING = frozenset({"torch.compiler.disable", "torch._dynamo.disable", "torch._disable_dynamo", "fuselens.disable"})
SEQUENCE_MODULES = frozenset({"torch.nn.LSTM", "torch.nn.GRU", "torch.nn.RNN", "torch.nn.MultiheadAttention"})

# --- callables that must run each time, in program order ------------------------------------------------------------

CODES = {
    "builtins.print": "FL103", "builtins.input": "FL103", "warnings.warn": "FL103", "warnings.catch_warnings": "FL103",
    "warnings.simplefilter": "FL103", "warnings.filterwarnings": "FL103",
    "builtins.open": "FL118", "io.open": "FL118", "io.StringIO": "FL118", "io.BytesIO": "FL118",
    "builtins.globals": "FL104", "builtins.__import__": "FL104",
    "torch.manual_seed": "FL115", "torch.random.manual_seed": "FL115", "torch.seed": "FL115",
    "torch.Generator": "FL115", "os.urandom": "FL115", "torch.save": "FL118", "torch.load": "FL118",
    "torch.autograd.backward": "FL122", "torch.random.fork_rng": "FL104",
    "torch._dynamo.graph_break": "FL111", "fuselens.graph_break": "FL111",
    "torch.autograd.set_detect_anomaly": "FL104", "torch.autograd.detect_anomaly": "FL104",
    "torch.set_default_dtype": "FL104", "torch.get_num_threads": "FL104", "torch.set_num_threads": "FL104",
    "torch.initial_seed": "FL115", "torch.get_rng_state": "FL115", "torch.set_rng_state": "FL115", "torch._assert": "FL102",
    "torch.linalg.lstsq": "FL108", "torch.histogram": "FL123", "sys.getsizeof": "FL104",
    "torch.nn.utils.rnn.pack_padded_sequence": "FL108", "builtins.object": "FL104", "datetime.timedelta": "FL104",
    "torch.testing.assert_close": "FL105", "torch.use_deterministic_algorithms": "FL110",
    "datetime.datetime.now": "FL119", "datetime.datetime.utcnow": "FL119", "datetime.datetime.today": "FL119",
    "datetime.date.today": "FL119", "json.dumps": "FL104", "json.loads": "FL104", "json.dump": "FL104", "json.load": "FL104",
}  # fmt: skip
MODULE_CODES = {  # every function of the module, but for those in QUIET
    "logging": "FL103", "random": "FL115", "secrets": "FL115", "uuid": "FL115", "time": "FL119", "subprocess": "FL118",
    "socket": "FL118", "tempfile": "FL118", "shutil": "FL118", "glob": "FL118", "numpy.random": "FL115",
    "urllib.request": "FL118",
}  # fmt: skip
QUIET = frozenset({"logging.getLogger"})
DRAWS = {  # whose numbers and arrays are inputs of the graph
    "random": frozenset(
        "random uniform gauss normalvariate expovariate betavariate triangular randint randrange getrandbits".split()
    ),
    "numpy.random": frozenset(
        "rand randn random uniform normal standard_normal exponential gamma beta poisson binomial randint".split()
    ),
}
FILE_SYSTEM = frozenset(
    "cpu_count getpid listdir mkdir makedirs remove unlink rename rmdir stat scandir walk system open chdir kill getppid".split()
)  # of os
FILE_TESTS = frozenset("exists isfile isdir getsize getmtime realpath islink".split())  # of os.path
PURE_PATH = frozenset(
    "name stem suffix suffixes parent parents parts anchor root drive joinpath with_suffix with_name with_stem as_posix "
    "relative_to is_absolute match is_relative_to as_uri is_reserved".split()
)
LOGGED_LATER = frozenset("debug info warning error critical".split())  # where what is logged is known
LOGGER_METHODS = frozenset("debug info warning warn error critical exception log".split())
LOGGER_NAMES = frozenset({"log", "logger", "LOG", "LOGGER", "_log", "_logger"})
LOCKS = frozenset({"threading.Lock", "threading.RLock"})
SCALAR_BUILTINS = frozenset(
    {"float", "int", "bool", "complex", "str", "repr", "format", "range", "chr", "bin", "hex", "oct"}
)
READS_FRAME = frozenset({"locals", "vars", "eval", "exec", "dir", "breakpoint", "set_trace"})
READS_FRAME_ATTRIBUTES = frozenset({"_getframe", "currentframe", "settrace", "setprofile"})
ARRAYS = frozenset(
    "array asarray zeros ones empty full arange linspace eye stack concatenate zeros_like ones_like copy ascontiguousarray".split()
)  # of numpy: implemented in C, whatever their arguments
SEVERAL_ARRAYS = frozenset("array_split histogram meshgrid nonzero split unique".split())
KEEPING = frozenset(
    "view reshape squeeze unsqueeze expand transpose permute flatten contiguous clone detach repeat flip roll t".split()
)
PLAIN_FUNCTIONS = frozenset(
    "is_floating_point is_complex numel typename get_default_dtype get_default_device device finfo iinfo Size is_grad_enabled "
    "result_type promote_types can_cast broadcast_shapes is_available is_inference_mode_enabled is_autocast_enabled".split()
)
