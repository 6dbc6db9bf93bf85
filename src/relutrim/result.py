"""What ``relutrim.compress`` gives back."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from relutrim.errors import InputError
from relutrim.graph.graph import Network
from relutrim.prove.stability import Stability
from relutrim.rewrite.draft import Mask, Step

if TYPE_CHECKING:
    from relutrim.accuracy import Accuracy
    from relutrim.certificate.write import Certificate
    from relutrim.intervals import Interval
    from relutrim.io.onnx.beside import Files
    from relutrim.io.source import Source
    from relutrim.io.torch.source import Remade, TorchSource
    from relutrim.latency import Latency
    from relutrim.observe import Predictions
    from relutrim.origins import Origins
    from relutrim.prove.deadline import Deadline
    from relutrim.rewrite.pipeline import LeftOut, Rewritten
    from relutrim.rewrite.rules import Allowance, Limits


@dataclass(frozen=True)
class Deviation:
    """How far the compressed network is from the original, at the outputs before any tail.

    ``proven`` holds on the whole domain in real arithmetic for the weights as stored; it is None where
    verdicts weaker than a proof were allowed, or where the file's type cannot hold a weight.
    ``proven_float64`` is the same for the float64 network in memory. ``proven_float32`` bounds how far the
    two files are apart as they run in IEEE float32, whatever the order of summation, another one for each
    (:mod:`relutrim.float32` says what is assumed); it is 0 where the model came back as it was, and None
    where there is no finite bound. ``found`` is the largest difference that a search found on the domain,
    real arithmetic and stored weights again: it certainly exists.

    The others were observed on ``samples`` inputs, in float32 and in ``dtype``: the difference between both
    networks, and the original's own rounding error; in ``dtype`` also how often both predict the same.
    """

    proven: float | None
    proven_float64: float | None
    proven_float32: float | None
    observed_float32: float
    original_float32_error: float
    samples: int
    found: float
    dtype: str
    observed: float
    original_error: float
    predictions: Predictions | None


@dataclass(frozen=True, eq=False)
class Compression:
    """The result. ``model`` is of the kind that went in; ``network`` is in float64, ``stored`` what a file
    holds.

    >>> import relutrim
    >>> result = relutrim.compress(relutrim.demo_model(), relutrim.Box(0, 1))
    >>> print(result)
    200 -> 104 neurons, 89400 -> 52385 connections, 89610 -> 52499 parameters
    >>> result.deviation.found <= result.deviation.proven < 1e-7  # on the whole domain, weights as stored
    True
    >>> result.steps[0].rewrite, result.steps[0].text
    ('drop-inactive', 'removed 12 inactive of 100 neurons')
    >>> more = result.at("rounding")  # the same verdicts, another tolerance
    >>> more.stored.connections < result.stored.connections
    True

    :meth:`save` writes the model, :meth:`save_report` a page for people; in a notebook it shows as a table.
    """

    model: Any
    original: Network
    network: Network
    stored: Network
    stability: Stability
    steps: tuple[Step, ...]
    deviation: Deviation
    rewrites: str
    evidence: str
    tolerance: str | float = "exact"
    cost: str = "parameters"
    masks: Mapping[str, Mask] = field(default_factory=dict, repr=False)
    """Per ReLU of ``stored``, in its value's shape, which units are always 0 on the domain."""
    ranges: Mapping[str, Interval] = field(default_factory=dict, repr=False)
    """Bounds of values of ``stored`` on the domain: proven ones, or none at all."""
    certificate: Certificate | None = None
    """The independently checkable certificate, where one was asked for and there was time for it."""
    left_out: LeftOut | None = None
    """What would have been removed as well if that were within the tolerance."""
    interrupted: bool = False
    """Whether Ctrl-C has ended the run early: what was proved by then was used."""
    time_was_up: bool = False
    """Whether neurons are undecided that more time might decide."""
    source: Source | None = field(default=None, repr=False)
    """The file that the model was read from."""
    allowance: Allowance | None = field(default=None, repr=False)
    edited: Files | None = field(default=None, repr=False)
    """The file that was given with the edits, and its data, if one was given and something was removed."""
    recorded: TorchSource | None = field(default=None, repr=False)
    """The module or exported program that was given."""
    remade: Remade | None = field(default=None, repr=False)
    """It with the edits, if something was removed."""
    elsewhere: Callable[[Limits | None], Rewritten | None] | None = field(default=None, repr=False)
    obstacle: str | None = None
    """Why the model could not say what would have been removed, where that is so."""

    @property
    def remark(self) -> str | None:
        """Why what came back is not of the module's class, where that is so."""
        return None if self.remade is None else self.remade.remark

    @property
    def origins(self) -> Origins:
        """Per ReLU of ``stored`` that lost units or has new ones: the ``layer`` of the original, and for each
        of its ``units`` (channels, where there are positions) the index there, None if it is new.
        """
        from relutrim.origins import of_changed

        return of_changed(self.stored, self.original)

    @property
    def unchanged(self) -> bool:
        """Whether the result is the very network that went in."""
        return self.stored is self.original

    @property
    def allowed(self) -> float | None:
        """The most that any output may move by what the tolerance says; None where it says nothing."""
        return None if self.allowance is None else self.allowance.most

    @property
    def report(self) -> dict[str, Any]:
        """What was done, as a dictionary that serialises to JSON."""
        from relutrim.report.json import compression_json

        return compression_json(self)

    def at(self, tolerance: str | float, *, dtype: str | None = None) -> Compression:
        """The same network compressed with another tolerance, by the verdicts that are known already, and
        observed in ``dtype`` (None: the same as here).
        """
        from relutrim.compression import recompressed

        return recompressed(self, tolerance, dtype)

    def suggestion(self, time_limit: float = math.inf) -> Rewritten | None:
        """What ``rounding`` would remove beyond this; None if that is nothing, as far as so many seconds are
        enough to tell.
        """
        from relutrim.compression import suggested

        return suggested(self, time_limit)

    def written_as(self, path: str | Path, deadline: Deadline | None = None) -> Compression:
        """The result as a file of this name holds it. In another format than the model's that is a
        conversion, which the tolerance has to allow for as well. After the deadline it is looked at on a few
        inputs only.
        """
        if self.source is not None and self.source.is_like(Path(path)):
            return self
        from relutrim.compression import converted

        found = converted(self, deadline)
        if found is None:
            raise InputError(
                "storing the model in another format moves an output by more than the tolerance "
                f"{self.tolerance} allows ({self.allowed:.2e}); give a larger --tolerance, or the output the "
                "format of the model",
                where=str(path),
            )
        return found

    def latency(self, time_limit: float = math.inf) -> Latency:
        """The size of both networks as ONNX, and their times with onnxruntime if that is installed and so
        many seconds are enough.
        """
        from relutrim.latency import measure

        return measure(self.original, self.stored, self._file, self.edited_onnx, time_limit)

    def accuracy(self, data: Any, labels: Any) -> Accuracy | None:
        """How often both networks give the class that a label names, on the rows of ``data`` (raw units) that
        lie in the domain; None where the network is no classifier, or no row lies there.
        """
        from relutrim.accuracy import accuracy

        return accuracy(self.original, self.stored, self.stability, data, labels, self.deviation.dtype)

    def save(self, path: str | Path) -> None:
        """Write the compressed network to a file, whole or not at all. A model that is unchanged is written
        byte for byte as it was, with the files that it refers to.
        """
        from relutrim.io import check_writable, save

        if self.source is not None:
            self.source.keep_from(Path(path))
        found, target = self.written_as(path), Path(path)
        if found.source is not None and found.source.is_like(target) and (found.unchanged or found.edited):
            check_writable(target)
            if found.edited_onnx is not None:
                found._verify(found.source.files, found.edited_onnx)
            found.source.copy(target, found.edited)
        else:
            save(found.stored, target)

    def save_report(
        self, path: str | Path, *, latency: Latency | None = None, accuracy: Accuracy | None = None
    ) -> None:
        """Write an HTML report for people to a file, whole or not at all; it loads nothing from anywhere."""
        from relutrim.io.files import write_text
        from relutrim.report.html.page import compression_page

        write_text(Path(path), compression_page(self, latency=latency, accuracy=accuracy))

    @property
    def onnx(self) -> bytes:
        """The compressed model as ONNX, with all its data: the one that was given with the edits, or one that
        is written.
        """
        from relutrim.io.onnx import network_to_proto

        if self.edited_onnx is not None:
            return self.edited_onnx.whole()
        stored = self.written_as("model.onnx").stored
        content: bytes = network_to_proto(stored).SerializeToString(deterministic=True)
        return content

    @property
    def edited_onnx(self) -> Files | None:
        """The ONNX that was given with the edits, if one was given and something was removed."""
        return self.edited if self.source is not None and self.source.is_onnx else None

    def _verify(self, before: Files, after: Files) -> None:
        """Run both models on a few inputs of the domain."""
        from relutrim.io.onnx.verify import verify_edited
        from relutrim.observe import behind_normalisation, samples

        some = samples(self.stability, None)[:3]
        points = behind_normalisation(self.stability.problem, self.original, some)
        x = points.reshape(-1, *self.original.input.shape).cpu().numpy()
        verify_edited(before, after, self.stored, x, self.deviation.proven)

    @property
    def _file(self) -> Files | None:
        """The model's own ONNX, if it was read from one."""
        return self.source.files if self.source is not None and self.source.is_onnx else None

    def _repr_html_(self) -> str:
        """How notebooks show it."""
        from relutrim.report.html.notebook import compression_fragment

        return compression_fragment(self)

    def __str__(self) -> str:
        before, after = self.original, self.network
        return (
            f"{before.neurons} -> {after.neurons} neurons, {before.connections} -> "
            f"{after.connections} connections, "
            f"{before.parameters} -> {after.parameters} parameters"
        )
