"""A recorder for any training loop: what is measured at chosen steps, in a file that survives a kill."""

import bisect
import io
import os
import tempfile
import tokenize
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap

from jattn import _errors
from jattn._jax import io_callback
from jattn._types import ArrayLike, ArrayTree, Integer

_CALLER = "recorder"
_LONGEST_HEADER = 2**24  # characters; np.load asks to be told of one that is longer than 10,000


class Recorder:
    """Keeps what is measured at chosen steps of any training loop, in a file that survives a kill.

        recorder(step, *args)   →   observe(*args) is computed and kept, where `step` is one of those asked for

    It is called in the loop, jitted or not, with what the loop has at hand. At a step that is not asked for nothing is
    measured. Where `step` or an argument is traced, the measurement is part of the program, inside a jax.lax.cond, and
    the program waits for Python at the steps that are kept; it may be differentiated, scanned and looped, and what is
    sharded is gathered. A function inside jax.vmap, jax.shard_map or jax.checkpoint returns what is measured instead,
    for a call outside of it.

    A call at some step drops what the file holds of that step and later ones. So a run that resumes from a checkpoint
    goes on in the file of the one that was killed, and a run that begins again replaces it. The file is a .npy at any
    time, which np.load reads as an array of records: each is appended whole before the file says that it is there. A
    process may be killed at any moment; of a machine that loses power nothing is said.

    Args:
      file: `….npy`; its folder is made if it is not there. A recording that is there already is continued.
      observe: observe(*args, **kwargs) -> arrays by name: a mapping or a named tuple, nested or not, with the same
        names, shapes and dtypes at each step. The default keeps what the call gives by name, as in
        recorder(step, loss=loss). Where the loop is not jitted, make it jax.jit(observe).
      at: which steps: every so many, from 0 on, or these, increasing, as `log_steps` makes them.
      limit: how many are kept at most, 2 or more. Before there would be more, every second is dropped, and from then on
        only every second kept, as often as it takes. The first stays, and what is there is evenly spread over the steps
        asked for.

    Raises:
      TypeError, ValueError: `at` is not increasing or not below 2³¹, `file` is no path, no .npy or none of a
        recorder's, `observe` no function; when called: a step is not a whole number, what is observed has no names, is
        no number, or has another structure, shape or dtype than before; another recorder wrote in the file; it is
        called inside jax.vmap or jax.shard_map. What differs in a jitted loop is a JaxRuntimeError; in a jax.checkpoint
        that is differentiated JAX raises a NotImplementedError, "Effects not supported".

    Memory: one record and the numbers of the steps; where every second is dropped the file, `limit` records at most.

    Source: the .npy format, whose header leaves room for the number of records to grow.

    Example:
      >>> import jax, jax.numpy as jnp, numpy as np, tempfile
      >>> from jattn import flow
      >>> keys = jnp.array([[1.0, 0.0], [0.2, 0.1], [0.0, 0.1]])  # river, money, the
      >>> objective = flow.cross_entropy(0)
      >>> def observe(q):
      ...     steps = flow.attention_steps(q[None], keys, keys)
      ...     return {"q": q, "k": keys, "weights": steps.weights[0], "loss": objective(steps)}
      >>> step = jax.jit(jax.grad(lambda q: objective(flow.attention_steps(q[None], keys, keys))))
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     recorder = flow.Recorder(folder + "/run.npy", jax.jit(observe), at=flow.log_steps(100, per_decade=1))
      ...     q = keys[0]
      ...     for i in range(101):  # anybody's loop
      ...         recorder(i, q)  # the one line
      ...         q = q - step(q)
      ...     run = recorder.run()
      >>> print(run["steps"], run["loss"].round(1))  # for figures.training, page.run and console.sparklines
      [  0   1  10 100] [0.7 0.6 0.2 0. ]
    """

    def __init__(
        self,
        file: str | os.PathLike[str],
        observe: Callable[..., ArrayTree] = dict,
        *,
        at: int | Sequence[int] = 1,
        limit: int = 1000,
    ) -> None:
        _errors.function(_CALLER, "observe", observe, "Write observe(*args) -> arrays by name.")
        self._file, self._observe = _errors.path(_CALLER, "file", file), _by_call if observe is dict else observe
        if self._file.suffix != ".npy":
            _errors.fail(ValueError, _CALLER, "file must end in .npy", "Name one.", file=self._file.name)
        self._limit = _errors.count(_CALLER, "limit", limit, least=2)
        if np.ndim(at) == 0:
            self._at: int | np.ndarray = _in_int32(_errors.count(_CALLER, "at", at, least=1))
        else:
            steps = [_errors.count(_CALLER, "at", t) for t in at]  # type: ignore[union-attr]
            self._at = np.array([_in_int32(t) for t in steps], np.int32)
            if not len(self._at) or (np.diff(self._at) <= 0).any():
                got = {"at": f"of {len(self._at)} steps"}
                remedy = "Give them sorted, without repeats, as flow.log_steps(steps) does."
                _errors.fail(ValueError, _CALLER, "at must be increasing steps from 0 on", remedy, **got)
        self._steps: list[int] = []
        self._dtype, self._spaced = np.dtype([("steps", np.int64)]), 0
        if self._file.exists():
            held = _read(self._file)
            self._steps, self._dtype = held["steps"].tolist(), held.dtype

    def __call__(self, step: Integer[ArrayLike, ""], *args: object, **kwargs: object) -> None:
        if not isinstance(step, jax.core.Tracer):
            number = _errors.count(_CALLER, "step", step)
            if self._wanted(number):
                self._keep(number, self._observe(*args, **kwargs))
            return
        _errors.kind(_CALLER, "step", step, jnp.integer, "Steps are counted: pass a whole number.")
        # What is kept has no derivative, and a branch that calls Python is not to be differentiated.
        step, args, kwargs = jax.tree.map(_constant, (step.astype(jnp.int32), args, kwargs))
        jax.lax.cond(self._wanted(step), lambda: self._keep(step, self._observe(*args, **kwargs)), lambda: None)

    def run(self) -> dict[str, Any]:
        """What the file holds: `steps` [F], and whatever was observed, by its name, with a leading axis F.

        `figures.training`, `figures.animate` and `page.run` take it where q [F, D], k [F, S, D] and weights [F, S] are
        in it, `console.sparklines` in any case. It may be read while another process writes.

        Raises:
          ValueError: nothing was kept yet.
        """
        jax.effects_barrier()  # what a jitted loop has still to write
        held = _read(self._file) if self._file.exists() else None
        if held is None or not len(held):
            remedy = "Call the recorder at a step that is asked for."
            _errors.fail(ValueError, _CALLER, "file must hold at least one step", remedy, file="without any")
        return _by_name(held)

    def _index(self, step: Any) -> tuple[Any, Any]:
        """The how manyth of the steps asked for this is, and whether it is one at all."""
        if isinstance(self._at, int):
            return step // self._at, step % self._at == 0
        xp: Any = jnp if isinstance(step, jax.Array) else np
        index = xp.minimum(xp.searchsorted(xp.asarray(self._at), step), len(self._at) - 1)
        return index, xp.asarray(self._at)[index] == step

    def _spacing(self, index: Any) -> Any:
        """2ⁿ with the least n by which fewer than `limit` of the steps asked for so far are multiples of it."""
        xp: Any = jnp if isinstance(index, jax.Array) else np
        dtype = np.int32 if xp is jnp else np.int64  # a loop in Python may count beyond int32
        bounds = [self._limit << n for n in range(31) if self._limit << n < 2**31]
        return xp.ones((), dtype) << xp.sum(index >= xp.asarray(bounds, dtype), dtype=dtype)

    def _wanted(self, step: Any) -> Any:
        index, asked = self._index(step)
        return asked & (index % self._spacing(index) == 0)

    def _keep(self, step: Any, observed: Any) -> None:
        """Now, or when the program that is traced runs."""
        leaves = _named(observed)
        paths, values = [path for path, _ in leaves], [x for _, x in leaves]
        if any(isinstance(x, jax.core.Tracer) for x in (step, *values)):
            if jax.sharding.get_abstract_mesh().manual_axes:  # each device would write the same file
                _refuse("jax.shard_map", device="of a mesh")
            sent = [_pieces(_in_32_bits(_constant(x))) for x in values]
            like = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in values]
            io_callback(partial(self._receive, paths, like), None, _constant(step), *sent, ordered=True)
        else:
            self._write(paths, step, *values)

    def _receive(self, paths: list[tuple[str, ...]], like: list[jax.ShapeDtypeStruct], step: Any, *sent: Any) -> None:
        bits = [b"".join(np.asarray(piece).tobytes() for piece in x) for x in sent]
        values = [np.ndarray(y.shape, y.dtype, x) for x, y in zip(bits, like, strict=True)]
        self._write(paths, step, *values)

    def _write(self, paths: list[tuple[str, ...]], step: Any, *values: Any) -> None:
        step, record = int(step), _record(int(step), paths, values)
        before = bisect.bisect_left(self._steps, step)
        if before and record.dtype != self._dtype:
            must = "what is observed must have the names, shapes and dtypes of what the file holds"
            remedy = "Give it a file of its own."
            _errors.fail(ValueError, _CALLER, must, remedy, **_difference(record.dtype, self._dtype))
        spacing = int(self._spacing(self._index(step)[0]))
        rows = self._still_kept(before, spacing) if spacing != self._spaced else list(range(before))
        if before and len(rows) == before:
            self._append(record, before)
        else:
            self._replace(np.concatenate([self._held(before)[rows], record]) if rows else record)
        self._steps, self._dtype, self._spaced = [*(self._steps[row] for row in rows), step], record.dtype, spacing

    def _still_kept(self, before: int, spacing: int) -> list[int]:
        """Which of the first so many records stay; steps that are no longer asked for, as long as there is room."""
        places = [self._index(step) for step in self._steps[:before]]
        rows = [row for row, (index, asked) in enumerate(places) if not asked or index % spacing == 0]
        return rows if len(rows) < self._limit else [row for row in rows if places[row][1]]

    def _append(self, record: np.ndarray, before: int) -> None:
        """The record behind the first so many, and only then the header that counts it."""
        header = _header(self._dtype, before)
        del self._steps[before:]  # whatever ends this, the next call counts no more than these
        with open(self._file, "r+b") as file:
            self._check_last(file, header, before)
            if file.seek(0, os.SEEK_END) > len(header) + before * record.itemsize:
                file.seek(0)  # what follows is dropped before it is overwritten
                file.write(header)
                file.flush()
            file.seek(len(header) + before * record.itemsize)
            file.write(record.tobytes())
            file.truncate()
            file.flush()
            file.seek(0)
            file.write(_header(self._dtype, before + 1))

    def _check_last(self, file: BinaryIO, header: bytes, before: int) -> None:
        """Refuses a file in which the record before is not the one that this recorder left there."""
        form, last = file.read(len(header)), len(header) + (before - 1) * self._dtype.itemsize
        file.seek(last)
        alike = form.rpartition(b"shape")[0] == header.rpartition(b"shape")[0]
        if not alike or file.read(8) != np.int64(self._steps[before - 1]).tobytes():
            self._refuse_changed()

    def _held(self, before: int) -> np.ndarray:
        """What the file holds, the first so many records as this recorder left them."""
        held = _read(self._file)
        if held.dtype != self._dtype or held["steps"][:before].tolist() != self._steps[:before]:
            self._refuse_changed()
        return held

    def _refuse_changed(self) -> NoReturn:
        must, remedy = "file must be written by one recorder at a time", "Give each recorder a file of its own."
        _errors.fail(ValueError, _CALLER, must, remedy, file=f"{self._file.name}, changed by another")

    def _replace(self, records: np.ndarray) -> None:
        """These records alone, whole or not at all."""
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self._file.parent, prefix=".") as folder:
            unfinished = Path(folder) / "new"
            unfinished.write_bytes(_header(records.dtype, len(records)) + records.tobytes())
            os.replace(unfinished, self._file)


