"""
The compiled engine of sparsesnn; use it through the sparsesnn package.
"""

from collections.abc import Sequence
from typing import Annotated, overload

import numpy
from numpy.typing import NDArray


version: str = ...

def build_info() -> dict:
    """The build and the choices in use; see sparsesnn.build_info."""

def set_isa(name: str) -> None:
    """Chooses the instruction set; ValueError if this machine cannot run it."""

def num_threads() -> int:
    """Number of threads that share the engine's work."""

def set_num_threads(n: int) -> None:
    """Sets the number of threads, 1 to 1024; ValueError otherwise."""

def set_choice(name: str, value: int) -> int:
    """
    For tests: sets a limit of choices.h, between passes, and returns its old value; ValueError if it is
    unknown or out of range.
    """

class LayerSpec:
    """The numbers that define one layer's passes; see host/src/cpu/layer.h."""

    def __init__(self, *, shape: str, fires: bool, n_trained: int, detach_reset: bool, surrogate: str, slope: float, n: int, tile_width: int, capacity: int, fixed: bool, bf16: bool, save: bool, seed: int, first_step: int, first_sample: int = ..., population: int = ..., first: int = ...) -> None: ...

    def at(self, seed: int, first_step: int, first_sample: int) -> LayerSpec:
        """The same for one call."""

    @property
    def n(self) -> int: ...

    @property
    def save(self) -> bool: ...

class Lists:
    """
    Spike lists: offsets int64[T*B + 1], ids uint16|int32[S], n_spikes int32[T*B]; graded: values float32[S].
    constant: one list for each sample, the same at all steps; T is 1.
    """

    def __init__(self, offsets: Annotated[NDArray[numpy.int64], dict(order='C', device='cpu', writable=False)], ids: Annotated[NDArray, dict(order='C', device='cpu', writable=False)], n_spikes: Annotated[NDArray[numpy.int32], dict(order='C', device='cpu', writable=False)], values: Annotated[NDArray[numpy.float32], dict(order='C', device='cpu', writable=False)] | None = ..., constant: bool = ...) -> None: ...

    def check(self, n_neurons: int, n_samples: int, name: str) -> None:
        """
        Raises ShapeError or SpikeListError, which begins with `name`, if the lists break their invariants.
        """

    def perhaps_listed(self, n: int) -> object:
        """
        bool[n], true for neurons that may be in any of the lists; all true if nearly all are.
        """

    def hold(self, n_neurons: int) -> None:
        """
        Records that the lists are valid for n_neurons: a pass that reads them later raises an error if they changed.
        """

    def show(self) -> None:
        """
        The same for lists that a hidden Chain.forward has read, before they may be written to.
        """

class SparseRows:
    """
    Sparse synapses as a layer reads them, see host/src/cpu/sparse_rows.h: for each receiver from
    `first` on its senders, ascending. by_blocks: of a shard of several ranks.
    """

    def __init__(self, n_pre: int, offsets: Annotated[NDArray[numpy.int64], dict(order='C', device='cpu', writable=False)], senders: Annotated[NDArray[numpy.int32], dict(order='C', device='cpu', writable=False)], tile_width: int, first: int = ..., by_blocks: bool = ...) -> None: ...

class Windows:
    """
    A convolution as its receiving layer reads it, see host/src/maps/windows.h; shape: height, width,
    channels of the sender.
    """

    def __init__(self, *, shape: Sequence[int], channels_first: bool, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], groups: int, channels: int) -> None: ...

class Source:
    """
    A sending population: its size, delay and float32 weight [M, N]; for sparse synapses [synapses] with
    their rows; for a convolution the weight of its windows.
    """

    def __init__(self, n_pre: int, delay: int, weight: Annotated[NDArray[numpy.float32], dict(order='C', device='cpu', writable=False)], packed: Annotated[NDArray[numpy.uint8], dict(order='C', device='cpu', writable=False)] | None = ..., rows: SparseRows | None = ..., windows: Windows | None = ...) -> None: ...

