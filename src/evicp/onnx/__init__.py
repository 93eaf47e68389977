"""ONNX: the calibrated set predictor appended to a classifier's own graph.

The head is built from standard operators in double precision, for a dynamic batch, so that any ONNX server can run it:
Abs Add And Cast Clip Concat CumSum Div Equal Exp GatherElements Greater Identity LessOrEqual Log Max Min Mul Neg Or
ReduceSum Relu Reshape Round ScatterElements Slice Squeeze Sub TopK Where. It needs opset 16 or newer.
ECP sorts only the labels that bounds leave open; how many is found at run time, so the k of one TopK is no constant.

A graph cannot raise an error: a row that cannot be scored (NaN, +inf, logits beyond 1e300, all -inf; probabilities that
do not sum to 1) gets the full set, which is always valid, and uncertainty 1. The kind of output is determined from the
model's operators or, if onnxruntime can run it, from its values on a few rows: random rows, or `examples`, an array or
a dict of arrays by name. Probabilities are refused unless `output_is="probabilities"`: the new graph then computes
their logarithms, with 0 as 1e-300, as `evicp.sklearn` does. This suits a calibration of np.log(probabilities) and, for
every score but ECP, of the logits before a softmax. `output_is="logits"` confirms that the calibration used the same
numbers as the output.
"""

from evicp.onnx.exporter import OLDEST_OPSET, OUTPUTS, export

__all__ = ["OLDEST_OPSET", "OUTPUTS", "export"]