def _by_call(*args: Any, **kwargs: Any) -> dict[str, Any]:
    """What a call gives by name, as dict(*args, **kwargs), of which an array is none whatever its shape."""
    try:
        if any(hasattr(x, "dtype") for x in args):
            _refuse_unnamed("without a name")
        return dict(*args, **kwargs)
    except TypeError:
        _refuse_unnamed("without a name")


def _refuse_unnamed(one: str) -> NoReturn:
    remedy = "Give them as in {'loss': loss}; the steps themselves are kept as steps."
    _errors.fail(ValueError, _CALLER, "what is observed must be arrays by name", remedy, one=one)


def _in_int32(step: int) -> int:
    """A step that a jitted loop can count."""
    if step >= 2**31:
        remedy = "Steps of a jitted loop are int32: count in larger steps."
        _errors.fail(ValueError, _CALLER, "at must be below 2147483648", remedy, at=str(step))
    return step


@custom_vmap
def _of_one(x: jax.Array) -> jax.Array:
    """x, which no jax.vmap maps."""
    return x


@_of_one.def_vmap
def _of_many(n: int, mapped: Any, x: jax.Array) -> tuple[jax.Array, Any]:
    _refuse("jax.vmap", batch=f"of {n}")


def _refuse(where: str, **got: str) -> NoReturn:
    remedy = "Let the mapped function return what is measured, and call the recorder with that: scan steps, map within."
    _errors.fail(ValueError, _CALLER, f"a recorder must be called outside of {where}", remedy, **got)