class Loop:
    """
    A recurrent connection: its float32 weight [N, N], for sparse synapses [synapses] with their rows,
    its delay, 1 or more, and axonal delays: whole steps, and fractions of a step if they lie between
    two.
    """

    def __init__(self, weight: Annotated[NDArray[numpy.float32], dict(order='C', device='cpu', writable=False)], delay: int, packed: Annotated[NDArray[numpy.uint8], dict(order='C', device='cpu', writable=False)] | None = ..., rows: SparseRows | None = ..., steps: Annotated[NDArray[numpy.int32], dict(order='C', device='cpu', writable=False)] | None = ..., fraction: Annotated[NDArray[numpy.float32], dict(order='C', device='cpu', writable=False)] | None = ...) -> None: ...

class LayerCall:
    """
    A layer of a chain, which adds lists, sizes and state in each call: its spec and sources;
    entries of its shape, one array [N] or [] each, and for each trained parameter
    their derivatives, None for 0.
    """

    def __init__(self, spec: LayerSpec, *, states: Sequence[str], sources: Sequence[Source], entries: Sequence[Annotated[NDArray[numpy.float32], dict(order='C', device='cpu', writable=False)]], derivatives: Sequence[Sequence[Annotated[NDArray[numpy.float32], dict(order='C', device='cpu', writable=False)] | None]], grad_threshold: Annotated[NDArray[numpy.float32], dict(order='C', device='cpu', writable=False)] | None = ..., bias: Annotated[NDArray[numpy.float32], dict(order='C', device='cpu', writable=False)] | None = ..., loops: Sequence[Loop] = ..., ranks: LayerRanks | None = ...) -> None: ...

def neuron_shapes() -> dict:
    """
    For the name of every compiled shape its entries, in order; sparsesnn/layers/shapes.py chooses one.
    """

def surrogates() -> list[str]:
    """Names of the built-in surrogates."""

def pack_rows(spec: LayerSpec, by_sample: bool, weight: Annotated[NDArray[numpy.float32], dict(order='C', device='cpu', writable=False)], begin: int, end: int, out: Annotated[NDArray[numpy.uint8], dict(order='C', device='cpu')], name: str) -> None:
    """
    Writes rows begin..end-1 of a layer's weight to their places in `out`, uint8[packed_bytes], as its forward pass reads
    it; `name` is for errors. Source and LayerCall take a weight that is packed so.
    """

def packed_bytes(spec: LayerSpec, n_pre: int) -> int:
    """Size in bytes of a weight of n_pre rows, packed by `pack_rows`."""

def release_memory() -> None:
    """Releases the memory that the engine keeps for the next step."""

def phase_seconds(reset: bool) -> dict:
    """
    Wall time by phase since the process began, or since the last call with reset=True.
    """

group_samples: int = ...

class Run:
    """
    The result of a layer or a transform. Arrays become NumPy's when they are asked for; None if there is none.
    """

    @property
    def offsets(self) -> object: ...

    @property
    def ids(self) -> object: ...

    @property
    def n_spikes(self) -> object: ...

    def perhaps_listed(self) -> object:
        """
        bool[N], the neurons that may be in any of the lists; all of them, if nearly all are.
        """

    @property
    def values(self) -> object:
        """The values of graded lists, else 1 for spikes and 0 for near-spikes."""

    @property
    def is_graded(self) -> bool:
        """Whether lists have values."""

    @property
    def n_steps(self) -> int: ...

    @property
    def dropped(self) -> object: ...

    @property
    def potentials(self) -> object:
        """For a readout."""

    @property
    def state(self) -> list:
        """[B, N] each, in the order of the model."""

class Transform:
    """Lists → lists; see host/src/transforms/transform.h."""

    @property
    def keeps_neurons(self) -> bool:
        """Whether each entry stays with its neuron."""

    @property
    def n_read(self) -> int: ...

    @property
    def n_made(self) -> int: ...

