"""How far two networks are apart as they run, in float32.

``deviation.proven`` is about real numbers. Here is a bound on ``|fl(OUT) - fl(MODEL)|`` over the domain,
where ``fl`` is an evaluation in IEEE float32 in **any order of summation**, with or without fused
multiply-add, another order for each network, each entry and each run.

**Assumed.** Every operation rounds to nearest; subnormal numbers are kept. Not covered: TF32 and other
reduced products, Winograd and FFT convolutions, Strassen's products, flush-to-zero. Covered is a runtime that
fuses a linear node, a convolution or a pooling with the scales, batch norms, added biases and sums *behind*
it, where nobody else reads the values between. Not covered is one that moves a scale into the linear node or
convolution that reads it, or that joins two linear nodes. Operators that a reader expands (LeakyReLU, PReLU,
Max) round less as a file has them than expanded, so they are covered. Sigmoids and their like are not rounded
as IEEE says, so there is no bound for networks that hold one.

**Inputs.** Both networks read the same float32 input, which is what MODEL's own input takes: with a
normalised box the normalised value, whose normalisation is taken for given and not charged. The bound holds
for every such input that is the image of an input of the domain. Deviations are measured before the tails.
"""

from relutrim.float32.bound import evaluation_error, proven_float32

__all__ = ["evaluation_error", "proven_float32"]