def _constant(x: Any) -> Any:
    return _of_one(jax.lax.stop_gradient(x)) if isinstance(x, jax.core.Tracer) else x


def _in_32_bits(x: Any) -> Any:
    """The bits of x: Python is called in a thread in which jax.enable_x64 may not hold, and would see x rounded."""
    if isinstance(x, np.ndarray) and x.dtype.itemsize > 4:  # a constant, which JAX itself would round
        return x.reshape(-1, 1).view(np.uint32)
    if x.dtype == np.complex128:
        x = jnp.stack([jnp.real(x), jnp.imag(x)], -1)
    return jax.lax.bitcast_convert_type(x, np.uint32) if x.dtype in (np.float64, np.int64, np.uint64) else x


def _pieces(x: Any) -> list[Any]:
    """x in pieces of 64 kB: on a CPU of one core JAX would wait for ever for one above 100 kB (jax issue 25861)."""
    flat, n = jnp.ravel(x), 2**16 // x.dtype.itemsize
    return [flat[i : i + n] for i in range(0, flat.size, n)]


def _named(observed: Any) -> list[tuple[tuple[str, ...], Any]]:
    """Each array that was observed, by the names that lead to it."""
    leaves = []
    for path, x in jax.tree_util.tree_leaves_with_path(observed):
        names = tuple(str(next(getattr(key, a) for a in ("key", "name", "idx") if hasattr(key, a))) for key in path)
        if not names or names[0] == "steps":
            _refuse_unnamed("named steps" if names else "without a name")
        label = ".".join(names)
        if not label.isascii() or "" in names:
            _errors.fail(ValueError, _CALLER, "names must be of ASCII letters", "Spell it out.", name=repr(label))
        x = x if isinstance(x, jax.Array) else np.asarray(x)
        if not any(jnp.issubdtype(x.dtype, kind) for kind in (np.number, np.bool_)):
            got = {label: f"of dtype {x.dtype}"}
            _errors.fail(TypeError, _CALLER, "what is observed must be numbers", "Leave it out.", **got)
        leaves.append((names, x))
    return leaves