class Delay(Transform):
    """
    Entries arrive later, by neuron; delays float32[M], in steps, `between` steps or whole. The result has the lists'
    steps from first_step on.
    """

    def __init__(self, delays: Annotated[NDArray[numpy.float32], dict(order='C', device='cpu', writable=False)], between: bool, first_step: int = ...) -> None: ...

def add_groups(groups: Annotated[NDArray[numpy.float32], dict(order='C', device='cpu', writable=False)]) -> object:
    """float32[N], the sum of gradients [G, N] of groups of samples."""

class Dropout(Transform):
    """
    Leaves out entries of lists of n neurons. Setting of a pass: keep(step, sample, neuron) → bool, of int64 arrays with a number for each entry.
    """

    def __init__(self, n: int) -> None: ...

class Pool(Transform):
    """Pools of maps; see host/src/maps/pool_lists.h."""

    def __init__(self, *, shape: Sequence[int], channels_first: bool, size: Sequence[int], stride: Sequence[int], maximum: bool, share: float) -> None: ...

class Resume(Transform):
    """
    The lists of steps before the call in front of those of the call. Setting of a pass: the former.
    """

    def __init__(self, n: int) -> None: ...

class Pass:
    """The results of a forward pass of a chain."""

    @property
    def runs(self) -> list[Run]:
        """The result of each node."""

class Chain:
    """
    Layers and transforms that run one after the other in one call. saves: for each input, whether the gradient of
    its values is wanted. shards: an engines/ranks/chain_shards.py, if ranks share the neurons; a layer then has this
    rank's neurons, but its inputs and outputs are those of the whole population.
    A node reads inputs, by number, or n_inputs + an earlier node.
    """

    def __init__(self, saves: Sequence[bool], shards: object | None = ...) -> None: ...

    def add_layer(self, name: str, layer: LayerCall, reads: Sequence[int], weight: Sequence[bool], loops: Sequence[bool], delays: Sequence[bool], bias: bool) -> None:
        """
        layer: a LayerCall; its lists, sizes and state are not read. Wanted gradients: the weight of every source and
        every loop, the axonal delays of every loop, the bias; the spec has those of the model's parameters.
        """

    def add_transform(self, name: str, transform: Transform, reads: int, learns: bool = ...) -> None:
        """learns: whether the gradient of its parameter is wanted."""

    def forward(self, inputs: list, n_steps: int, n_samples: int, settings: list, hidden: bool = ..., first_sample: int = ...) -> Pass:
        """
        inputs: Lists, or a Run of another chain. settings: for a layer its seed, first step, states, own lists of earlier
        steps, packed weights of sources and loops, or None, given currents of the whole population, [T, B, N] or, the same
        at all steps, [B, N], or None, and whether potentials of neurons that fire are an output; for a transform its own.
        hidden: nothing writes to the inputs before `backward` or `show`.
        """

    def backward(self, pass_: Pass, d_out: Sequence[Annotated[NDArray[numpy.float32], dict(order='C', device='cpu', writable=False)] | None], take: object, n_batch: int = ..., d_potentials: Sequence[Annotated[NDArray[numpy.float32], dict(order='C', device='cpu', writable=False)] | None] = ...) -> None:
        """
        Once after `forward`: calls take(k, gradients) with the wanted gradients of node k, from the last node on, unless
        no gradient reaches the node; the list is empty if this rank has no neurons of it. d_out: for each node the
        gradient of its list values or potentials, or None. Gradients of a layer's lists are added in the order of PyTorch's
        graph: d_out first, then the readers from the last one on. n_batch: samples of the whole batch, of which these are
        those from first_sample on; gradients of weights then come as one sum a branch (find_branches), [K, ...], those of
        neurons' parameters as one a group of group_samples samples, [G, ...]. d_potentials: for each node that fires the
        gradient of its potentials, if they are an output, or None.
        """

    def backward_node(self, pass_: Pass, node: int, d_out: Annotated[NDArray[numpy.float32], dict(order='C', device='cpu', writable=False)] | None, wanted_value: Sequence[bool], n_batch: int = ..., wanted_currents: bool = ..., d_potentials: Annotated[NDArray[numpy.float32], dict(order='C', device='cpu', writable=False)] | None = ...) -> tuple:
        """
        The same for one node, any number of times: its gradients; for each list that it reads the gradient of the
        values, or None; 0 for entries of other ranks; and that of its given currents, of this rank's neurons, or None.
        """

