"""ONNX: the calibrated set predictor appended to a classifier's own graph.

The head is built from standard operators in double precision, for a dynamic batch, so that any ONNX server can run it:
Abs Add And Cast Clip Concat CumSum Div Equal Exp GatherElements Greater Identity LessOrEqual Log Max Min Mul Neg Or
ReduceSum Relu Reshape Round ScatterElements Slice Squeeze Sub TopK Where. It needs opset 16 or newer.
ECP sorts only the labels that bounds leave open; how many is found at run time, so the k of one TopK is no constant.

A graph cannot raise: a row that no score can be computed from (NaN, +inf, logits beyond 1e300, nothing but -inf;
probabilities that do not sum to 1) gets the full set, which is always valid, and uncertainty 1.

What the model's output holds is told by its operators, or by its values in a few rows, where onnxruntime can run it:
random rows, or `examples`, an array or a dict of arrays by name. Probabilities are refused, unless
`output_is="probabilities"` is given: the new graph then takes their logarithms, 0 counting as 1e-300, as
`evicp.sklearn` does. That fits a calibration of np.log(probabilities) and, for every score but ECP, one of the logits
behind a softmax. `output_is="logits"` says that the calibration was made of just the numbers that the output holds.
"""

from evicp.onnx.exporter import OLDEST_OPSET, OUTPUTS, export

__all__ = ["OLDEST_OPSET", "OUTPUTS", "export"]