def _record(step: int, paths: list[tuple[str, ...]], values: tuple[Any, ...]) -> np.ndarray:
    """[1], one record: `steps`, and each value under its names."""
    tree: dict[str, Any] = {"steps": np.int64(step)}
    for (*above, name), x in zip(paths, values, strict=True):
        place = tree
        for outer in above:
            place = place.setdefault(outer, {})
        x = np.asarray(x)
        if x.dtype.kind == "V":  # a dtype that NumPy does not know, such as bfloat16 or int4
            x = x.astype(np.float32 if jnp.issubdtype(x.dtype, jnp.floating) else np.int32)
        place[name] = x
    record = np.zeros(1, _dtype(tree))
    _fill(record, tree)
    return record


def _dtype(tree: Mapping[str, Any]) -> np.dtype:
    return np.dtype([(n, _dtype(x)) if isinstance(x, dict) else (n, x.dtype, x.shape) for n, x in tree.items()])


def _fill(record: np.ndarray, tree: Mapping[str, Any]) -> None:
    for name, x in tree.items():
        if isinstance(x, dict):
            _fill(record[name], x)
        else:
            record[name][0] = x


def _by_name(held: np.ndarray) -> dict[str, Any]:
    names = held.dtype.names or ()
    return {n: _by_name(held[n]) if held[n].dtype.names else np.ascontiguousarray(held[n]) for n in names}


def _difference(new: np.dtype, old: np.dtype) -> dict[str, str]:
    """The first field in which two dtypes differ, as a message says it."""

    def flat(dtype: np.dtype, above: str = "") -> dict[str, str]:
        found: dict[str, str] = {}
        for name in dtype.names or ():
            inner = dtype[name]
            shape = f"[{', '.join(map(str, inner.shape))}]"
            found |= flat(inner, f"{above}{name}.") if inner.names else {above + name: f"{inner.base}{shape}"}
        return found

    now, before = flat(new), flat(old)
    name = next((name for name in {**now, **before} if now.get(name) != before.get(name)), None)
    if name is None:
        return {"names": "of another order or nesting"}
    return {name: now.get(name, "left out"), "in the file": before.get(name, "none")}


def _header(dtype: np.dtype, n: int) -> bytes:
    """Of a .npy of n records; as long for any n."""
    made = io.BytesIO()
    told = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": (n,)}
    np.lib.format.write_array_header_2_0(made, told)
    return made.getvalue()


def _read(file: Path) -> np.ndarray:
    try:
        with open(file, "rb") as opened:  # of what is damaged np.load may find a .npz, and leave it open
            held = np.lib.format.read_array(opened, max_header_size=_LONGEST_HEADER)
    except (ValueError, EOFError, SyntaxError, tokenize.TokenError):
        held = None
    if not isinstance(held, np.ndarray) or held.ndim != 1 or (held.dtype.names or ("",))[0] != "steps":
        remedy = "Name another file, or remove this one."
        _errors.fail(
            ValueError, _CALLER, "file must be one of a recorder", remedy, file=f"{file.name}, of another kind"
        )
    return held