class OwnEvents:
    """
    The lists of a shard, sorted by sender for `order`: (delay, rows, groups) as of chunk_plan; see host/src/ranks/sorted_lists.h.
    """

    def __init__(self, lists: Lists, n_neurons: int, n_samples: int, order: object) -> None: ...

    def __len__(self) -> int:
        """Number of events: entries that arrive."""

    def to_slots(self, values: Annotated[NDArray[numpy.float32], dict(order='C', device='cpu', writable=False)], n_slots: int) -> object:
        """
        float32[n_slots]: values of the events at the places of their entries in the lists; 0 for others.
        """

class SortedLists:
    """
    The lists of a population, sorted for `order`, from the messages of its shards; rank r owns neurons
    first[r] to first[r + 1] - 1.
    """

    def __init__(self, messages: Sequence[Annotated[NDArray[numpy.uint8], dict(order='C', device='cpu', writable=False)]], first: Sequence[int], n_steps: int, n_samples: int, order: object) -> None: ...

    @property
    def ends(self) -> list[int]:
        """Where the lists of each message begin, after its events."""

    @property
    def edges(self) -> list[int]:
        """Events edges[r] to edges[r + 1] - 1 are rank r's."""

    def from_slots(self, population: Lists, values: Annotated[NDArray[numpy.float32], dict(order='C', device='cpu', writable=False)]) -> object:
        """
        float32[K, events]: from values [K, entries] of the population's lists.
        """

def chunk_plan(n_tiles: int) -> tuple[int, int]:
    """
    Rows and groups of samples of a chunk, in the backward pass of a layer of n_tiles tiles: see ChunkPlan.
    """

def shard_message(lists: Lists, n_neurons: int, dropped: Annotated[NDArray[numpy.int32], dict(order='C', device='cpu', writable=False)] | None, events: OwnEvents | None = ...) -> object:
    """
    uint8[n]: lists of one shard, of n_neurons, for `merge_messages`, and its sorted events, if given.
    """

def merge_messages(messages: Sequence[Annotated[NDArray[numpy.uint8], dict(order='C', device='cpu', writable=False)]], n_lists: int, limited: bool, first: Sequence[int]) -> tuple:
    """
    Lists of a population from the messages of its shards: offsets, ids, n_spikes and, if `limited`,
    dropped; rank r owns neurons first[r] to first[r + 1] - 1.
    """

def find_branches(n_groups: int, edges: Sequence[int]) -> list:
    """
    How the sums of groups of samples, cut at `edges`, add up to a batch's: (first group, last + 1,
    folds) for every branch; folds: the number of pending sums it is added to, the latest first.
    """

def add_branches(branches: Sequence[Annotated[NDArray[numpy.float32], dict(order='C', device='cpu', writable=False)]], folds: Sequence[int], total: Annotated[NDArray[numpy.float32], dict(order='C', device='cpu')], active: Annotated[NDArray[numpy.bool_], dict(order='C', device='cpu', writable=False)] | None = ..., copies: Sequence[Annotated[NDArray[numpy.float32], dict(order='C', device='cpu')]] = ...) -> None:
    """
    Overwrites `total`, which may be one of them, with the sum of branches, float32 of any shape; of a
    matrix [M, N] only the active rows, bool[M], if given, and writes these rows to `copies` too.
    """

def split_values(population: Lists, values: Annotated[NDArray[numpy.float32], dict(order='C', device='cpu', writable=False)], first: Sequence[int]) -> list:
    """
    For every rank the values [K, entries] of its neurons' entries; rank r owns first[r] to first[r + 1] - 1.
    """

def tile_folds(edges: Sequence[int]) -> list:
    """
    For every rank r, which holds tiles edges[r] to edges[r + 1] - 1 of a population, the folds of the
    blocks of which its part of a sum over tiles consists; `add_branches` makes one sum of all ranks'
    blocks.
    """

def empty_matrix(n_rows: int, n_columns: int, shared: bool = ...) -> object:
    """
    float32[n_rows, n_columns], not initialized, from the memory that the engine keeps from step to
    step, or from shared memory.
    """

def shared_memory() -> tuple[int, int] | None:
    """
    Descriptor and size of the file that holds sums for other replicas from now on, or None without
    shared memory; see host/src/machine/memory.h.
    """

def shared_place(array: Annotated[NDArray[numpy.float32], dict(order='C', device='cpu', writable=False)]) -> int:
    """
    Where in shared memory an array begins; -1: it is not in shared memory.
    """

def look_meanwhile(look: object | None) -> None:
    """
    While the engine works for this thread it calls look(), once in a millisecond at most, until that returns False.
    """

def column_squares(x: Annotated[NDArray[numpy.float32], dict(order='C', device='cpu', writable=False)]) -> object:
    """
    float64[N], sums of the squares of the columns of x [M, N], rows ascending.
    """

class Exchange:
    """
    The messages of the ranks of a group in passes; see host/src/ranks/exchange.h.
    """

class PyExchange(Exchange):
    """An Exchange over a communicator of host/comm."""

    def __init__(self, python: object) -> None: ...

class MpiExchange(Exchange):
    """An Exchange that calls MPI itself; see host/src/ranks/mpi_exchange.h."""

    def __init__(self, rank: int, size: int, functions: Sequence[int], comm: int, byte: int, tag: int, yields: bool, longest: int) -> None: ...

    def traveled(self) -> tuple:
        """
        Bytes sent and received, messages sent, and seconds in MPI since the last call.
        """

    def time_exchanges(self, n: int) -> list[float]:
        """
        Seconds of each of n exchanges of 8 bytes with all other ranks, who call it too.
        """

class LayerRanks:
    """
    The ranks that own neurons of a layer: rank r of the group of `exchange` owns neurons first[r] to
    first[r + 1] - 1.
    """

    def __init__(self, exchange: Exchange, first: Sequence[int]) -> None: ...

class Augment:
    """
    The strengths of sparsesnn.datasets.Augment for one epoch of one data set.
    """

    def __init__(self, *, seed: int, epoch: int, time_jitter: float, time_shift: int, time_stretch: float, time_crop: float, channel_shift: int, channel_jitter: float, event_drop: float, time_mask: float, channel_mask: int, blend: float, mix: float, spatial_shift: int, flip: float, rotation: int, width: int, height: int, quantiles: Annotated[NDArray[numpy.float64], dict(order='C', device='cpu', writable=False)] | None, rotated: Annotated[NDArray[numpy.int32], dict(order='C', device='cpu', writable=False)] | None, partners: Annotated[NDArray[numpy.int64], dict(order='C', device='cpu', writable=False)], by_class: Annotated[NDArray[numpy.int64], dict(order='C', device='cpu', writable=False)] | None = ..., spans: Annotated[NDArray[numpy.int64], dict(order='C', device='cpu', writable=False)] | None = ...) -> None: ...

def make_batch(ids: Annotated[NDArray, dict(order='C', device='cpu', writable=False)], n_spikes: Annotated[NDArray, dict(order='C', device='cpu', writable=False)], sample_starts: Annotated[NDArray[numpy.int64], dict(order='C', device='cpu', writable=False)], n_neurons: int, chosen: Annotated[NDArray[numpy.int64], dict(order='C', device='cpu', writable=False)], augment: Augment | None, values: Annotated[NDArray, dict(order='C', device='cpu', writable=False)] | None) -> tuple:
    """
    Samples of an event set as time-major lists (offsets, ids, n_spikes, values or None), augmented on request.
    """

def adam(parameters: Sequence[tuple[Annotated[NDArray[numpy.float32], dict(order='C', device='cpu')], Annotated[NDArray[numpy.float32], dict(order='C', device='cpu')], Annotated[NDArray[numpy.float32], dict(order='C', device='cpu')], Annotated[NDArray[numpy.float32], dict(order='C', device='cpu')], Annotated[NDArray[numpy.float32], dict(order='C', device='cpu', writable=False)]]], *, lr: float, beta1: float, beta2: float, eps: float, weight_decay: float, decoupled: bool) -> None:
    """
    One step of Adam or, decoupled, AdamW, in place; of each parameter float32 arrays: its weight, first and second moment,
    the number of steps so far [], which is counted on, and its gradient.
    """

def cross_entropy(potentials: Annotated[NDArray[numpy.float32], dict(order='C', device='cpu', writable=False)], labels: Annotated[NDArray[numpy.int64], dict(order='C', device='cpu', writable=False)] | None, shares: Annotated[NDArray[numpy.float32], dict(order='C', device='cpu', writable=False)] | None, class_weights: Annotated[NDArray[numpy.float32], dict(order='C', device='cpu', writable=False)] | None, over_time: str, label_smoothing: float, n_whole: float) -> tuple:
    """
    Logits [B, C], losses [B] and their sum / n_whole [], from potentials [T, B, C]; labels int64[B], or
    shares of the classes float32[B, C]. For over_time "step", labels are int64[T, B], and logits empty.
    """

def cross_entropy_grad(potentials: Annotated[NDArray[numpy.float32], dict(order='C', device='cpu', writable=False)], labels: Annotated[NDArray[numpy.int64], dict(order='C', device='cpu', writable=False)] | None, shares: Annotated[NDArray[numpy.float32], dict(order='C', device='cpu', writable=False)] | None, class_weights: Annotated[NDArray[numpy.float32], dict(order='C', device='cpu', writable=False)] | None, over_time: str, label_smoothing: float, n_whole: float, logits: Annotated[NDArray[numpy.float32], dict(order='C', device='cpu', writable=False)], d_loss: float) -> object:
    """
    d_loss times the gradient of the sum of losses / n_whole by the potentials, [T, B, C], or [1, B, C]
    if it is the same at all steps.
    """

class DenseSpec:
    """
    What defines the dynamics of a population; see host/src/dense/dense_neurons.h.
    """

    def __init__(self, *, shape: str, fires: bool, detach_reset: bool, surrogate: str, slope: float) -> None: ...

def empty_bytes(n_bytes: int) -> object:
    """
    Uninitialized memory, uint8[n_bytes]; once freed, it is kept for the next step.
    """

def dense_multiply_suits() -> bool:
    """
    Whether the instruction set in use has a matrix product here that is faster than PyTorch's.
    """

class PackedMatrix:
    """A matrix b [K, N], float32, in the order in which products read it."""

    def __init__(self, b: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], *, transposed: bool = ...) -> None:
        """transposed: b is given as [N, K]."""

@overload
def dense_multiply(a: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], b: PackedMatrix, c: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')], *, transposed: bool = ..., accumulate: bool = ..., bias: Annotated[NDArray[numpy.float32], dict(order='C', device='cpu', writable=False)] | None = ...) -> None: ...

@overload
def dense_multiply(a: Annotated[NDArray[numpy.uint8], dict(shape=(None, None), order='C', device='cpu', writable=False)], b: PackedMatrix, c: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')], *, transposed: bool = ..., accumulate: bool = ..., bias: Annotated[NDArray[numpy.float32], dict(order='C', device='cpu', writable=False)] | None = ...) -> None:
    """
    c[M, N] = a·b, added to c (accumulate) or to a bias [N]; a [M, K], or [K, M] if transposed, float32 or uint8.
    """

@overload
def dense_forward(spec: DenseSpec, current: Annotated[NDArray[numpy.float32], dict(order='C', device='cpu', writable=False)], *, entries: Annotated[NDArray[numpy.float32], dict(order='C', device='cpu', writable=False)], grad_threshold: Annotated[NDArray[numpy.float32], dict(order='C', device='cpu', writable=False)] | None, state: Sequence[Annotated[NDArray[numpy.float32], dict(order='C', device='cpu')] | None], out: Annotated[NDArray[numpy.float32], dict(order='C', device='cpu')] | None, fired: Annotated[NDArray[numpy.bool_], dict(order='C', device='cpu')] | None, rows: Sequence[Annotated[NDArray[numpy.float32], dict(order='C', device='cpu')] | None], fresh: bool = ...) -> None: ...

@overload
def dense_forward(spec: DenseSpec, current: Annotated[NDArray[numpy.float64], dict(order='C', device='cpu', writable=False)], *, entries: Annotated[NDArray[numpy.float64], dict(order='C', device='cpu', writable=False)], grad_threshold: Annotated[NDArray[numpy.float64], dict(order='C', device='cpu', writable=False)] | None, state: Sequence[Annotated[NDArray[numpy.float64], dict(order='C', device='cpu')] | None], out: Annotated[NDArray[numpy.float64], dict(order='C', device='cpu')] | None, fired: Annotated[NDArray[numpy.bool_], dict(order='C', device='cpu')] | None, rows: Sequence[Annotated[NDArray[numpy.float64], dict(order='C', device='cpu')] | None], fresh: bool = ...) -> None:
    """
    Advances every neuron over the steps of `current` [T, B, N]; writes the state and the other given arrays.
    """

@overload
def dense_backward(spec: DenseSpec, d_out: Annotated[NDArray[numpy.float32], dict(order='C', device='cpu', writable=False)], *, entries: Annotated[NDArray[numpy.float32], dict(order='C', device='cpu', writable=False)], derivatives: Annotated[NDArray[numpy.float32], dict(order='C', device='cpu', writable=False)] | None, grad_threshold: Annotated[NDArray[numpy.float32], dict(order='C', device='cpu', writable=False)] | None, rows: Sequence[Annotated[NDArray[numpy.float32], dict(order='C', device='cpu', writable=False)] | None], d_state: Sequence[Annotated[NDArray[numpy.float32], dict(order='C', device='cpu')] | None], d_current: Annotated[NDArray[numpy.float32], dict(order='C', device='cpu')] | None, d_bias: Annotated[NDArray[numpy.float32], dict(order='C', device='cpu')] | None, d_parameters: Sequence[Annotated[NDArray[numpy.float32], dict(order='C', device='cpu')] | None], current: Annotated[NDArray[numpy.float32], dict(order='C', device='cpu', writable=False)] | None = ..., fresh: bool = ...) -> None: ...

@overload
def dense_backward(spec: DenseSpec, d_out: Annotated[NDArray[numpy.float64], dict(order='C', device='cpu', writable=False)], *, entries: Annotated[NDArray[numpy.float64], dict(order='C', device='cpu', writable=False)], derivatives: Annotated[NDArray[numpy.float64], dict(order='C', device='cpu', writable=False)] | None, grad_threshold: Annotated[NDArray[numpy.float64], dict(order='C', device='cpu', writable=False)] | None, rows: Sequence[Annotated[NDArray[numpy.float64], dict(order='C', device='cpu', writable=False)] | None], d_state: Sequence[Annotated[NDArray[numpy.float64], dict(order='C', device='cpu')] | None], d_current: Annotated[NDArray[numpy.float64], dict(order='C', device='cpu')] | None, d_bias: Annotated[NDArray[numpy.float64], dict(order='C', device='cpu')] | None, d_parameters: Sequence[Annotated[NDArray[numpy.float64], dict(order='C', device='cpu')] | None], current: Annotated[NDArray[numpy.float64], dict(order='C', device='cpu', writable=False)] | None = ..., fresh: bool = ...) -> None:
    """
    The gradient of `dense_forward`, from `d_out` [T, B, N]; writes d_current, adds to the sums.
    """
